"""Text and numbers made fit for a terminal, a file's name, one line, or JSON's readers."""

from __future__ import annotations

import json
import math
import re
import textwrap
import unicodedata
from itertools import zip_longest
from typing import Any, List, Sequence

LONGEST_NAME = 100  # characters of a name that becomes part of a folder's
LONGEST_WORD, LONGEST_LINE = 300, 3000  # characters of an error message
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def printable(text: str) -> str:
    r"""The text on one line, without effect on a terminal: \n for a line's end, \x1b for escape.

    Whatever Python does not call printable is written as in its source: control characters, those
    that turn the direction of writing, spaces other than the usual one, and bytes that are no text.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def width(text: str) -> int:
    """The columns that a text takes in a fixed-width font: two for a Chinese or Japanese letter."""
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1
        for c in text
    )


def padded(text: str, columns: int) -> str:
    """The text with spaces behind it, so that it takes so many columns."""
    return text + " " * (columns - width(text))


def plain_name(text: str, otherwise: str) -> str:
    """The text as part of a file's name: ASCII letters, digits, ``.``, ``_`` and ``-`` alone.

    ``otherwise``: what stands for a text of which nothing is left.
    """
    return _NOT_PLAIN.sub("-", text)[:LONGEST_NAME].strip("-") or otherwise


def is_plain_name(text: str) -> bool:
    """Whether it can be part of a file's name as it is, and leads nowhere else."""
    return bool(text.strip(".")) and len(text) <= 255 and not _NOT_PLAIN.search(text)


def named(names: Sequence[str], shown: int = 3) -> str:
    """``dense0_weight, dense0_bias and 4 more``."""
    first, more = ", ".join(names[:shown]), len(names) - shown
    return f"{first} and {more} more" if more > 0 else first


def decimals(value: float, places: int) -> str:
    """The number with so many decimals; a small loss that rounding made negative is 0."""
    text = f"{value:.{places}f}"
    return text if text.strip("-0.") else text.lstrip("-")


def one_line(text: str) -> str:
    """An error message on one line that a person can read, whatever values stand in it."""
    words = (_cut(word, LONGEST_WORD) for word in printable(" ".join(text.split())).split(" "))
    return _cut(" ".join(words), LONGEST_LINE)


def _cut(text: str, most: int) -> str:
    """The text without its middle if it is longer than ``most`` characters."""
    third = most // 3
    return text if len(text) <= most else f"{text[:third]}...{text[-third:]}"


def json_text(value: Any) -> str:
    """A document of plain values, on one line. NaN and infinity, which JSON has not, are null.

    >>> json_text({"loss": float("nan"), "rates": (1, 0.5)})
    '{"loss": null, "rates": [1, 0.5]}'
    """
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip


def in_words(size_bytes: int) -> str:
    """``64 MiB``, ``46 MB``: with the largest unit that leaves a whole number.

    >>> in_words(46_000_000), in_words(2**26), in_words(1001)
    ('46 MB', '64 MiB', '1001 B')
    """
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if size_bytes and size_bytes % UNITS[unit.lower()] == 0:
            return f"{size_bytes // UNITS[unit.lower()]} {unit}"
    return f"{size_bytes} B"


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
