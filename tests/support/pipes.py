"""Named pipes that keep their readers waiting, instead of work that takes long on some machine."""

import os
import signal
import threading
from contextlib import suppress

from support.waiting import wait_until


def open_end(pipe):
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
    ends.append(open_end(pipe))
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
