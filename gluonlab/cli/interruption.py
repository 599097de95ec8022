"""Ctrl-C and SIGTERM end a command, whatever it does when they come."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any, Iterator, NoReturn, Set

AGAIN_AFTER = 0.01  # seconds: long enough for what swallowed the signal to have ended


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends whatever goes on as Ctrl-C does."""


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM interrupts this block as Ctrl-C does, and neither signal is lost.

    Otherwise SIGTERM would end the process on the spot.

    Python runs a signal's handler between any two instructions of the main thread. In a
    ``__del__``, such as that of MXNet's arrays, or in a callback from C, it only prints what the
    handler raised, and goes on: such a signal is sent again. Without effect outside the main
    thread, the only one that signals reach.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    lost: Set[int] = set()  # signals that are about to be sent again
    hook, ends_on_the_spot = sys.unraisablehook, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def send_lost_again(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        number = signal.SIGTERM if issubclass(unraisable.exc_type, Terminated) else signal.SIGINT
        if number not in lost:
            lost.add(number)
            # threading.Thread takes locks, which may be held where a __del__ runs
            _thread.start_new_thread(send, (number,))

    def send(number: int) -> None:
        time.sleep(AGAIN_AFTER)
        if number in lost:
            lost.remove(number)
            os.kill(os.getpid(), number)

    if ends_on_the_spot:
        signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = send_lost_again
    try:
        yield
    finally:
        lost.clear()
        sys.unraisablehook = hook
        if ends_on_the_spot:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated
