"""The user's own program behind ``--``, which the launcher starts once for each rank.

The options of a run begin with a dash; a first word that does not is a program.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Dict, NoReturn, Optional, Sequence

from gluonlab.errors import ConfigError
from gluonlab.launch import at_start
from gluonlab.plain import one_line

PYTHONS = ("python", "python3")
VARIABLE = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


def is_program(words: Sequence[str]) -> bool:
    """Whether the words are a program with its own options."""
    return bool(words) and not words[0].startswith("-")


def check_program(words: Sequence[str]) -> None:
    """Raise ConfigError for a program that cannot be started on this host."""
    if shutil.which(words[0]) is None:
        raise ConfigError(start_refusal(words[0], Path.cwd()))


def program_variables() -> Dict[str, str]:
    """The variables of a program that differ from those of gluonlab's own processes.

    Its Python may be another one, which must not find this one's packages: it finds
    `gluonlab.launch.at_start` alone. It prints each line at once unless the user says otherwise,
    because Python holds back what goes into a pipe.
    """
    paths = [str(Path(at_start.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
    }


def become_program(words: Sequence[str]) -> NoReturn:
    """Replace this process by the program. Raises ConfigError."""
    try:
        os.execvp(words[0], list(words))
    except OSError as error:
        raise ConfigError(start_refusal(words[0], Path.cwd(), error)) from None


def start_refusal(name: str, folder: Path, error: Optional[OSError] = None) -> str:
    """Why a program cannot be started in this folder, and what to write instead, on one line.

    ``error``: what the system said, if it was tried.
    """
    shown, file = one_line(repr(name)), folder / name
    if not folder.is_dir():
        return f"{shown} cannot be started in {folder}: there is no such folder on this host"
    if "/" not in name:
        return _not_in_path(name, file) if shutil.which(name) is None else _refused(shown, error)
    if not file.exists():
        return f"there is no file {shown}: give a program that is there"
    if file.is_dir():
        return f"{shown} is a folder: give a program"
    if not os.access(file, os.X_OK):
        return (
            f"{shown} may not be executed: make it executable with chmod +x, or write its "
            f"interpreter before it, as in {_interpreter(name)} {name}"
        )
    return _refused(shown, error)


def _not_in_path(name: str, file: Path) -> str:
    shown, first = one_line(repr(name)), name.split()[:1]
    if name and file.is_file():
        how = f"python {name}" if name.endswith(".py") else f"./{name}"
        return f"{shown} is a file in this folder, which is not in PATH: write {how}"
    if first != [name] and first and shutil.which(first[0]) is not None:
        return f"{shown} is one word: write {one_line(first[0])} and its words without quotes"
    if VARIABLE.match(name):
        return f"{shown} is no program: set variables before gluonlab launch, or write env before"
    if name.endswith(".py"):
        return f"there is no file {shown} in this folder: write python and the path of the file"
    where = sys.executable if name in PYTHONS else "the program's whole path"
    return f"there is no program {shown} in PATH: write {where}"


def _interpreter(name: str) -> str:
    return "python" if name.endswith(".py") else "sh"


def _refused(shown: str, error: Optional[OSError]) -> str:
    """What the system says of a program that is there."""
    if error is not None and error.errno == errno.ENOEXEC:
        return (
            f"{shown} does not say what runs it: begin it with a line such as #!/bin/sh, or write "
            "its interpreter before it"
        )
    if error is not None and error.errno == errno.ENOENT:
        return f"{shown} cannot be started: the interpreter in its first line does not exist"
    return f"{shown} cannot be started: {error.strerror if error else 'no permission'}"


def check_not_gluonlab(words: Sequence[str]) -> None:
    """Raise ConfigError for gluonlab's training as a program: each rank would train alone."""
    names = [word for word in words[:3] if not word.startswith("-")]
    if Path(names[0]).name.startswith(PYTHONS) and "-m" in words[1:2]:
        names = names[1:]
    own = [Path(names[0]).name, *names[1:2]] if names else []
    if own[:1] in (["gluonlab.run"], ["gluonlab.launch"]) or own in (
        ["gluonlab", "run"],
        ["gluonlab", "launch"],
    ):
        raise ConfigError(
            f"{' '.join(words[:3])}: each process would train alone: write only the options of "
            "the run behind --, as in -n 2 --backend dist_sync -- --epochs 3"
        )
