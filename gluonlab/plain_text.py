"""Formats text and numbers for terminals, file names, one-line messages and JSON."""

from __future__ import annotations

import json
import math
import re
import textwrap
import unicodedata
from itertools import zip_longest
from typing import Any, List, Sequence

MAX_NAME = 100  # maximum length of `to_plain_name`, in characters
MAX_WORD, MAX_LINE = 300, 3000  # maximum lengths of a word and a line of an error message
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def escape_unprintable(text: str) -> str:
    r"""Escape unprintable characters as in Python's source: \n for a newline, \x1b for escape.

    Control characters, characters that change the writing direction, unusual spaces, and bytes that
    are not text are unprintable.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def column_width(text: str) -> int:
    """Return the width of a text in terminal columns. Chinese and Japanese characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def pad_to_columns(text: str, columns: int) -> str:
    """Pad a text with spaces to a number of columns."""
    return text + " " * (columns - column_width(text))


def to_plain_name(text: str, otherwise: str) -> str:
    """Convert a text to part of a file name: ASCII letters, digits, ``.``, ``_`` and ``-``.

    Returns ``otherwise`` if the text contains no such characters.
    """
    return _NOT_PLAIN.sub("-", text)[:MAX_NAME].strip("-") or otherwise


def is_plain_name(text: str) -> bool:
    """Return whether a text can be used as part of a file name without `to_plain_name`."""
    return bool(text.strip(".")) and len(text) <= 255 and not _NOT_PLAIN.search(text)


def shorten_names(names: Sequence[str], shown: int = 3) -> str:
    """Return the first ``shown`` names as text: ``dense0_weight, dense0_bias and 4 more``."""
    listed, omitted = ", ".join(names[:shown]), len(names) - shown
    return f"{listed} and {omitted} more" if omitted > 0 else listed


def format_decimals(value: float, places: int) -> str:
    """Format a number with fixed decimals. Small negative numbers become 0.00, not -0.00."""
    text = f"{value:.{places}f}"
    return text if text.strip("-0.") else text.lstrip("-")


def one_line(text: str) -> str:
    """Return an error message as one readable line.

    White space is collapsed, unprintable characters are escaped, and the middle of long words and
    of a long line is cut out.
    """
    shortened = (_cut_middle(word, MAX_WORD) for word in escape_unprintable(" ".join(text.split())).split(" "))
    return _cut_middle(" ".join(shortened), MAX_LINE)


def _cut_middle(text: str, most: int) -> str:
    """Remove the middle of a text that is longer than ``most`` characters."""
    third = most // 3
    return text if len(text) <= most else f"{text[:third]}...{text[-third:]}"


def json_text(value: Any) -> str:
    """Return plain values as JSON on one line. NaN and infinity become null.

    >>> json_text({"loss": float("nan"), "rates": (1, 0.5)})
    '{"loss": null, "rates": [1, 0.5]}'
    """
    return json.dumps(_replace_nonfinite(value), allow_nan=False)


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    return [_replace_nonfinite(item) for item in value] if isinstance(value, (list, tuple)) else value


UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip


def format_size(size_bytes: int) -> str:
    """Format a size in bytes with the largest unit in which it is a whole number.

    >>> format_size(46_000_000), format_size(2**26), format_size(1001)
    ('46 MB', '64 MiB', '1001 B')
    """
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if size_bytes and size_bytes % UNITS[unit.lower()] == 0:
            return f"{size_bytes // UNITS[unit.lower()]} {unit}"
    return f"{size_bytes} B"


WIDTH, COLUMN = 80, 22  # `wrap_entry`: columns of a line, and columns before the paragraphs
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"  # a space at which a line is not wrapped


def wrap_entry(name: str, *paragraphs: str) -> List[str]:
    """Format lines with a name in the left column, and the name's paragraphs in the right column.

    Lines are wrapped to WIDTH. A word that is too long for the right column, such as an address,
    starts further to the left.
    """
    lines = [line for text in paragraphs for line in _wrap_text(text)]
    if lines and len(name) < COLUMN - 2 and len(lines[0]) <= WIDTH - COLUMN:
        return [f"  {name:<{COLUMN - 2}}{lines[0]}", *map(_indent_line, lines[1:])]
    return [f"  {name}", *map(_indent_line, lines)]


def format_columns(names: Sequence[str]) -> List[str]:
    """Arrange names in as many columns as fit into WIDTH; the names run down the columns.

    >>> format_columns(["a", "b", "c" * 30])
    ['a  b  cccccccccccccccccccccccccccccc']
    """
    for height in range(1, len(names) + 1):
        parts = [names[first : first + height] for first in range(0, len(names), height)]
        widths = [max(map(len, part)) + 2 for part in parts]
        if sum(widths) - 2 <= WIDTH or height == len(names):
            rows = zip_longest(*parts, fillvalue="")
            return ["".join(f"{n:<{w}}" for n, w in zip(row, widths)).rstrip() for row in rows]
    return []


def _wrap_text(text: str) -> List[str]:
    lines = textwrap.wrap(text, WIDTH - COLUMN, break_on_hyphens=False, break_long_words=False)
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]


def _indent_line(line: str) -> str:
    return " " * min(COLUMN, max(0, WIDTH - len(line))) + line
