"""What launcher and agents tell each other: a JSON object a line, of one of the forms below.

And what both ends need to read it: the lines of a stream, however long they are; a queue's next
message; and the time, as this process has seen it, by which it judges whether others are silent.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from contextlib import suppress
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    List,
    Mapping,
    NoReturn,
    Optional,
    Tuple,
    TypeVar,
)

from gluonlab.errors import RunError
from gluonlab.host.signals import RAISED
from gluonlab.plain_text import one_line

LONGEST = 2**20  # bytes of a message
MOST_SECONDS = 1e9
QUOTED = 100  # letters of what is no message
PIECE = 2**16  # bytes of a line that are passed on at once
BEAT = 1.0  # seconds between two signs of life, between launcher and agent, each way
LATE = 1.5 * BEAT  # the most that counts between two looks at this clock, one each BEAT
Result = TypeVar("Result")
Message = Dict[str, Any]
Received = Tuple[Any, Message]  # and who has sent it
Check = Callable[[Any], bool]
Forms = Mapping[str, Mapping[str, Check]]  # by the key that only this form has


def _whole(least: int, most: int) -> Check:
    return lambda value: type(value) is int and least <= value <= most  # True is no number


def _seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST_SECONDS


def _text(value: Any) -> bool:
    """What can be printed: no half of a pair of surrogates."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _name(value: Any) -> bool:
    return _text(value) and len(value) <= 255


def _word(value: Any) -> bool:
    """What a process can be given, which need not be text."""
    with suppress(UnicodeEncodeError):
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    return False


def _variable(value: Any) -> bool:
    return _word(value) and value != "" and "=" not in value


def _is(*choices: Any) -> Check:
    return lambda value: any(type(value) is type(each) and value == each for each in choices)


def _each(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _pairs(key: Check, of_key: Check) -> Check:
    return lambda value: (
        isinstance(value, dict) and all(key(k) and of_key(v) for k, v in value.items())
    )


# A key that ends with ? may be missing.
OF_AGENT: Forms = {
    "here": {
        "here": _name, "pid": _whole(1, 2**31 - 1), "addresses": _pairs(_name, _name),
        "address?": _name, "seen_by?": _name, "rank?": _whole(0, 2**31), "size?": _whole(1, 2**31),
    },
    "beat": {"beat": _is(True)},
    "port": {"port": _whole(1, 65535)},
    "taken": {"taken": _text},
    "line": {"of": _name, "stream": _is("out", "err", "came"), "line": _text},
    "stopped": {"stopped": _name, "seconds": _seconds},
    "ended": {"ended": _name, "status": _whole(-255, 255), "why?": _text},
    "all_ended": {"all_ended": _is(True)},
    "came": {"came": _is(*map(int, RAISED))},
}  # fmt: skip
OF_LAUNCHER: Forms = {
    "beat": {"beat": _is(True)},
    "patience": {"patience": _seconds},
    "port": {"port": _whole(0, 65535)},
    "start": {
        "start": _name, "words": _each(_word), "folder": _word,
        "environment": _pairs(_variable, _word), "program?": _is(True, False),
    },
    "printed": {"printed": _whole(0, 2**53)},
    "signal": {"signal": _is(*map(int, RAISED)), "to": _each(_name)},
    "end": {"end": _is(True)},
    "done": {"done": _whole(0, 255)},
}  # fmt: skip


class BadMessage(RunError):
    """The other end has said what has no form. ``line``: what it has said, shortened."""

    def __init__(self, line: str) -> None:
        self.line = line if len(line) <= QUOTED else f"{line[:QUOTED]}..."
        super().__init__(f"has said what is no message: {one_line(repr(self.line))}")


def send(writer: asyncio.StreamWriter, **message: Any) -> None:
    """Queue a message; to one who has gone it is lost."""
    with suppress(OSError, RuntimeError):
        writer.write(json.dumps(message).encode() + b"\n")


async def received(reader: asyncio.StreamReader, forms: Forms) -> AsyncIterator[Message]:
    """The messages until the other end is closed. Raises BadMessage for what has none of them."""
    while True:
        try:
            line = await reader.readline()
        except OSError:
            return
        except ValueError:
            raise BadMessage(f"a line of more than {LONGEST:,} bytes") from None
        if not line.endswith(b"\n"):
            if line and not line.startswith(b"{"):  # else a message that was cut off
                raise BadMessage(line.decode("utf-8", "replace"))
            return
        yield parsed(line, forms)


def parsed(line: bytes, forms: Forms) -> Message:
    """The message of a line. Raises BadMessage."""
    text = line.decode("utf-8", "replace").rstrip("\n")
    try:
        message = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BadMessage(text) from None
    if not isinstance(message, dict) or not any(_has(message, form) for form in forms.values()):
        raise BadMessage(text)
    return message


def _no_number(word: str) -> NoReturn:
    raise ValueError(word)  # NaN and Infinity, which JSON does not know


def _has(message: Message, form: Mapping[str, Check]) -> bool:
    checks = {key.rstrip("?"): check for key, check in form.items()}
    needed = {key for key in form if not key.endswith("?")}
    return needed <= message.keys() <= checks.keys() and all(
        checks[key](value) for key, value in message.items()
    )


# --- Lines, and time


async def lines_of(reader: asyncio.StreamReader, longest: int = PIECE) -> AsyncIterator[str]:
    """The lines of a stream; one of more bytes than ``longest`` in pieces, none cuts a letter."""
    rest, read = b"", b"more"
    while read:
        read = await reader.read(longest)
        *lines, rest = (rest + read).split(b"\n")
        whole = [piece for line in lines for piece in _pieces(line, longest)]
        *more, rest = _pieces(rest, longest)
        for piece in [*whole, *more]:
            yield piece.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _pieces(line: bytes, longest: int) -> List[bytes]:
    """The line, cut so that no piece is longer, and no letter of UTF-8 is cut."""
    pieces = []
    while len(line) > longest:
        ends = range(longest, max(longest - 4, 0), -1)  # a letter has four bytes at most
        end = next((end for end in ends if line[end] & 0xC0 != 0x80), longest)
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


class Awake:
    """A clock of seconds that stands still while nobody looks at it.

    Who was stopped, or frozen, or waited for a disk, has heard nobody in that time, and nobody was
    to blame for it.
    """

    def __init__(self) -> None:
        self._seconds, self._last = 0.0, time.monotonic()

    def __call__(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._last, LATE)
        self._last = now
        return self._seconds


awake = Awake()


async def within(seconds: float, work: Awaitable[Result]) -> Result:
    """The result of ``work``, which is ended after so many seconds. Raises asyncio.TimeoutError.

    asyncio.wait_for, before Python 3.12, loses a cancellation that comes just when ``work`` ends.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=max(seconds, 0))
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # else asyncio complains of one that came with a cancellation


async def next_message(inbox: asyncio.Queue[Received], seconds: float) -> Optional[Received]:
    """The oldest message; None if none comes in so many seconds."""
    if not inbox.empty():
        return inbox.get_nowait()
    try:
        return await within(seconds, inbox.get())
    except asyncio.TimeoutError:
        return None
