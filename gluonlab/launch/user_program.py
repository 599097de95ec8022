"""Checks and starts the user's own program, which the launcher runs once for each rank.

The program and its arguments are the words after ``--``. If the first word starts with a dash, the
words are options of a run instead.
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
from gluonlab.plain_text import one_line

PYTHON_NAMES = ("python", "python3")
ASSIGNMENT_PATTERN = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


def is_program(words: Sequence[str]) -> bool:
    """Check if the words after ``--`` are a program and its arguments, not options of a run."""
    return bool(words) and not words[0].startswith("-")


def check_program(words: Sequence[str]) -> None:
    """Raise ConfigError, with the reason, if the program cannot be started on this host."""
    if shutil.which(words[0]) is None:
        raise ConfigError(describe_start_error(words[0], Path.cwd()))


def program_variables() -> Dict[str, str]:
    """Return the environment variables that only the user's program gets, not gluonlab's processes.

    - PYTHONPATH: the folder of `gluonlab.launch.at_start`, before the user's value. gluonlab's own
      folder is not added, because the program may use a different Python, with other packages.
    - PYTHONUNBUFFERED: the user's value, or 1. Otherwise Python would buffer its output to the
      launcher's pipe.
    """
    paths = [str(Path(at_start.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")}


def become_program(words: Sequence[str]) -> NoReturn:
    """Replace this process with the program. Raises ConfigError if the program cannot start."""
    try:
        os.execvp(words[0], list(words))
    except OSError as error:
        raise ConfigError(describe_start_error(words[0], Path.cwd(), error)) from None


def describe_start_error(name: str, folder: Path, error: Optional[OSError] = None) -> str:
    """Return one line that explains why a program cannot be started, and how to fix that.

    Args:
        name: the program, the first word of the command line
        folder: the working folder
        error: the system's error from a failed start; None if no start has been attempted
    """
    quoted_name, file = one_line(repr(name)), folder / name
    if not folder.is_dir():
        return f"{quoted_name} cannot be started in {folder}, which does not exist on this host: create this directory"
    if "/" not in name:
        return _not_in_path(name, file) if shutil.which(name) is None else _describe_refusal(quoted_name, error)
    if not file.exists():
        return f"the program {quoted_name} does not exist: check its path"
    if file.is_dir():
        return f"{quoted_name} is a directory: pass a program"
    if not os.access(file, os.X_OK):
        return (
            f"{quoted_name} is not executable: run chmod +x, or write its interpreter before it, "
            f"as in {_interpreter(name)} {name}"
        )
    return _describe_refusal(quoted_name, error)


def _not_in_path(name: str, file: Path) -> str:
    """Explain why a program without a folder in its name is not found in PATH.

    ``file``: the file with this name in the working folder, which may not exist
    """
    quoted_name, first_word = one_line(repr(name)), name.split()[:1]
    if name and file.is_file():
        command = f"python {name}" if name.endswith(".py") else f"./{name}"
        return f"{quoted_name} is in the current directory, which is not in PATH: write {command}"
    if first_word != [name] and first_word and shutil.which(first_word[0]) is not None:
        program = one_line(first_word[0])
        return f"{quoted_name} is passed as one word: write {program} and its arguments without quotes around the whole"
    if ASSIGNMENT_PATTERN.match(name):
        advice = "set variables before gluonlab launch, or start the program with env"
        return f"{quoted_name} is not a program: {advice}"
    if name.endswith(".py"):
        return f"{quoted_name} is not in the current directory: write python and the path of the file"
    path = sys.executable if name in PYTHON_NAMES else "the program's full path"
    return f"program {quoted_name} is not in PATH: write {path}"


def _interpreter(name: str) -> str:
    return "python" if name.endswith(".py") else "sh"


def _describe_refusal(quoted_name: str, error: Optional[OSError]) -> str:
    """Explain why the system cannot start a program that exists."""
    if error is not None and error.errno == errno.ENOEXEC:
        return (
            f"{quoted_name} does not name its interpreter: add a first line such as #!/bin/sh, or "
            "write the interpreter before it"
        )
    if error is not None and error.errno == errno.ENOENT:
        return (
            f"{quoted_name} cannot be started because the interpreter in its first line does not "
            "exist: correct this line"
        )
    return f"{quoted_name} cannot be started ({error.strerror if error else 'no permission'})"


def check_not_gluonlab(words: Sequence[str]) -> None:
    """Raise ConfigError if the program is gluonlab's own training command.

    Otherwise each rank would train separately.
    """
    names = [word for word in words[:3] if not word.startswith("-")]
    if Path(names[0]).name.startswith(PYTHON_NAMES) and "-m" in words[1:2]:
        names = names[1:]
    module_or_command = [Path(names[0]).name, *names[1:2]] if names else []
    if module_or_command[:1] in (["gluonlab.run"], ["gluonlab.launch"]) or module_or_command in (
        ["gluonlab", "run"],
        ["gluonlab", "launch"],
    ):
        raise ConfigError(
            f"{' '.join(words[:3])} would train independently in each process: pass only 'run' and "
            "its options after --, such as -n 2 -- run --epochs 3"
        )
