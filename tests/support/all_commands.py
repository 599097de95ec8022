"""All commands of the program, each by the words that call it."""

import importlib

import click

import gluonlab.__main__ as program
from gluonlab.bench.__main__ import COMMANDS as BENCH
from gluonlab.data.__main__ import COMMANDS as DATA
from gluonlab.exercises.__main__ import COMMANDS as EXERCISES
from gluonlab.study.__main__ import COMMANDS as STUDY

PACKAGES = ("scratch", "doctor", "launch", "report", "labs")
# the words -> what a person calls with them
COMMAND_FUNCTIONS = {
    "run": importlib.import_module("gluonlab.run").main,
    "predict": importlib.import_module("gluonlab.predict").main,
    **{name: importlib.import_module(f"gluonlab.{name}.__main__").main for name in PACKAGES},
    **{f"data {name}": made for name, made in DATA.items()},
    **{f"exercises {name}": made for name, made in EXERCISES.items()},
    **{f"study {name}": made for name, made in STUDY.items()},
    **{f"bench {name}": made for name, made in BENCH.items()},
    "completion": program.print_completion_script,
}
COMMAND_GROUPS = {"": program.COMMANDS, "data": DATA, "exercises": EXERCISES, "study": STUDY,
          "bench": BENCH}  # fmt: skip


def command_options(command):
    """All its options, --help and what is not shown included."""
    context = click.Context(command, **command.context_settings)
    return [each for each in command.get_params(context) if isinstance(each, click.Option)]


def call_command(words, *arguments):
    """What ``gluonlab WORDS ARGUMENTS`` does; it raises SystemExit."""
    group, _, name = words.rpartition(" ")
    if words == "":
        program.dispatch("gluonlab", program.COMMANDS, arguments)
    elif group or words in COMMAND_GROUPS:
        program.COMMANDS[group or words][1]([*([name] if group else []), *arguments])
    else:
        program.COMMANDS[words][1](list(arguments))
