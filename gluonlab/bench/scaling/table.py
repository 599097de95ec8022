"""What ``bench scaling`` prints, made from images/s by way and round.

Does not import MXNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import List, Optional, Sequence

from gluonlab.bench.harness.interval import ratio
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.text import interleaved, missing, outcome
from gluonlab.bench.harness.text import table as as_table
from gluonlab.bench.peers.work import TASKS
from gluonlab.bench.scaling.ways import ONE_PROCESS, STRONG, WEAK, Way
from gluonlab.host import resources

LEAST = {  # of the images/s of one process with two devices: two processes with one each
    ("lenet", "dist_sync"): 0.88,
    ("lenet", "horovod"): 0.65,
    ("resnet18", "dist_sync"): 0.6,
    ("resnet18", "horovod"): 0.6,
}


@dataclass(frozen=True)
class Row:
    """A way: images/s, and medians of the rounds' ratios.

    ``speedup``: images/s over those of one device; ``efficiency``: that per device; ``beside``:
    over those of one process with as many devices.
    """

    way: Way
    images_per_second: Optional[float] = None
    speedup: Optional[float] = None
    efficiency: Optional[float] = None
    beside: Optional[float] = None
    reason: Optional[str] = None


def make_rows(ways: Sequence[Way], series: Sequence[Series]) -> List[Row]:
    """A row for each way, in their order; the first way is one device."""
    found = {one.name: one for one in series}
    alone = {way.all_devices: found[way.name].values for way in ways if way.processes == 1}
    rows = []
    for way in ways:
        one = found[way.name]
        if not one.values:
            rows.append(Row(way, reason=one.reason))
            continue
        speedup = ratio(one.values, alone[1]) if alone[1] else None
        rows.append(Row(
            way,
            median(one.values),
            speedup,
            None if speedup is None else speedup / way.all_devices,
            ratio(one.values, alone[way.all_devices]) if alone[way.all_devices] else None,
        ))  # fmt: skip
    return rows


def text(
    network: str, kind: str, ways: Sequence[Way], series: Sequence[Series], rounds: int
) -> str:
    """The table, and verdicts where there are targets: weak scaling, two processes, one device."""
    rows = make_rows(ways, series)
    heads = f"{'processes':<21}{'devices':>8}{'batch':>7}{'images/s':>10}"
    heads += f"{'speed-up':>10}{'efficiency':>12}{'beside':>9}"
    shared = {WEAK: "each device has as many images", STRONG: "all devices share one batch"}
    note = (
        f"{TASKS[network].title}, {kind} scaling: {shared[kind]}. images/s: the median of "
        f"{interleaved(rounds)}. speed-up: of the images/s of one device; efficiency: that per "
        "device. beside: images/s over those of one process with as many devices. "
        f"All processes run here, on {resources.available_cores()} cores, each device with one "
        "thread; dist_sync has a server and a scheduler beside them." + _short_of_cores(rows)
    )
    shown = as_table([heads, *map(_line, rows)], note)
    judged = verdicts(network, rows) if kind == WEAK else []
    return "\n".join([shown, "", *judged]) if judged else shown


def _short_of_cores(rows: Sequence[Row]) -> str:
    here, most = resources.available_cores(), max(row.way.all_devices for row in rows)
    if here >= most:
        return ""
    return f" {most} devices share {here} cores: their efficiency is at most {here / most:.0%}."


def _line(row: Row) -> str:
    way = row.way
    name = f"{way.processes} {way.backend}".rstrip()
    label = f"{name:<21}{way.all_devices:>8}{way.global_batch_size:>7}"
    if row.images_per_second is None:
        return missing(f"{label}  ", row.reason)
    cells = f"{row.images_per_second:>10,.0f}{_times(row.speedup):>10}"
    efficiency = "-" if row.efficiency is None else f"{row.efficiency:.0%}"
    beside = "" if way.backend == ONE_PROCESS else _times(row.beside)
    return f"{label}{cells}{efficiency:>12}{beside:>9}".rstrip()


def _times(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}x"


def verdicts(network: str, rows: Sequence[Row]) -> List[str]:
    """A line per target: whether it was reached, or that this was not measured."""
    lines = []
    for (judged, backend), least in LEAST.items():
        own = [row for row in rows if row.way[:3] == (2, 1, backend)]
        if judged == network and own:
            shown = None if own[0].beside is None else f"{own[0].beside:.2f}x"
            claim = f"2 processes over {backend} >= {least:g}x one with 2 devices"
            lines.append(outcome(claim, shown, (own[0].beside or 0) >= least))
    return lines
