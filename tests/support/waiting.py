"""Waits for conditions, whose limit only ends a hang, however slow the machine."""

import os
import signal
import threading
import time
from contextlib import suppress

LIMIT_S = 300


def wait_until(condition, limit_s=LIMIT_S):
    """Return once ``condition()`` is true. Raises AssertionError at the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited for {limit_s} s"
        time.sleep(0.01)


def wait_for_reader(pipe):
    """Wait until a process reads a named pipe; return the descriptor of the write end."""
    ends = []

    def is_open():
        with suppress(OSError):  # nothing reads the pipe yet
            ends.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return ends

    wait_until(is_open)
    return ends[0]


def interrupt_once_read(pipe, ends):
    """Send Ctrl-C to the main thread once it reads the pipe, which remains empty.

    ``ends``: gets the write end, which keeps the pipe open.
    """
    ends.append(wait_for_reader(pipe))
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
