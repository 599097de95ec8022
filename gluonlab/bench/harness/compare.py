"""Two records of one measurement, row by row: how much faster is the second, and how sure is
that?
"""

from __future__ import annotations

import statistics
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from gluonlab.bench.harness.interval import Ratio, of_pairs, of_separate
from gluonlab.bench.harness.record import Record, Series, read_record
from gluonlab.errors import ConfigError

LABEL_WIDTH = 34


@dataclass(frozen=True)
class Row:
    """A series of both records: medians in ``unit``, and the second's speed over the first's."""

    name: str
    unit: str
    first: Optional[float]
    second: Optional[float]
    ratio: Optional[Ratio]

    def as_json(self) -> Dict[str, Any]:
        """Plain values."""
        ratio = None if self.ratio is None else vars(self.ratio)
        return {
            "name": self.name,
            "unit": self.unit,
            "first": self.first,
            "second": self.second,
            "ratio": ratio,
        }


@dataclass(frozen=True)
class Comparison:
    """The rows of one measurement. ``in_turns``: the rounds belong together."""

    title: str
    rows: List[Row]
    in_turns: bool
    notes: List[str]


def compare(first: Record, second: Record) -> Comparison:
    """Raises ConfigError for records of different measurements, which nothing can be said of."""
    if (first.bench, dict(first.options)) != (second.bench, dict(second.options)):
        raise ConfigError(
            f"{first.title} and {second.title} are different measurements: "
            "compare records of the same one"
        )
    in_turns = first.turns == second.turns
    both, rows = {one.name: one for one in first.series}, []
    for one in second.series:
        if one.name in both:
            a, b = both[one.name], one
            ratio = None
            if a.values and b.values:
                ratio = (of_pairs if in_turns else of_separate)(b.speeds(), a.speeds())
            rows.append(Row(one.name, one.unit, _median(a), _median(b), ratio))
    return Comparison(second.title, rows, in_turns, _notes(first, second, in_turns))


def _median(series: Series) -> Optional[float]:
    return statistics.median(series.values) if series.values else None


def _notes(first: Record, second: Record, in_turns: bool) -> List[str]:
    """What speaks against the comparison."""
    notes = []
    if not in_turns:
        notes.append(
            "The records were not measured in turns: a machine that changed between them changes "
            "every row."
        )
    for name in ("cpu", "cores", "versions"):
        a, b = first.about.get(name), second.about.get(name)
        if a != b:
            notes.append(f"{name}: {a} and {b}.")
    for what, record in (("first", first), ("second", second)):
        others = record.about.get("others", 0.0)
        if isinstance(others, float) and others > 0.2:
            notes.append(f"Other processes kept {others:.1f} cores busy during the {what}.")
    return notes


def pairs_of_records(first: Path, second: Path) -> List[Tuple[Record, Record]]:
    """Two files, or the files of equal names in two folders.

    Raises ConfigError when there are none, and DataError.
    """
    if first.is_dir() != second.is_dir():
        raise ConfigError(f"{first} and {second}: give two files, or two folders")
    if not first.is_dir():
        return [(read_record(first), read_record(second))]
    names = sorted(path.name for path in first.glob("*.json") if (second / path.name).exists())
    if not names:
        raise ConfigError(
            f"{first} and {second} have no records of the same name: "
            "give folders that make bench wrote"
        )
    return [(read_record(first / name), read_record(second / name)) for name in names]


def table(comparison: Comparison, width: int = 80) -> str:
    """The rows as text, at most ``width`` columns wide."""
    heading = (
        f"{comparison.title:<{LABEL_WIDTH}}{'first':>9} {'second':>9}  {'speed':>5}  "
        f"{'95 % interval':>14}"
    )
    return "\n".join([heading, *(_line(row) for row in comparison.rows)])


def notes(comparisons: Sequence[Comparison], width: int = 80) -> str:
    """What the columns are, and what speaks against the comparison, each thing said once."""
    explained = (
        "first, second: medians over the rounds. speed: "
        "the second's over the first's, above 1 where the second is faster; "
        "the median of the rounds' ratios."
    )
    said = dict.fromkeys(note for comparison in comparisons for note in comparison.notes)
    return "\n".join(textwrap.fill(note, width) for note in (explained, *said))


def _line(row: Row) -> str:
    label = textwrap.shorten(f"{row.name}, {row.unit}", LABEL_WIDTH - 1, placeholder="...")
    cells = "".join(
        f"{'-' if value is None else _digits(value):>9} " for value in (row.first, row.second)
    )
    return f"{label:<{LABEL_WIDTH}}{cells} {'-' if row.ratio is None else row.ratio}"


def _digits(value: float) -> str:
    """At least three digits, without exponents: 5,023  138  11.1  0.0123."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def slower(comparisons: Sequence[Comparison], limit: float) -> List[str]:
    """The rows whose whole interval lies below ``limit``."""
    return [
        f"{comparison.title}: {row.name}"
        for comparison in comparisons
        for row in comparison.rows
        if row.ratio is not None and row.ratio.below(limit)
    ]
