"""Processes that end with the one that has started them."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """To be called in a new process: it is killed when the one that has started it ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
