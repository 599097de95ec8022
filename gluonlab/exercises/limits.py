"""A limit on the time that somebody else's code may take."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import Iterator


class OutOfTime(BaseException):
    """The time is over. No Exception, which code that runs too long might catch."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in this block after ``seconds``, and every second from then on until it ends.

    Python code is interrupted wherever it is, a call of a library when it returns. Without effect
    outside the main thread, the only one that signals reach.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True

    def over(number: int, frame: object) -> None:
        if running:  # it may also come between the end of the block and that of the timer
            raise OutOfTime

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
