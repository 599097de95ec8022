"""Standard output and standard error, whose readers may go away: ``| head -1``, ``>&-``."""

from __future__ import annotations

import errno
import os
import select
import sys
from contextlib import contextmanager, suppress
from typing import Any, Iterator, Optional

# terminal, pipe, and what was closed before: how a poll tells of it, and how writing would
GONE = {
    select.POLLHUP: errno.EIO,
    select.POLLERR: errno.EPIPE,
    select.POLLNVAL: errno.EBADF,
}


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
