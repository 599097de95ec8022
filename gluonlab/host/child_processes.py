"""Helps to start child processes that die with their parent and import the same gluonlab.

The helpers work with `subprocess.Popen` and with asyncio::

    child = Popen(words, env=add_gluonlab_path(os.environ), **OWN_GROUP_OPTIONS)
    ...
    signal_group(child.pid, signal.SIGKILL)
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Mapping

from gluonlab.host import startup_errors

PR_SET_PDEATHSIG = 1  # of prctl(2)
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # only on Linux


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent exits. Call this function in the child.

    The function has an effect only on Linux.
    """
    if _PRCTL is not None:
        _PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# Options for a child that leads its own process group. So the child receives no signals of the
# terminal, and `signal_group` can kill it with all of its children.
OWN_GROUP_OPTIONS: Dict[str, Any] = {"start_new_session": True, "preexec_fn": die_with_parent}


def prepare_program_process() -> None:
    """Make this new process die with its parent. Called just before it runs the user's program.

    Unlike the launcher, the program does not ignore Ctrl-Z.
    """
    die_with_parent()
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def prepare_command_process() -> None:
    """Make this new process die with its parent. Called just before it runs a gluonlab command.

    SIGINT is blocked until `gluonlab.host.startup_errors` can handle it, because otherwise Python
    would print a traceback.
    """
    die_with_parent()
    # Python 3.8 and 3.9 on macOS cannot read their own command line. The command would then not
    # recognize itself, and would never unblock SIGINT.
    if startup_errors.command_line():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def signal_group(pid: int, number: int) -> None:
    """Send signal ``number`` to a child's process group. Do nothing if the group has ended.

    ``pid``: the child's pid. The child must lead its own process group.
    """
    # macOS raises PermissionError if all processes of the group are zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def add_gluonlab_path(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return a copy of the environment in which PYTHONPATH starts with this gluonlab's folder."""
    root = str(Path(__file__).resolve().parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    other_paths = [path for path in paths if path and path != root]
    return {**environment, "PYTHONPATH": os.pathsep.join([root, *other_paths])}
