"""Processes that end with the one that has started them."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """To be called in a new process: it is killed when the one that has started it ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def begin_as_program() -> None:
    """To be called in a new process that becomes a program of the user's: it dies with its parent,
    and Ctrl-Z stops it again, which the launcher ignores.
    """
    die_with_parent()
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def begin_as_part() -> None:
    """To be called in a new process that becomes a command of gluonlab's: it dies with its parent,
    and a SIGINT that is sent to it waits until gluonlab takes it.

    Before that, Python itself would end with a traceback. `gluonlab.host.start` lets it come.
    """
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
