"""The old command ``gluonlab bench allreduce``, which calls a ``gluonlab allreduce`` command."""

from __future__ import annotations

import shlex
import sys
from typing import List, Optional, Sequence, Tuple

from gluonlab import allreduce
from gluonlab.cli.old_names import warn_renamed

_RENAMED_OPTIONS = {"--sizes": "--bytes", "--repeat": "--iters", "--out": "--out-file"}
# former option -> name of the command that replaces it, and whether the option's value is its argument
_COMMANDS = {
    "--draw": ("draw", True),
    "--choose": ("choose", False),
    "--simulate": ("simulate", True),
    "--synthesise": ("solve", True),
}


def current_command(words: Sequence[str]) -> Tuple[str, List[str]]:
    """Return the name and arguments of the command that replaces ``bench allreduce WORDS``."""
    current = []
    for word in words:
        name, equals, value = word.partition("=")
        current.append(f"{_RENAMED_OPTIONS.get(name, name)}{equals}{value}")
    for option, (command, has_argument) in _COMMANDS.items():
        for position, word in enumerate(current):
            if word.partition("=")[0] != option:
                continue
            before, after = current[:position], current[position + 1 :]
            if not has_argument:
                return command, [*before, *after]
            argument = [word.partition("=")[2]] if "=" in word else after[:1]
            return command, [*argument, *before, *(after if "=" in word else after[1:])]
    return "bench", current


def main(args: Optional[Sequence[str]] = None) -> None:
    """Print a warning that names the current command, and run that command."""
    words = sys.argv[1:] if args is None else list(args)
    name, rest = current_command(words)
    old = shlex.join(["gluonlab", "bench", "allreduce", *words])
    warn_renamed(old, shlex.join(["gluonlab", "allreduce", name, *rest]))
    allreduce.main([name, *rest])


if __name__ == "__main__":
    main()
