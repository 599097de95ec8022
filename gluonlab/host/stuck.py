"""Signal handling while C code blocks the main thread, perhaps forever.

Python's signal handlers run in the main thread, and only after C code has returned. An operator
that never ends, or devices that wait for each other, block the main thread in MXNet. Then Ctrl-C
has no effect. The C handler still writes the signal's number into a pipe (`signal.set_wakeup_fd`),
and a thread reads the pipe here. Python's handlers write a 0 into the pipe when they run. If the
user insists and no handler runs for PATIENCE_S, the thread prints a line and ends the process.

A single signal requests an orderly end after the current step, however long the step takes. A
second Ctrl-C, or another signal APART_S after the first, counts as insisting. The delay matters
because shells and terminals may send the same signal twice.
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
AT_A_PROMPT_S = 60.0  # at a prompt, where all computed values would be lost
APART_S = 2.0
HANDLED, OVER = 0, 255  # values in the pipe that are not signal numbers

Words = Callable[[], str]


@contextmanager
def ends_if_stuck(words: Words = str, to_the_end: bool = False) -> Iterator[None]:
    """Let signals end the process if it is stuck within the block.

    ``words``: returns text about the remaining files for the last line; the innermost block's text
    is used. ``to_the_end``: continue after the block until Python has exited, because the exit
    waits for MXNet. Outside the main thread the block has no effect, since signals reach only the
    main thread.
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
    """Note that the main thread runs Python code. Each signal handler must call this."""
    for watch in _watches:
        watch.write(HANDLED)


def _interrupt(number: int, frame: object) -> None:
    handled()
    raise KeyboardInterrupt


class _Watch:
    """A thread that watches which signals arrive and whether handlers run."""

    def __init__(self) -> None:
        self.words: List[Words] = []
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._writes, False)  # signal.set_wakeup_fd requires this
        self._before = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        self._came: List[int] = []
        self._first_came = 0.0
        self._insisted = False
        self._due: Optional[float] = None  # when to print or exit, unless a handler runs first
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        with suppress(RuntimeError):  # out of memory or threads
            self._thread.start()

    def write(self, number: int) -> None:
        with suppress(OSError):  # the pipe is full
            os.write(self._writes, bytes([number]))

    def end(self) -> None:
        now = signal.set_wakeup_fd(self._before)
        if now != self._writes:  # other code has replaced it in the meantime
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
        if self._before >= 0:  # pass it on to the previous reader
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
        """Print how to insist, or end the process if the user has insisted."""
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
    with suppress(OSError):  # standard error is closed
        os.write(2, f"{line}\n".encode(errors="replace"))


_watches: List[_Watch] = []  # at most one
