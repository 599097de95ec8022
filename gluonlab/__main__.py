"""Implements ``gluonlab NAME`` and ``python -m gluonlab NAME``, which run the command NAME."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Callable, Dict, List, Tuple

import click

import gluonlab
from gluonlab.cli.command import Completion, command, completion_script, make_lazy_main, run_subcommand


@command("gluonlab completion")
@click.argument("shell", metavar="SHELL")
def print_completion_script(shell: str) -> None:
    """Print a script that completes gluonlab's commands and options in bash, zsh or fish.

    For bash, put this line into ~/.bashrc:

    eval "$(gluonlab completion bash)"
    """
    click.echo(completion_script(shell))


def _run_command(name: str) -> Callable[[List[str]], Any]:
    """Return a function that calls the command ``name`` in `gluonlab.cli.run_commands`."""
    return lambda words: import_module("gluonlab.cli.run_commands").COMMANDS[name].main(words)


# name -> (summary, function to call with the remaining words)
COMMANDS: Dict[str, Tuple[str, Callable[[List[str]], Any]]] = {
    "run": ("train a CNN on one or several devices", make_lazy_main("gluonlab.run")),
    "resume": ("resume an interrupted run", _run_command("resume")),
    "evaluate": ("evaluate a finished run", _run_command("evaluate")),
    "predict": ("classify images with a finished run", make_lazy_main("gluonlab.predict")),
    "launch": ("train with several processes, on this host or others", make_lazy_main("gluonlab.launch.__main__")),
    "find-lr": ("find a learning rate", _run_command("find-lr")),
    "find-batch-size": ("find the largest batch size that fits in memory", _run_command("find-batch-size")),
    "compare": ("compare training on several numbers of devices", _run_command("compare")),
    "report": ("compare runs on an HTML page", make_lazy_main("gluonlab.report.__main__")),
    "study": ("study speedup, batch size, learning rate or scaling", make_lazy_main("gluonlab.study.__main__")),
    "allreduce": ("measure, draw and predict allreduce algorithms", make_lazy_main("gluonlab.allreduce")),
    "bench": ("benchmark training, links and pipelines", make_lazy_main("gluonlab.bench.__main__")),
    "list": ("list models, data sets, kvstores, optimizers and recipes", _run_command("list")),
    "data": ("download, verify and pack data sets", make_lazy_main("gluonlab.data.__main__")),
    "doctor": ("check this machine, and show how to fix problems", make_lazy_main("gluonlab.doctor.__main__")),
    "labs": ("copy the lab notebooks into a directory", make_lazy_main("gluonlab.labs.__main__")),
    "exercises": ("list the labs' exercises, and grade notebooks", make_lazy_main("gluonlab.exercises.__main__")),
    "scratch": ("train LeNet with code that uses only arrays", make_lazy_main("gluonlab.scratch.__main__")),
    "completion": ("print a script for shell completion", print_completion_script),
}
# heading in --help -> names of commands
GROUPS = {
    "Train": ("run", "resume", "evaluate", "predict", "launch", "find-lr", "find-batch-size"),
    "Measure": ("compare", "report", "study", "allreduce", "bench"),
    "Set up and learn": ("list", "data", "doctor", "labs", "exercises", "scratch", "completion"),
}


def main() -> None:
    """Call the command whose name is the first word of the command line."""
    question = Completion.from_environment()
    words = sys.argv[1:] if question is None else question.words
    if words == ["--version"]:
        click.echo(f"gluonlab {gluonlab.__version__}")
        return
    run_subcommand("gluonlab", COMMANDS, words, groups=GROUPS)


if __name__ == "__main__":
    main()
