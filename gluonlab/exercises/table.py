"""Grades as a table of comma-separated values, in which a spreadsheet executes nothing."""

from __future__ import annotations

import csv
import io
from typing import Iterable, Sequence

from gluonlab.exercises.exercise import in_order
from gluonlab.exercises.grade import Grade
from gluonlab.plain import printable

# What a formula begins with in a spreadsheet, the wide forms of East Asian keyboards included.
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def as_csv(grades: Sequence[Grade]) -> str:
    """A line per notebook: its path, a status per exercise, how many passed, note and sentences.

    Where a right answer has a cost, a column for each such exercise follows, such as ``04-6 us``.
    """
    ids = sorted({id for one in grades for id in one.statuses}, key=in_order)
    costs = sorted({id for one in grades for id in one.micros}, key=in_order)
    lines = [["notebook", *ids, "passed", "note", "sentences", *map(cost_column, costs)]]
    for one in grades:
        statuses = (one.statuses.get(id, "") for id in ids)
        said = "; ".join(f"{id}: {text}" for id, text in one.sentences.items() if text)
        micros = (f"{one.micros[id]:.3f}" if id in one.micros else "" for id in costs)
        lines.append([str(one.notebook), *statuses, str(one.passed), one.note, said, *micros])
    return in_csv(lines)


def cost_column(id: str) -> str:
    """The name of the column with what answers to this exercise cost, in microseconds."""
    return f"{id} us"


def in_csv(lines: Iterable[Sequence[str]]) -> str:
    """The lines as text, with no cell that a spreadsheet would execute."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for line in lines:
        writer.writerow(map(_plain, line))
    return out.getvalue()


def _plain(value: str) -> str:
    """A cell's text, on one line; a spreadsheet would execute what begins with one of FORMULA."""
    text = printable(value)
    return f"'{text}" if text.lstrip()[:1] in FORMULA else text
