"""Lines of what processes print, however long they are."""

from __future__ import annotations

import asyncio
from typing import AsyncIterator

PIECE = 2**16  # bytes of a line that are passed on at once


async def lines_of(reader: asyncio.StreamReader, longest: int = PIECE) -> AsyncIterator[str]:
    """The lines of a stream; one of more bytes than ``longest`` in pieces, none cuts a letter."""
    rest, piece = b"", b"more"
    while piece:
        piece = await reader.read(longest)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            while len(line) > longest:
                place = _between_letters(line, longest)
                yield line[:place].decode("utf-8", "replace")
                line = line[place:]
            yield line.decode("utf-8", "replace")
        while len(rest) > longest:
            place = _between_letters(rest, longest)
            yield rest[:place].decode("utf-8", "replace")
            rest = rest[place:]
    if rest:
        yield rest.decode("utf-8", "replace")


def _between_letters(line: bytes, longest: int) -> int:
    """The last place up to ``longest`` where no letter of UTF-8, of four bytes at most, is cut."""
    places = range(longest, max(longest - 4, 0), -1)
    return next((place for place in places if line[place] & 0xC0 != 0x80), longest)
