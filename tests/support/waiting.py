"""Waiting for what will come on any machine, however slow: the limit only ends a hang."""

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
    """The end of a pipe to write to, once somebody has opened the other one."""
    ends = []

    def is_open():
        with suppress(OSError):  # nobody has
            ends.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return ends

    wait_until(is_open)
    return ends[0]


def interrupt_once_read(pipe, ends):
    """Send Ctrl-C to the main thread when somebody has opened the pipe, which stays empty.

    ``ends``: gets the end that keeps it open.
    """
    ends.append(wait_for_reader(pipe))
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
