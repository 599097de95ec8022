"""Text and numbers of unknown origin, made fit for a terminal, a file's name or one line."""

from __future__ import annotations

import re
import unicodedata
from typing import Sequence

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
