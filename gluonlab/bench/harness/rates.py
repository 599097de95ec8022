"""Rows of images/s: median and extent over the rounds, and the ratio to a reference row."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import List, Optional, Sequence

from gluonlab.bench.harness import text
from gluonlab.bench.harness.interval import ratio
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Measurement


@dataclass(frozen=True)
class Row:
    """Images/s over the rounds, or the ``reason`` why there are none.

    ``ratio``: the median of the rounds' ratios to, or of, a reference row; the table says which.
    """

    name: str
    label: str
    images_per_second: Optional[float] = None
    lowest: Optional[float] = None
    highest: Optional[float] = None
    ratio: Optional[float] = None
    reason: Optional[str] = None


def series(measurements: Sequence[Measurement]) -> List[Series]:
    """Images/s of each subject, by round."""
    return [
        Series(one.subject.name, one.subject.label, "images/s", one.rates(), one.reason)
        for one in measurements
    ]


def make_row(one: Series, above: Sequence[float], below: Sequence[float]) -> Row:
    """The row of a series; ``above`` and ``below`` are the rates of its ratio, by round."""
    if not one.values:
        return Row(one.name, one.label, reason=one.reason)
    extent = (median(one.values), min(one.values), max(one.values))
    return Row(one.name, one.label, *extent, ratio(above, below) if above and below else None)


def heading(title: str, label_width: int, ratio: str) -> str:
    """The line above the rows: ``title`` over the labels, ``ratio`` over the ratios."""
    return f"{title:<{label_width}}{'images/s':>9}   {'lowest..highest':>17}   {ratio:>17}"


def line(row: Row, label_width: int) -> str:
    """A row as text."""
    if row.images_per_second is None:
        return text.missing(f"{row.label:<{label_width - 5}}  ", row.reason)
    extent = f"{row.lowest:,.0f}..{row.highest:,.0f}"
    times = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    rate = f"{row.images_per_second:>9,.0f}"
    return f"{row.label:<{label_width}}{rate}   {extent:>17}   {times:>17}"
