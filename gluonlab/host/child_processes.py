"""Child processes: they lead a process group, die with their parent, and find this gluonlab.

For `subprocess.Popen` and for asyncio alike::

    child = Popen(words, env=with_this_gluonlab(os.environ), **OWN_GROUP)
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
    """Have the kernel kill this new process when the one that has started it ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# How a child is started that no signal of the terminal reaches, and that leaves nothing behind.
OWN_GROUP: Dict[str, Any] = {"start_new_session": True, "preexec_fn": die_with_parent}


def begin_as_program() -> None:
    """Prepare a new process that becomes a program of the user's.

    It dies with its parent, and Ctrl-Z stops it again, which the launcher ignores.
    """
    die_with_parent()
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def begin_as_part() -> None:
    """Prepare a new process that becomes a command of gluonlab's.

    It dies with its parent, and a SIGINT that is sent to it waits until gluonlab takes it
    (`gluonlab.host.command_start`). Before that, Python itself would end with a traceback.
    """
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the group that a child leads, which may be gone."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def with_this_gluonlab(environment: Mapping[str, str]) -> Dict[str, str]:
    """The environment, with the PYTHONPATH that leads a child to the gluonlab that runs here."""
    root = str(Path(__file__).resolve().parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [each for each in paths if each and each != root]
    return {**environment, "PYTHONPATH": os.pathsep.join([root, *others])}
