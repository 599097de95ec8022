"""python -m gluonlab NAME, or gluonlab NAME: all commands in one group."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, List

from gluonlab.cli.command import dispatch


def _main_of(module: str) -> Callable[[List[str]], Any]:
    """The ``main`` of a command's module, which is imported only when the command is called."""
    return lambda args: importlib.import_module(module).main(args)


COMMANDS = {
    "run": ("train a Gluon CNN on several devices", _main_of("gluonlab.run")),
    "scratch": ("train LeNet by hand, with arrays only", _main_of("gluonlab.scratch.__main__")),
    "data": ("download data sets, check them, pack images", _main_of("gluonlab.data.__main__")),
    "doctor": ("find what is wrong here, why, and the cure", _main_of("gluonlab.doctor.__main__")),
    "launch": ("train with many processes, here or on hosts", _main_of("gluonlab.launch.__main__")),
    "report": ("compare runs on one HTML page", _main_of("gluonlab.report.__main__")),
    "exercises": (
        "list the labs' exercises, grade notebooks",
        _main_of("gluonlab.exercises.__main__"),
    ),
    "bench": ("measure gluonlab and its peers side by side", _main_of("gluonlab.bench.__main__")),
}


def main() -> None:
    """Hand the remaining options to the command that is named first."""
    dispatch("gluonlab", COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    main()
