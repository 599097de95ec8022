"""All commands of gluonlab, by the words that call them."""

import importlib

import click

import gluonlab.__main__ as program
from gluonlab.allreduce import COMMANDS as ALLREDUCE
from gluonlab.bench.__main__ import COMMANDS as BENCH
from gluonlab.cli.run_commands import COMMANDS as RUN_COMMANDS
from gluonlab.data.__main__ import COMMANDS as DATA
from gluonlab.exercises.__main__ import COMMANDS as EXERCISES
from gluonlab.study.__main__ import COMMANDS as STUDY

PACKAGES = ("scratch", "doctor", "launch", "report", "labs")
# The words of a command, and its function.
COMMAND_FUNCTIONS = {
    "run": importlib.import_module("gluonlab.run").main,
    "predict": importlib.import_module("gluonlab.predict").main,
    **RUN_COMMANDS,
    **{name: importlib.import_module(f"gluonlab.{name}.__main__").main for name in PACKAGES},
    **{f"data {name}": command for name, command in DATA.items()},
    **{f"exercises {name}": command for name, command in EXERCISES.items()},
    **{f"study {name}": command for name, command in STUDY.items()},
    **{f"allreduce {name}": command for name, command in ALLREDUCE.items()},
    **{f"bench {name}": command for name, command in BENCH.items()},
    "completion": program.print_completion_script,
}
COMMAND_GROUPS = {"": program.COMMANDS, "data": DATA, "exercises": EXERCISES, "study": STUDY, "allreduce": ALLREDUCE,
                  "bench": BENCH}  # fmt: skip


def command_options(command):
    """Return all options of a command, --help and hidden options included."""
    context = click.Context(command, **command.context_settings)
    return [param for param in command.get_params(context) if isinstance(param, click.Option)]


def call_command(words, *arguments):
    """Run ``gluonlab WORDS ARGUMENTS`` in this process, which raises SystemExit."""
    group, _, name = words.rpartition(" ")
    if words == "":
        program.run_subcommand("gluonlab", program.COMMANDS, arguments, groups=program.GROUPS)
    elif group or words in COMMAND_GROUPS:
        program.COMMANDS[group or words][1]([*([name] if group else []), *arguments])
    else:
        program.COMMANDS[words][1](list(arguments))
