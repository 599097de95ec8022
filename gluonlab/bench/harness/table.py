"""What the tables of all measurements have in common; none is wider than a terminal."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from statistics import median
from typing import Iterable, Optional, Sequence

from gluonlab.bench.harness.interval import ratio
from gluonlab.bench.harness.record import Series

WIDTH = 80


def table(lines: Iterable[str], *notes: str) -> str:
    """The lines of a table, then what its columns mean: each note is a paragraph."""
    return "\n\n".join(["\n".join(lines), *(textwrap.fill(note, WIDTH) for note in notes)])


def missing(label: str, reason: Optional[str]) -> str:
    """The line of a row that has no numbers: its label, and as much of the reason as fits."""
    why = textwrap.shorten(reason or "not measured", WIDTH - len(label), placeholder="...")
    return f"{label}{why}"


def interleaved(rounds: int) -> str:
    """``9 interleaved rounds``."""
    return f"{rounds} interleaved round{'s' * (rounds > 1)}"


def microseconds(seconds: Optional[float]) -> str:
    """``12.3`` or, from a millisecond on, ``1,234``; ``-`` for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.1f}"


def times(factor: Optional[float]) -> str:
    """``1.01 x``, or ``12 x`` from ten on; ``-`` for None."""
    if factor is None:
        return "-"
    return f"{factor:,.0f} x" if factor >= 10 else f"{factor:.2f} x"


def outcome(claim: str, shown: Optional[str], reached: bool) -> str:
    """``claim: 1.60x reached``, ``claim: 1.59x not reached`` or ``claim: not measured``."""
    if shown is None:
        return f"{claim}: not measured"
    return f"{claim}: {shown} {'reached' if reached else 'not reached'}"


@dataclass(frozen=True)
class ThroughputRow:
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


def make_row(one: Series, above: Sequence[float], below: Sequence[float]) -> ThroughputRow:
    """The row of a series; ``above`` and ``below`` are the rates of its ratio, by round."""
    if not one.values:
        return ThroughputRow(one.name, one.label, reason=one.reason)
    extent = (median(one.values), min(one.values), max(one.values))
    return ThroughputRow(
        one.name, one.label, *extent, ratio(above, below) if above and below else None
    )


def heading(title: str, label_width: int, ratio: str) -> str:
    """The line above the rows: ``title`` over the labels, ``ratio`` over the ratios."""
    return f"{title:<{label_width}}{'images/s':>9}   {'lowest..highest':>17}   {ratio:>17}"


def line(row: ThroughputRow, label_width: int) -> str:
    """A row as text."""
    if row.images_per_second is None:
        return missing(f"{row.label:<{label_width - 5}}  ", row.reason)
    extent = f"{row.lowest:,.0f}..{row.highest:,.0f}"
    times = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    rate = f"{row.images_per_second:>9,.0f}"
    return f"{row.label:<{label_width}}{rate}   {extent:>17}   {times:>17}"
