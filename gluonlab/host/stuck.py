"""Signals that come while C keeps the main thread, perhaps for ever.

Python's handlers run in the main thread, and only when C has returned to it. An operator that never
ends, or devices that wait for each other, keep it in MXNet's waits: then Ctrl-C has no effect,
however often it comes. What C itself does with a signal is to write its number into a pipe
(`signal.set_wakeup_fd`), which a thread reads here. Handlers write a 0 into it when they run. Where
somebody insists, and no handler runs for PATIENCE_S, the thread says a line, and ends the process.

One signal asks for an orderly end, however long the step under way takes. To insist is another
Ctrl-C, or another signal APART_S after the first: shells and terminals send the same one twice. So
nothing ends here what is on its way to its end, unless somebody has asked twice not to wait for it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import Callable, Iterator, List, Optional

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 10.0
AT_A_PROMPT_S = 60.0  # where all that somebody has computed would be lost
APART_S = 2.0
HANDLED, OVER = 0, 255  # in the pipe, besides numbers of signals

Words = Callable[[], str]


@contextmanager
def ends_if_stuck(words: Words = str, to_the_end: bool = False) -> Iterator[None]:
    """Within the block a process that is stuck can be ended by signals.

    ``words``: what its last line says of what is left; within another such block these count.
    ``to_the_end``: also after the block, until Python has ended, which waits for MXNet. Outside the
    main thread, the only one that signals reach, the block has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_outer = not _watches
    watch = _Watch() if is_outer else _watches[0]
    before = signal.getsignal(signal.SIGINT)
    if is_outer:
        _watches.append(watch)
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
    watch.words.append(words)
    try:
        yield
    finally:
        if not to_the_end:
            watch.words.pop()
        if is_outer and not to_the_end:
            _watches.clear()
            watch.end()
            if before is signal.default_int_handler:
                signal.signal(signal.SIGINT, before)


def handled() -> None:
    """To be called by each handler of a signal: the main thread runs Python."""
    for watch in _watches:
        watch.write(HANDLED)


def _interrupt(number: int, frame: object) -> None:
    handled()
    raise KeyboardInterrupt


class _Watch:
    """A thread that reads which signals come, and whether handlers run."""

    def __init__(self) -> None:
        self.words: List[Words] = []
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._writes, False)  # as signal.set_wakeup_fd wants it
        self._before = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        self._came: List[int] = []
        self._first_came = 0.0
        self._insisted = False
        self._due: Optional[float] = None  # when something is said, if no handler runs before
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        with suppress(RuntimeError):  # memory or threads are used up
            self._thread.start()

    def write(self, number: int) -> None:
        with suppress(OSError):  # it is full of signals
            os.write(self._writes, bytes([number]))

    def end(self) -> None:
        now = signal.set_wakeup_fd(self._before)
        if now != self._writes:  # somebody else's, meanwhile
            signal.set_wakeup_fd(now)
        self.write(OVER)
        if self._thread.is_alive():
            self._thread.join()
        for end in (self._reads, self._writes):
            os.close(end)

    def _run(self) -> None:
        while True:
            left = None if self._due is None else max(self._due - time.monotonic(), 0)
            if not select.select([self._reads], [], [], left)[0]:
                self._due = None
                self._say()
                continue
            for number in os.read(self._reads, 4096):
                if number == OVER:
                    return
                if number == HANDLED:
                    self._due, self._insisted = None, False
                else:
                    self._take(number)

    def _take(self, number: int) -> None:
        if self._before >= 0:  # somebody else's, who reads it too
            with suppress(OSError):
                os.write(self._before, bytes([number]))
        if number not in SIGNALS:
            return
        now = time.monotonic()
        self._came.append(number)
        self._first_came = self._first_came or now
        insists = self._came.count(signal.SIGINT) > 1 or now - self._first_came > APART_S
        if self._due is None or insists > self._insisted:
            self._due = now + (AT_A_PROMPT_S if hasattr(sys, "ps1") else PATIENCE_S)
        self._insisted = self._insisted or insists

    def _say(self) -> None:
        """Tell how to insist, or end the process if somebody has."""
        if not self._insisted:
            if self._came[0] == signal.SIGINT:
                _complain("waiting for the step that is under way: Ctrl-C again does not wait")
            return
        number = signal.Signals(self._came[0])
        how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        said = "MXNet does not come back"
        with suppress(Exception):
            said = "; ".join(filter(None, [said, self.words[-1]()]))
        _complain(f"{how}: {said}")
        from gluonlab.host import last_words  # importing gluonlab is cheap

        last_words.end(128 + number)


def _complain(line: str) -> None:
    with suppress(OSError):  # nobody reads it
        os.write(2, f"{line}\n".encode(errors="replace"))


_watches: List[_Watch] = []  # none or one
