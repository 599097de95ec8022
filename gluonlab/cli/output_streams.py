"""Prints to standard output and standard error, even if they are closed or have no reader.

Examples are ``command | head -1``, whose reader exits early, and ``command >&-``, which closes
standard output.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import Any, Callable, Deque, Iterator, Optional, Tuple

# Event of a poll -> error of writing to a closed terminal, pipe or descriptor.
ERROR_BY_POLL_EVENT = {select.POLLHUP: errno.EIO, select.POLLERR: errno.EPIPE, select.POLLNVAL: errno.EBADF}


def open_closed_descriptors() -> None:
    """Open /dev/null for each of the descriptors 0 to 2 that is closed.

    Otherwise the next file that is opened would get the closed descriptor's number, and output
    would be written to this file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the smallest free number, which is ``number``


def is_reader_gone(error: BaseException, stream: Any) -> bool:
    """Return whether an error was caused by writing to this stream after its reader was closed."""
    if not isinstance(error, OSError) or error.errno not in ERROR_BY_POLL_EVENT.values():
        return False
    try:
        return _write_error(stream) is not None
    except (OSError, ValueError, AttributeError):  # the stream itself is closed
        return True


def reader_error(stream: Any) -> Optional[str]:
    """Return the system's message if writing to the stream would fail; else None."""
    try:
        number = _write_error(stream)
    except (OSError, ValueError, AttributeError):  # not a stream of the system
        return None
    return None if number is None else os.strerror(number)


def _write_error(stream: Any) -> Optional[int]:
    """Return the errno with which writing to the stream would fail; None if it would succeed."""
    fd, poll = stream.fileno(), select.poll()
    poll.register(fd, select.POLLOUT)
    events = [event for _, event in poll.poll(0)]
    number = next(
        (ERROR_BY_POLL_EVENT[flag] for flag in ERROR_BY_POLL_EVENT if any(event & flag for event in events)), None
    )
    if number == errno.EBADF:
        with suppress(OSError):
            os.fstat(fd)
            return None  # macOS also reports POLLNVAL for open devices such as /dev/null
    return number


def discard_output(stream: Any) -> None:
    """Discard all further output of a stream.

    Otherwise Python would flush the stream at exit, and print an error.
    """
    with suppress(OSError, ValueError, AttributeError):
        fd, null_fd = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_fd, fd)
        os.close(null_fd)


@contextmanager
def ignore_closed_reader(stream: Any) -> Iterator[None]:
    """If the stream's reader is closed in this block, ignore the error and discard the output."""
    try:
        yield
        if stream is not None:
            stream.flush()
    except OSError as error:
        if not is_reader_gone(error, stream):
            raise
        discard_output(stream)


def print_error(line: str) -> None:
    """Print a line on standard error, ignoring a closed reader."""
    with suppress(OSError), ignore_closed_reader(sys.stderr):
        if sys.stderr is not None:  # print would replace None by standard output
            print(line, file=sys.stderr)


MAX_WRITE_LETTERS = 2**12  # lines are joined to one write up to about this many characters
PrintedCallback = Callable[[], Any]


def do_nothing() -> None:
    """Do nothing. This is the default callback."""


class LinePrinter:
    """Prints lines in order, in a separate thread, because a terminal may block for hours.

    ``write_error``: the first error in writing to a stream, for example because a disk is full.
    """

    def __init__(self) -> None:
        self._lines: Deque[Tuple[str, str, PrintedCallback]] = deque()
        self._available = threading.Semaphore(0)
        self._thread: Optional[threading.Thread] = None
        self._count = 0  # lines received
        self._done = 0  # lines printed
        self.write_error: Optional[OSError] = None

    @property
    def pending_lines(self) -> int:
        """Number of lines that have not been printed yet."""
        return self._count - self._done

    def print(self, stream: str, line: str, printed: PrintedCallback = do_nothing) -> None:
        """Print to ``stdout`` or ``stderr`` in another thread, and then call ``printed``."""
        if self._thread is None:
            # a daemon thread, so that the process can exit while a terminal blocks
            self._thread = threading.Thread(target=self._print_lines, name="console", daemon=True)
            self._thread.start()
        self._count += 1
        self._lines.append((stream, f"{line}\n", printed))
        self._available.release()

    def _print_lines(self) -> None:
        """Run in the printing thread: print queued lines in batches, and call their callbacks."""
        while True:
            self._available.acquire()
            stream, text, printed = self._lines.popleft()
            callbacks = [printed]
            while self._lines and self._lines[0][0] == stream and len(text) < MAX_WRITE_LETTERS:
                self._available.acquire()
                _, next_text, printed = self._lines.popleft()
                text += next_text
                callbacks.append(printed)
            try:
                _write_directly(getattr(sys, stream), text)
            except OSError as error:
                self.write_error = self.write_error or error
            for printed in callbacks:
                printed()
            self._done += len(callbacks)


def _write_directly(stream: Any, text: str) -> None:
    """Write to the stream's descriptor, without Python's buffer.

    If this thread were blocked while it held the buffer's lock, Python could not exit.
    """
    try:
        fd = stream.fileno()
    except (OSError, ValueError, AttributeError):  # None, or not a stream of the system
        if stream is not None:
            stream.write(text)
        return
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another process has made the stream non-blocking
            with suppress(OSError):
                select.select([], [fd], [])
        except OSError as error:
            if not is_reader_gone(error, stream):
                raise
            discard_output(stream)
