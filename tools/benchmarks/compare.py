"""Comparison of two records of one measurement: speed ratios per row, with intervals."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Iterator, List, Optional, Sequence, Tuple

import click

from benchmarks.rates import Ratio, paired_ratio, unpaired_ratio
from gluonlab.bench.harness import table_format as text
from gluonlab.bench.harness.machine_info import BUSY_CORES
from gluonlab.bench.harness.measurement_command import JSON_OPTION, option
from gluonlab.bench.harness.measurement_record import Record, Series, read_record
from gluonlab.cli.command import command
from gluonlab.config.option_checks import real_number_check
from gluonlab.errors import ConfigError, RunError
from gluonlab.plain_text import escape_unprintable, json_text

LABEL_WIDTH = 34
EXPLAINED = (
    "first, second: medians over the rounds. speed: throughput of the second relative to the "
    "first, above 1 if the second is faster; the median of the rounds' ratios."
)
NOT_IN_TURNS = "The results were not measured in turns: if the machine has changed in between, every row is affected."


@dataclass(frozen=True)
class SeriesComparison:
    """A series of both records: medians in ``unit``, and the second's speed over the first's."""

    name: str
    unit: str
    first: Optional[float]
    second: Optional[float]
    ratio: Optional[Ratio]


@dataclass(frozen=True)
class Comparison:
    """The rows of one measurement. ``in_turns``: whether rounds with equal numbers belong together."""

    title: str
    rows: List[SeriesComparison]
    in_turns: bool
    notes: List[str]


def compare(first: Record, second: Record) -> Comparison:
    """Compare the series of two records. Raises ConfigError for different measurements."""
    if (first.bench, dict(first.options)) != (second.bench, dict(second.options)):
        raise ConfigError(
            f"{first.title} and {second.title} are different measurements: compare results of the same measurement"
        )
    in_turns = first.turns == second.turns
    interval = paired_ratio if in_turns else unpaired_ratio
    first_by_name, rows = {item.name: item for item in first.series}, []
    for second_series in second.series:
        if second_series.name in first_by_name:
            first_series = first_by_name[second_series.name]
            ratio = (
                interval(second_series.speeds(), first_series.speeds())
                if first_series.values and second_series.values
                else None
            )
            rows.append(
                SeriesComparison(
                    second_series.name, second_series.unit, _median(first_series), _median(second_series), ratio
                )
            )
    return Comparison(second.title, rows, in_turns, list(_list_caveats(first, second, in_turns)))


def _median(series: Series) -> Optional[float]:
    return median(series.values) if series.values else None


def _list_caveats(first: Record, second: Record, in_turns: bool) -> Iterator[str]:
    """Yield the caveats of the comparison."""
    if not in_turns:
        yield NOT_IN_TURNS
    for name in ("cpu", "cores", "versions"):
        a, b = first.about.get(name), second.about.get(name)
        if a != b:
            yield f"{name}: {a} and {b}."
    instruction_sets = [record.about.get("instruction_set") for record in (first, second)]
    if None not in instruction_sets and instruction_sets[0] != instruction_sets[1]:  # older records have none
        yield (
            f"The CPUs used different instruction sets: {instruction_sets[0] or 'none'} and "
            f"{instruction_sets[1] or 'none'}. They affect every row."
        )
    for position, record in (("first", first), ("second", second)):
        others = record.about.get("others", 0.0)
        if isinstance(others, float) and others > BUSY_CORES:
            yield f"Other processes kept {others:.1f} cores busy during the {position}."


def pair_records(first: Path, second: Path) -> List[Tuple[Record, Record]]:
    """Return two files, or the files of equal names in two folders.

    Raises ConfigError if there are none, and DataError.
    """
    if first.is_dir() != second.is_dir():
        raise ConfigError(f"{first} and {second} are a file and a directory: pass two files, or two directories")
    if not first.is_dir():
        return [(read_record(first), read_record(second))]
    names = sorted(path.name for path in first.glob("*.json") if (second / path.name).exists())
    if not names:
        raise ConfigError(
            f"{first} and {second} contain no results files of the same name: pass directories that make bench wrote"
        )
    return [(read_record(first / name), read_record(second / name)) for name in names]


def format_comparison(comparison: Comparison) -> str:
    """Return the rows as text."""
    title = f"{comparison.title:<{LABEL_WIDTH}}"
    heading = f"{title}{'first':>9} {'second':>9}  {'speed':>5}  {'95 % interval':>14}"
    return "\n".join([heading, *map(_format_row, comparison.rows)])


def format_notes(comparisons: Sequence[Comparison]) -> str:
    """Return the meaning of the columns, and the caveats of all comparisons without duplicates."""
    caveats = dict.fromkeys(note for comparison in comparisons for note in comparison.notes)
    return "\n".join(textwrap.fill(escape_unprintable(note), text.WIDTH) for note in (EXPLAINED, *caveats))


def _format_row(row: SeriesComparison) -> str:
    name = escape_unprintable(f"{row.name}, {row.unit}")
    label = textwrap.shorten(name, LABEL_WIDTH - 1, placeholder="...")
    cells = f"{_format_digits(row.first):>9} {_format_digits(row.second):>9} "
    return f"{label:<{LABEL_WIDTH}}{cells} {'-' if row.ratio is None else row.ratio}"


def _format_digits(value: Optional[float]) -> str:
    """Return at least three digits without exponents: 5,023  138  11.1  0.0123."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def find_slower_rows(comparisons: Sequence[Comparison], limit: float) -> List[str]:
    """Return the rows whose whole interval is below ``limit``."""
    return [
        f"{comparison.title}: {row.name}"
        for comparison in comparisons
        for row in comparison.rows
        if row.ratio is not None and row.ratio.is_below(limit)
    ]


@command("python tools/benchmarks compare", renamed={"--at-least": "--fail-below"})
@click.argument("first", metavar="FIRST")
@click.argument("second", metavar="SECOND")
@option("--fail-below", "RATIO", "fail if a row's whole interval is below this, such as 0.97")
@JSON_OPTION
def main(first: str, second: str, fail_below: Optional[str], as_json: bool) -> None:
    """Compare two records of a benchmark, or two folders of records.

    The ratios have 95 % intervals. --out-file of a benchmark writes a record. Rounds of records
    that --baseline measured together are compared in pairs.
    """
    limit = None if fail_below is None else real_number_check(0, above_minimum=True)("--fail-below", fail_below)
    pairs = pair_records(Path(first), Path(second))
    comparisons = [compare(*pair) for pair in pairs]
    if as_json:
        click.echo(json_text([asdict(comparison) for comparison in comparisons]))
    else:
        click.echo("\n\n".join([*map(format_comparison, comparisons), format_notes(comparisons)]))
    slower_rows = [] if limit is None else find_slower_rows(comparisons, limit)
    if slower_rows:
        raise RunError(f"slower, below {fail_below} with 95 % confidence: {'; '.join(slower_rows)}")
