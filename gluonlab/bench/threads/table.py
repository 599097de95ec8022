"""One CPU device with all cores, by how its idle threads wait: alone, and beside a process that
computes.

And two workers of MXNet's parameter server on one host, by how many of its cores each takes.
"""

from __future__ import annotations

import statistics
import textwrap
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from gluonlab.bench.harness.environment import AS_OPENMP_COMES, PASSIVE, spinning
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Measurement, Subject
from gluonlab.bench.peers.work import TASKS
from gluonlab.config.values import whole
from gluonlab.host import cores

ROUNDS = 9
RESTART_EVERY = 5
NETWORKS = ("lenet", "mlp")
COMPETITORS = {"quiet": 0, "beside": 1}  # processes that compute, too
OURS, REFERENCE = "gluonlab", "openmp"
SPIN_COUNTS = "2000"  # for comparison
WORKERS = 2
_LABELS = {
    OURS: "as gluonlab sets it",
    REFERENCE: "OpenMP as it comes",
    "passive": "OMP_WAIT_POLICY=passive",
}
SHARING, NOT_SHARING = "sharing", "not-sharing"
_DIST = {SHARING: "dist_sync, sharing the cores", NOT_SHARING: "dist_sync, all cores each"}


@dataclass(frozen=True)
class Row:
    """One setting.

    ``rates``: images/s by column, ``ratios``: over those of OpenMP as it comes; medians over
    rounds.
    """

    name: str
    label: str
    rates: Dict[str, float]
    ratios: Dict[str, float]
    reason: Optional[str] = None


def parse_spin_counts(text: str) -> List[int]:
    """Numbers of looks, separated by commas. Raises ConfigError."""
    check = whole(0)
    return list(dict.fromkeys(check("--spin-counts", part) for part in text.split(",")))


def settings(spin_counts: Sequence[int]) -> Dict[str, Mapping[str, str]]:
    """Name of a setting -> the variables that make it."""
    fixed: Dict[str, Mapping[str, str]] = {OURS: {}, REFERENCE: AS_OPENMP_COMES, "passive": PASSIVE}
    return {**fixed, **{str(count): spinning(count) for count in spin_counts}}


def subjects(spin_counts: Sequence[int], network: str) -> List[Subject]:
    """A worker for each setting, alone and beside others; with LeNet's also the pairs of workers of
    a parameter server.
    """
    threads = cores.available()
    found = [
        Subject(
            f"{network} {name} {company}",
            f"{network} {name} {company}",
            "gluonlab",
            {"task": network, "device_count": 1, "threads": threads, "competitors": competitors},
            variables,
        )
        for name, variables in settings(spin_counts).items()
        for company, competitors in COMPETITORS.items()
    ]
    if network == "lenet":
        pair = {"task": network, "world_size": WORKERS}
        each = {**pair, "threads": threads}
        found += [
            Subject(f"{network} {SHARING} quiet", _DIST[SHARING], "dist", pair),
            Subject(
                f"{network} {NOT_SHARING} quiet", _DIST[NOT_SHARING], "dist", each, AS_OPENMP_COMES
            ),
        ]
    return found


def ours(network: str) -> List[Subject]:
    """The subjects that a change of gluonlab changes."""
    return [one for one in subjects((), network) if one.name.split()[1] in (OURS, SHARING)]


def series(measurements: Sequence[Measurement]) -> List[Series]:
    """``lenet passive beside`` and so on in images/s, by round."""
    return [
        Series(one.subject.name, one.subject.label, "images/s", _rates(one), one.reason)
        for one in measurements
    ]


def _rates(measurement: Measurement) -> "tuple[float, ...]":
    images = TASKS[measurement.subject.name.split()[0]].global_batch_size * measurement.steps
    return tuple(images / seconds for seconds in measurement.column("seconds"))


def columns() -> List[str]:
    """``lenet quiet``, ``lenet beside`` and so on."""
    return [f"{network} {company}" for network in NETWORKS for company in COMPETITORS]


def make_rows(found: Sequence[Series]) -> List[Row]:
    """The table's numbers. A setting's ratios are medians of the rounds' ratios."""
    cells: Dict[str, Dict[str, Series]] = {}
    for one in found:
        network, name, company = one.name.split()
        cells.setdefault(name, {})[f"{network} {company}"] = one
    return [_row(name, cells[name], cells.get(REFERENCE, {})) for name in cells]


def _row(name: str, own: Mapping[str, Series], reference: Mapping[str, Series]) -> Row:
    measured = {column: one.values for column, one in own.items() if one.values}
    beside = (
        {}
        if name in _DIST
        else {column: one.values for column, one in reference.items() if one.values}
    )
    label = _DIST.get(name) or _LABELS.get(name) or f"{int(name):,} looks"
    return Row(
        name,
        label,
        {column: statistics.median(values) for column, values in measured.items()},
        {
            column: statistics.median(mine / its for mine, its in zip(values, beside[column]))
            for column, values in measured.items()
            if column in beside
        },
        next((one.reason for one in own.values() if one.reason), None),
    )


def table(rows: Sequence[Row], rounds: int, width: int = 80) -> str:
    """The rows as text, at most ``width`` columns wide."""
    heading = f"{'images/s':<26}" + "".join(f"{column:>13}" for column in columns())
    note = (
        f"One CPU device, {cores.available()} threads, "
        f"{rounds} interleaved round{'s' * (rounds > 1)}, medians; the smaller numbers: "
        "as a multiple of OpenMP as it comes. beside: one other process computes. dist_sync: "
        f"{WORKERS} workers of a parameter server on this host, "
        "in the second row with OpenMP as it comes."
    )
    return "\n".join(
        [
            heading,
            *(line for row in rows for line in _lines(row, width)),
            "",
            textwrap.fill(note, width),
        ]
    )


def _lines(row: Row, width: int) -> List[str]:
    cells = [_cell(row.rates.get(column), row.ratios.get(column)) for column in columns()]
    lines = [f"{row.label:<26}" + "".join(f"{cell:>13}" for cell in cells)]
    return (
        lines
        if row.reason is None
        else [*lines, textwrap.shorten(f"  {row.reason}", width, placeholder="...")]
    )


def _cell(rate: Optional[float], ratio: Optional[float]) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" + (f" {ratio:.2f}" if ratio is not None else " " * 5)
