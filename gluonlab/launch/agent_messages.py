"""Messages between the launcher and its agents. Each message is one line with a JSON object.

AGENT_MESSAGES and LAUNCHER_MESSAGES list the valid messages from an agent and from the launcher.
The module also contains helpers for both sides, which split a stream into lines, set timeouts and
detect that the other side is silent.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from contextlib import suppress
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Mapping, NoReturn, Optional, Tuple, TypeVar

from gluonlab.errors import RunError
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL
from gluonlab.plain_text import one_line

MAX_MESSAGE_BYTES = 2**20  # bytes of a message
MAX_SECONDS = 1e9
MAX_QUOTED_LETTERS = 100  # letters of an invalid message that are quoted
LINE_PIECE_BYTES = 2**16  # longer lines are cut into pieces of this many bytes
BEAT_S = 1.0  # seconds between two signs of life, between launcher and agent, each way
MAX_TICK_S = 1.5 * BEAT_S  # largest step of LivenessClock from one reading to the next
Result = TypeVar("Result")
Message = Dict[str, Any]
ReceivedMessage = Tuple[Any, Message]  # the sender's connection, and its message
Check = Callable[[Any], bool]
# The forms of valid messages, by the key that identifies the form. A form maps each key of a
# message to the check of its value.
MessageForms = Mapping[str, Mapping[str, Check]]


def _is_whole_number(least: int, most: int) -> Check:
    # type(), because isinstance(True, int)
    return lambda value: type(value) is int and least <= value <= most


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_SECONDS


def _is_valid_utf8(value: Any) -> bool:
    """Check if a value is text without lone surrogates, so that it can be encoded as UTF-8."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _is_name(value: Any) -> bool:
    return _is_valid_utf8(value) and len(value) <= 255


def _is_argument(value: Any) -> bool:
    """Check if a value can be an argument of a process. Arguments need not be valid UTF-8."""
    with suppress(UnicodeEncodeError):
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    return False


def _is_variable_name(value: Any) -> bool:
    return _is_argument(value) and value != "" and "=" not in value


def _is_one_of(*choices: Any) -> Check:
    return lambda value: any(type(value) is type(choice) and value == choice for choice in choices)


def _is_list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_dict_of(key_check: Check, value_check: Check) -> Check:
    return lambda value: (
        isinstance(value, dict) and all(key_check(name) and value_check(item) for name, item in value.items())
    )


# Messages of an agent. A key that ends with ? may be missing.
AGENT_MESSAGES: MessageForms = {
    # The first message: the agent's hostname, pid, IPv4 addresses with their interfaces, its
    # address, the launcher's address, and its rank and size if a scheduler started it.
    "hostname": {
        "hostname": _is_name, "pid": _is_whole_number(1, 2**31 - 1), "addresses": _is_dict_of(_is_name, _is_name),
        "address?": _is_name, "launcher_address?": _is_name,
        "rank?": _is_whole_number(0, 2**31), "size?": _is_whole_number(1, 2**31),
    },
    "heartbeat": {"heartbeat": _is_one_of(True)},
    # the port that the agent has reserved
    "port": {"port": _is_whole_number(1, 65535)},
    # the reason why the port could not be reserved
    "port_error": {"port_error": _is_valid_utf8},
    # a line of a process's output; stream "status" is for the statuses that a process reports
    "line": {"process": _is_name, "stream": _is_one_of("out", "err", "status"), "line": _is_valid_utf8},
    # for how long a process has been suspended
    "suspended_s": {"process": _is_name, "suspended_s": _is_seconds},
    # a process has ended, or could not be started (error)
    "exit_status": {"process": _is_name, "exit_status": _is_whole_number(-255, 255), "error?": _is_valid_utf8},
    # all processes have ended, after the launcher's "end"
    "all_ended": {"all_ended": _is_one_of(True)},
    # a signal that the agent has received
    "signal": {"signal": _is_one_of(*map(int, EXCEPTION_BY_SIGNAL))},
}  # fmt: skip
# Messages of the launcher.
LAUNCHER_MESSAGES: MessageForms = {
    "heartbeat": {"heartbeat": _is_one_of(True)},
    # the longest silence of the launcher after which the agent still waits
    "patience": {"patience": _is_seconds},
    # a request to reserve this port, or any port for 0
    "port": {"port": _is_whole_number(0, 65535)},
    # a request to start a process: its name, command, folder and variables
    "start": {
        "start": _is_name, "words": _is_list_of(_is_argument), "folder": _is_argument,
        "environment": _is_dict_of(_is_variable_name, _is_argument), "program?": _is_one_of(True, False),
    },
    # the number of letters that were printed since the last such message
    "printed": {"printed": _is_whole_number(0, 2**53)},
    # a signal to send to processes
    "signal": {"signal": _is_one_of(*map(int, EXCEPTION_BY_SIGNAL)), "processes": _is_list_of(_is_name)},
    # a request to stop all processes
    "end": {"end": _is_one_of(True)},
    # the launcher's exit status, after which the agent's own process exits
    "exit_status": {"exit_status": _is_whole_number(0, 255)},
}  # fmt: skip


class BadMessage(RunError):
    """Error for an invalid message from the other side. ``line`` is the start of the message.

    ``fault``: what is wrong with the message if ``line`` is unknown
    """

    def __init__(self, line: str, fault: str = "") -> None:
        self.line = line if len(line) <= MAX_QUOTED_LETTERS else f"{line[:MAX_QUOTED_LETTERS]}..."
        self.description = fault or one_line(repr(self.line))
        super().__init__(f"sent {fault}" if fault else f"sent an invalid message: {self.description}")


def send_message(writer: asyncio.StreamWriter, **message: Any) -> None:
    """Queue a message. If the other side has disappeared, the message is lost without an error."""
    with suppress(OSError, RuntimeError):
        writer.write(json.dumps(message).encode() + b"\n")


async def receive_messages(reader: asyncio.StreamReader, forms: MessageForms) -> AsyncIterator[Message]:
    """Yield messages until the other side closes the stream.

    Raises BadMessage for a message that matches none of the ``forms``.
    """
    while True:
        try:
            line = await reader.readline()
        except OSError:
            return
        except ValueError:
            raise BadMessage("", fault=f"a line of more than {MAX_MESSAGE_BYTES:,} bytes") from None
        if not line.endswith(b"\n"):
            # A line with { is a truncated message, which is ignored.
            if line and not line.startswith(b"{"):
                raise BadMessage(line.decode("utf-8", "replace"))
            return
        yield parse_message(line, forms)


def parse_message(line: bytes, forms: MessageForms) -> Message:
    """Parse a line as a message that matches one of the ``forms``. Raises BadMessage."""
    text = line.decode("utf-8", "replace").rstrip("\n")
    try:
        message = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise BadMessage(text) from None
    if not isinstance(message, dict) or not any(_matches_form(message, form) for form in forms.values()):
        raise BadMessage(text)
    return message


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)  # NaN and Infinity are not JSON


def _matches_form(message: Message, form: Mapping[str, Check]) -> bool:
    """Check if a message has the keys of ``form``, with values that pass the form's checks."""
    checks = {key.rstrip("?"): check for key, check in form.items()}
    required = {key for key in form if not key.endswith("?")}
    return required <= message.keys() <= checks.keys() and all(checks[key](value) for key, value in message.items())


# --- Lines and time


async def read_lines(reader: asyncio.StreamReader, longest: int = LINE_PIECE_BYTES) -> AsyncIterator[str]:
    """Yield the lines of a stream. Lines of more than ``longest`` bytes are cut into pieces."""
    rest, data = b"", b"more"
    while data:
        data = await reader.read(longest)
        *lines, rest = (rest + data).split(b"\n")
        pieces = [piece for line in lines for piece in _split_line(line, longest)]
        *more, rest = _split_line(rest, longest)
        for piece in [*pieces, *more]:
            yield piece.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _split_line(line: bytes, longest: int) -> List[bytes]:
    """Cut a line into pieces of at most ``longest`` bytes, without splitting a UTF-8 character."""
    pieces = []
    while len(line) > longest:
        ends = range(longest, max(longest - 4, 0), -1)  # a letter has at most four bytes
        end = next((end for end in ends if line[end] & 0xC0 != 0x80), longest)
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


class LivenessClock:
    """A clock in seconds that does not count the time during which this process could not run.

    A process that is stopped, frozen or waiting for a disk receives no messages. This time must not
    count as silence of the other side, so each call advances the clock by at most MAX_TICK_S. The
    process therefore has to call the clock regularly.
    """

    def __init__(self) -> None:
        self._seconds, self._last = 0.0, time.monotonic()

    def __call__(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._last, MAX_TICK_S)
        self._last = now
        return self._seconds


liveness_clock = LivenessClock()


async def run_with_timeout(seconds: float, work: Awaitable[Result]) -> Result:
    """Return the result of ``work``.

    After a timeout, cancel the work and raise asyncio.TimeoutError.
    """
    # Before Python 3.12, asyncio.wait_for loses a cancellation that comes when ``work`` finishes.
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
            task.exception()  # otherwise asyncio warns of an exception that nobody retrieved


async def next_message(inbox: asyncio.Queue[ReceivedMessage], seconds: float) -> Optional[ReceivedMessage]:
    """Return the oldest message in ``inbox``; None if no message arrives within ``seconds``."""
    if not inbox.empty():
        return inbox.get_nowait()
    try:
        return await run_with_timeout(seconds, inbox.get())
    except asyncio.TimeoutError:
        return None
