"""Helpers to start child processes that die with their parent and import this gluonlab.

For `subprocess.Popen` and for asyncio alike::

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

PR_SET_PDEATHSIG = 1  # of prctl(2)
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Make the kernel kill this new process when its parent exits."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# The child leads its own process group, so it gets no signals of the terminal, and can be killed
# with all of its children.
OWN_GROUP_OPTIONS: Dict[str, Any] = {"start_new_session": True, "preexec_fn": die_with_parent}


def prepare_program_process() -> None:
    """Prepare a new process that becomes the user's own program.

    The process dies with its parent. Ctrl-Z, which the launcher ignores, stops it again.
    """
    die_with_parent()
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def prepare_command_process() -> None:
    """Prepare a new process that becomes a command of gluonlab.

    The process dies with its parent. SIGINT is blocked until gluonlab handles it
    (`gluonlab.host.command_start`). Otherwise Python would print a traceback.
    """
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group that a child leads. The group may be gone."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def add_gluonlab_path(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment with a PYTHONPATH from which a child imports this gluonlab."""
    root = str(Path(__file__).resolve().parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    other_paths = [each for each in paths if each and each != root]
    return {**environment, "PYTHONPATH": os.pathsep.join([root, *other_paths])}
