"""The command ``gluonlab NAME``, or ``python -m gluonlab NAME``, which calls the command NAME."""

from __future__ import annotations

import sys
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


# name -> (summary, function to call with the remaining words)
COMMANDS: Dict[str, Tuple[str, Callable[[List[str]], Any]]] = {
    "run": ("train a Gluon CNN on several devices", make_lazy_main("gluonlab.run")),
    "predict": ("classify images with a finished run", make_lazy_main("gluonlab.predict")),
    "scratch": ("train LeNet with arrays only, as in a textbook", make_lazy_main("gluonlab.scratch.__main__")),
    "data": ("download, verify and pack data sets", make_lazy_main("gluonlab.data.__main__")),
    "doctor": ("check this machine for known issues", make_lazy_main("gluonlab.doctor.__main__")),
    "launch": ("train with several processes or hosts", make_lazy_main("gluonlab.launch.__main__")),
    "report": ("compare runs on one HTML page", make_lazy_main("gluonlab.report.__main__")),
    "labs": ("copy the labs' notebooks", make_lazy_main("gluonlab.labs.__main__")),
    "exercises": ("list the labs' exercises, and grade notebooks", make_lazy_main("gluonlab.exercises.__main__")),
    "study": ("answer a question with many measurements", make_lazy_main("gluonlab.study.__main__")),
    "allreduce": ("measure, draw and predict allreduce algorithms", make_lazy_main("gluonlab.allreduce")),
    "bench": ("measure links, strategies and processes", make_lazy_main("gluonlab.bench.__main__")),
    "completion": ("print the script for shell completion", print_completion_script),
}


def main() -> None:
    """Call the command whose name is the first word of the command line."""
    question = Completion.from_environment()
    words = sys.argv[1:] if question is None else question.words
    if words == ["--version"]:
        click.echo(f"gluonlab {gluonlab.__version__}")
        return
    run_subcommand("gluonlab", COMMANDS, words)


if __name__ == "__main__":
    main()
