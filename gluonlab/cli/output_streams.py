"""Standard output and standard error, whose readers may go away: ``| head -1``, ``>&-``."""

from __future__ import annotations

import errno
import os
import select
import sys
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import Any, Callable, Deque, Iterator, Optional, Tuple

# terminal, pipe, and what was closed before: how a poll tells of it, and how writing would
GONE = {select.POLLHUP: errno.EIO, select.POLLERR: errno.EPIPE, select.POLLNVAL: errno.EBADF}


def fill_closed() -> None:
    """Open what is closed of the descriptors 0 to 2, else files would get their numbers.

    What others then print to standard output would stand in them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the smallest free number


def nobody_reads(error: BaseException, stream: Any) -> bool:
    """Whether the error comes of writing to this stream, because its reader is gone."""
    if not isinstance(error, OSError) or error.errno not in GONE.values():
        return False
    try:
        return _gone(stream) is not None
    except (OSError, ValueError, AttributeError):  # ... and so is the stream
        return True


def why_unread(stream: Any) -> Optional[str]:
    """What the system would say if the stream were written to now; None if somebody may read."""
    try:
        number = _gone(stream)
    except (OSError, ValueError, AttributeError):  # it is none of the system's
        return None
    return None if number is None else os.strerror(number)


def _gone(stream: Any) -> Optional[int]:
    """The number of the error with which writing would fail, as its reader is gone."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    events = [event for _, event in poll.poll(0)]
    return next((GONE[flag] for flag in GONE if any(event & flag for event in events)), None)


def silence(stream: Any) -> None:
    """What is written from now on goes nowhere, also at Python's end, which would complain."""
    with suppress(OSError, ValueError, AttributeError):
        number, nowhere = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


@contextmanager
def heard_or_not(stream: Any) -> Iterator[None]:
    """Print to the stream what may as well be lost, as it stands elsewhere, or nobody can know."""
    try:
        yield
        if stream is not None:
            stream.flush()
    except OSError as error:
        if not nobody_reads(error, stream):
            raise
        silence(stream)


def complain(line: str) -> None:
    """Print a line on standard error, if anybody reads it."""
    with suppress(OSError), heard_or_not(sys.stderr):
        if sys.stderr is not None:  # print takes None for standard output
            print(line, file=sys.stderr)


AT_ONCE = 2**12  # letters that are written together
Printed = Callable[[], Any]


def nothing() -> None:
    """For what nobody waits for."""


class Printer:
    """Prints lines in the order in which they come, while the program goes on.

    They are printed by a thread of their own, as a terminal may take nothing for hours.

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
