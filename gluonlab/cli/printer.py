"""Lines that are printed by a thread of their own, as a terminal may take nothing for hours."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Deque, Optional, Tuple

from gluonlab.cli.streams import nobody_reads, silence

AT_ONCE = 2**12  # letters that are written together
Printed = Callable[[], Any]


def nothing() -> None:
    """For what nobody waits for."""


class Printer:
    """Prints lines in the order in which they come, while the program goes on.

    ``fault``: why a stream could not be written to, such as a full disk.
    """

    def __init__(self) -> None:
        self._lines: Deque[Tuple[str, str, Printed]] = deque()
        self._some = threading.Semaphore(0)
        self._thread: Optional[threading.Thread] = None
        self._count = 0  # of all lines so far
        self._done = 0
        self.fault: Optional[OSError] = None

    @property
    def unprinted(self) -> int:
        """How many lines nobody has taken yet."""
        return self._count - self._done

    def print(self, stream: str, line: str, printed: Printed = nothing) -> None:
        """Print to ``stdout`` or ``stderr``, and then call ``printed``, in another thread."""
        if self._thread is None:
            # a daemon: who ends does not wait for a terminal
            self._thread = threading.Thread(target=self._print, name="console", daemon=True)
            self._thread.start()
        self._count += 1
        self._lines.append((stream, f"{line}\n", printed))
        self._some.release()

    def _print(self) -> None:
        while True:
            self._some.acquire()
            stream, text, printed = self._lines.popleft()
            told = [printed]
            while self._lines and self._lines[0][0] == stream and len(text) < AT_ONCE:
                self._some.acquire()
                _, more, printed = self._lines.popleft()
                text += more
                told.append(printed)
            try:
                _write(getattr(sys, stream), text)
            except OSError as error:
                self.fault = self.fault or error
            for printed in told:
                printed()
            self._done += len(told)


def _write(stream: Any, text: str) -> None:
    """Write at once, past what Python keeps, on which its end would wait for this thread."""
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):  # none, or one of Python alone
        if stream is not None:
            stream.write(text)
        return
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while data:
        try:
            data = data[os.write(number, data) :]
        except BlockingIOError:  # somebody else wants it so
            with suppress(OSError):
                select.select([], [number], [])
        except OSError as error:
            if not nobody_reads(error, stream):
                raise
            silence(stream)
