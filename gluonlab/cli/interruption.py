"""Ctrl-C, SIGTERM and SIGHUP end a command, whatever it does when they come."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from types import FrameType
from typing import Any, Iterator, Optional, Set

from gluonlab.host.signals import RAISED, SEND_AFTER, handled, number_of
from gluonlab.host.start import end_at_once, started_quietly


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt this block as Ctrl-C does, and none of them is lost.

    Otherwise these two would end the process on the spot. What is ignored, as by nohup, stays so.

    Python runs a signal's handler between any two instructions of the main thread. In a
    ``__del__``, such as that of MXNet's arrays, or in a callback from C, it only prints what the
    handler raised, and goes on: such a signal is sent again. So is one that comes during an import:
    modules catch what is raised there, and Python remembers a KeyboardInterrupt of code that they
    make from text, and ends by the signal instead of with a status. Without effect outside the main
    thread, the only one that signals reach.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    again: Set[int] = set()  # signals that are about to be sent again
    hook, is_process = sys.unraisablehook, started_quietly()

    def send_lost_again(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            send_later(number_of(unraisable.exc_type))
        else:
            hook(unraisable)

    def send_later(number: int) -> None:
        if number not in again:
            again.add(number)
            # threading.Thread takes locks, which may be held where a __del__ runs
            _thread.start_new_thread(send, (number,))

    def send(number: int) -> None:
        time.sleep(SEND_AFTER)
        if number in again:
            again.remove(number)
            os.kill(os.getpid(), number)

    is_over, late = False, 0

    def interrupt(number: int, frame: Optional[FrameType]) -> None:
        nonlocal late
        handled()
        if is_over:  # it came while handlers are given back, which must be whole
            late = number
            return
        if not _importing(frame):
            raise RAISED[number]
        send_later(number)

    before = {number: signal.getsignal(number) for number in RAISED}
    own = [signal.SIG_DFL, signal.default_int_handler]
    taken = [n for n in before if before[n] in own or (n == signal.SIGINT and is_process)]
    for number in taken:
        signal.signal(number, interrupt)
    sys.unraisablehook = send_lost_again
    if is_process:
        _GIVING_WAY.add(interrupt)
    try:
        yield
    finally:
        is_over = True  # before anything is called: each call lets a handler run
        again.clear()
        sys.unraisablehook = hook
        for number in taken:
            is_last = is_process and number == signal.SIGINT  # nothing but Python's end follows
            # ... and after an error the line that tells of it
            after = end_at_once if isinstance(sys.exc_info()[1], SystemExit) else _wait
            signal.signal(number, after if is_last else before[number])
        if late:
            raise RAISED[late]


def _wait(number: int, frame: Optional[FrameType]) -> None:
    """Another Ctrl-C, while the line is written that tells how it ended."""
    handled()


# SIGINT's handlers while the line is written: the last one, or still the first, where another
# interrupt came just before `interruptible` could end
_GIVING_WAY: Set[Any] = {_wait}


def all_is_said() -> None:
    """The line is written: another Ctrl-C ends the process at once."""
    if signal.getsignal(signal.SIGINT) in _GIVING_WAY:
        signal.signal(signal.SIGINT, end_at_once)


def _importing(frame: Optional[FrameType]) -> bool:
    """Whether the code at ``frame`` runs for an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
