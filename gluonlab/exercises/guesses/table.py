"""A table of surprises in 80 columns, of which a Japanese character takes two."""

from __future__ import annotations

import unicodedata
from itertools import zip_longest
from typing import Iterator, List, NamedTuple, Sequence

from gluonlab.exercises.languages import say
from gluonlab.plain import padded, width

WIDTH = 80
_NEVER_FIRST = "\u3001\u3002\uff09\u300d\u300f\uff1a\uff01\uff1f"  # commas, closing brackets
_COLUMNS = (6, 38, 17, 17)  # id, question, guess, measured; two of each are left empty


class Row(NamedTuple):
    """One surprise, in the language of the notebook."""

    id: str
    question: str
    guessed: str
    measured: str
    why: str


def as_table(rows: Sequence[Row]) -> str:
    """The rows below a heading, each with its explanation beneath it."""
    heading = ("", "", say(en="your guess", ja="予想"), say(en="measured", ja="測定"))
    return "\n".join(
        [*_line(heading), "-" * WIDTH, *(line for row in rows for line in _lines_of(row))]
    )


def _lines_of(row: Row) -> Iterator[str]:
    yield from _line(row[:4])
    indent = " " * _COLUMNS[0]
    why = say(en="because: ", ja="理由: ") + row.why
    yield from (indent + line for line in wrapped(why, WIDTH - len(indent)))


def _line(cells: Sequence[str]) -> Iterator[str]:
    """The cells side by side, each on as many lines as it needs."""
    columns = [wrapped(cell, size - 2) for cell, size in zip(cells, _COLUMNS)]
    for parts in zip_longest(*columns, fillvalue=""):
        yield "".join(map(padded, parts, _COLUMNS)).rstrip()


def wrapped(text: str, most: int) -> List[str]:
    """The text in lines of at most ``most`` columns; Japanese may break anywhere but before 、。"""
    lines, line = [], ""
    for piece in _pieces(text):
        if line and width((line + piece).rstrip()) > most:
            lines.append(line.rstrip())
            line = ""
        piece = piece if line else piece.lstrip()
        while width(piece.rstrip()) > most:  # one word that is longer than a line
            end = next(i for i in range(len(piece), 0, -1) if width(piece[:i]) <= most)
            lines.append(piece[:end])
            piece = piece[end:]
        line += piece
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _pieces(text: str) -> Iterator[str]:
    """What no line may break: words with their space, and Japanese characters."""
    piece = ""
    for character in text:
        wide = unicodedata.east_asian_width(character) in "WF"
        closing = character in _NEVER_FIRST
        if piece and not closing and (wide or piece[-1] == " " or width(piece[-1]) == 2):
            yield piece
            piece = ""
        piece += character
    if piece:
        yield piece
