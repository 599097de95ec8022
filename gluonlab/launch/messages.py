"""What launcher and agents tell each other: a JSON object a line."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, AsyncIterator, Dict

LONGEST = 2**20  # bytes of a message
Message = Dict[str, Any]


def send(writer: asyncio.StreamWriter, **message: Any) -> None:
    """Queue a message; to one who has gone it is lost."""
    with suppress(OSError, RuntimeError):
        writer.write(json.dumps(message).encode() + b"\n")


async def received(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """The messages until the other end is closed, or says what is none."""
    while True:
        try:
            line = await reader.readline()
            message = json.loads(line)
        except (OSError, ValueError, RecursionError):  # too long, cut off, or no JSON
            return
        if not isinstance(message, dict):
            return
        yield message
