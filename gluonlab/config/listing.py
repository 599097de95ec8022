"""Names, and beside them what they mean, in the width of a terminal."""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from typing import List, Sequence

WIDTH, COLUMN = 80, 22  # columns of a line, and before the meaning begins
JOINED = "\N{NO-BREAK SPACE}"  # a space at which no line ends


def entry(name: str, *paragraphs: str) -> List[str]:
    """The lines of one name: ``paragraphs``, one below the other, none of them wider than WIDTH.

    Only a word that is too long, such as an address, begins further to the left.
    """
    meaning = [line for text in paragraphs for line in _wrapped(text)]
    if meaning and len(name) < COLUMN - 2 and len(meaning[0]) <= WIDTH - COLUMN:
        return [f"  {name:<{COLUMN - 2}}{meaning[0]}", *map(_placed, meaning[1:])]
    return [f"  {name}", *map(_placed, meaning)]


def columns(names: Sequence[str]) -> List[str]:
    """The lines of many names, in as many columns as fit into WIDTH, to be read downwards.

    >>> columns(["a", "b", "c" * 30])
    ['a  b  cccccccccccccccccccccccccccccc']
    """
    for height in range(1, len(names) + 1):
        parts = [names[first : first + height] for first in range(0, len(names), height)]
        widths = [max(map(len, part)) + 2 for part in parts]
        if sum(widths) - 2 <= WIDTH or height == len(names):
            rows = zip_longest(*parts, fillvalue="")
            return ["".join(f"{n:<{w}}" for n, w in zip(row, widths)).rstrip() for row in rows]
    return []


def _wrapped(text: str) -> List[str]:
    lines = textwrap.wrap(text, WIDTH - COLUMN, break_on_hyphens=False, break_long_words=False)
    return [line.replace(JOINED, " ") for line in lines]


def _placed(line: str) -> str:
    return " " * min(COLUMN, max(0, WIDTH - len(line))) + line
