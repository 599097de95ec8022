"""``bench scaling``: the same training by more devices and more processes of this host."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.bench.harness.confidence_interval import ratio
from gluonlab.bench.harness.interleaved_rounds import Subject
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import interleaved, missing, outcome
from gluonlab.bench.harness.table_format import table as as_table
from gluonlab.bench.harness.worker_processes import (
    HOROVOD,
    PATIENCE,
    missing_backend,
    parse_backends,
)
from gluonlab.bench.workloads import TASKS
from gluonlab.config.option_types import whole_number_check
from gluonlab.errors import ConfigError, unknown
from gluonlab.host import resources

NETWORKS = ("lenet", "resnet18")
WEAK, STRONG = "weak", "strong"
PROCESSES, DEVICES = "1,2", "1,2"
ROUNDS = 7
MOST = 64  # processes on a host, and devices of one
ONE_PROCESS = ""  # the backend of a process alone


class ProcessLayout(NamedTuple):
    """So many ``processes`` with ``devices`` each, over a ``backend``, on one global batch."""

    processes: int
    devices: int
    backend: str
    global_batch_size: int

    @property
    def name(self) -> str:
        """``2x1 dist_sync``, or ``1x2`` for a process alone."""
        return f"{self.processes}x{self.devices} {self.backend}".strip()

    @property
    def all_devices(self) -> int:
        """Those of all processes together."""
        return self.processes * self.devices


def check_network(name: str) -> str:
    """The name. Raises ConfigError, with the choices, for another one."""
    if name not in NETWORKS:
        raise ConfigError(unknown("network", name, NETWORKS))
    return name


def parse_counts(option: str, text: str) -> List[int]:
    """Numbers, separated by commas, in ascending order. Raises ConfigError."""
    check = whole_number_check(1, MOST)
    return sorted({check(option, part.strip()) for part in text.split(",")})


def check_kind(kind: str) -> str:
    """The name. Raises ConfigError for another one."""
    if kind not in (WEAK, STRONG):
        raise ConfigError(unknown("scaling", kind, (WEAK, STRONG)))
    return kind


def usual_batch(network: str) -> int:
    """Images per device with weak scaling: half of what two devices share in ``bench peers``."""
    return TASKS[network].global_batch_size // 2


def make_ways(
    network: str,
    kind: str,
    processes: Sequence[int],
    devices: Sequence[int],
    backends: Sequence[str],
) -> List[ProcessLayout]:
    """One device first, then those with more, each beside one process with as many devices.

    With ``WEAK`` scaling each device has the usual batch; with ``STRONG``, all share that of two.
    """
    per_device = usual_batch(network)

    def way(processes: int, devices: int, backend: str) -> ProcessLayout:
        batch = per_device * (processes * devices if kind == WEAK else 2)
        return ProcessLayout(processes, devices, backend, batch)

    many = [
        way(count, each, backend)
        for count in processes
        for each in devices
        for backend in backends
        if count > 1
    ]
    alone = {1, *(devices if 1 in processes else ()), *(each.all_devices for each in many)}
    ways = [*(way(1, count, ONE_PROCESS) for count in sorted(alone)), *many]
    return sorted(ways, key=lambda each: (each.all_devices, each.processes, each.backend))


def asked_for(options: Mapping[str, str]) -> List[ProcessLayout]:
    """The ways of a measurement, by its options. Raises ConfigError."""
    return make_ways(
        check_network(options["network"]),
        check_kind(options["scaling"]),
        parse_counts("--processes", options["processes"]),
        parse_counts("--gpus", options["gpus"]),
        parse_backends(options["backends"]),
    )


def subjects(network: str, ways: Sequence[ProcessLayout]) -> List[Subject]:
    """What is measured: processes on this host, whose devices are CPU devices of one thread."""
    return [_subject(network, each) for each in ways]


def _subject(network: str, way: ProcessLayout) -> Subject:
    options: Dict[str, Any] = {
        "task": network,
        "device_count": way.devices,
        "threads": 1,
        "global_batch_size": way.global_batch_size,
    }
    job = "gluonlab"
    if way.processes > 1:
        job, options = "member", {**options, "backend": way.backend, "processes": way.processes}
    images, reason = way.global_batch_size, missing_backend(way.backend)
    variables = PATIENCE.get(way.backend, {})
    # Horovod's processes talk to each other all the time
    pauses = way.backend == HOROVOD
    return Subject(
        way.name, way.name, job, options, variables, reason, images=images, pauses=pauses
    )


# --- the table

LEAST = {  # of the images/s of one process with two devices: two processes with one each
    ("lenet", "dist_sync"): 0.88,
    ("lenet", "horovod"): 0.65,
    ("resnet18", "dist_sync"): 0.6,
    ("resnet18", "horovod"): 0.6,
}


@dataclass(frozen=True)
class ScalingRow:
    """A way: images/s, and medians of the rounds' ratios.

    ``speedup``: images/s over those of one device; ``efficiency``: that per device; ``beside``:
    over those of one process with as many devices.
    """

    way: ProcessLayout
    images_per_second: Optional[float] = None
    speedup: Optional[float] = None
    efficiency: Optional[float] = None
    beside: Optional[float] = None
    reason: Optional[str] = None


def make_rows(ways: Sequence[ProcessLayout], series: Sequence[Series]) -> List[ScalingRow]:
    """A row for each way, in their order; the first way is one device."""
    found = {one.name: one for one in series}
    alone = {way.all_devices: found[way.name].values for way in ways if way.processes == 1}
    rows = []
    for way in ways:
        one = found[way.name]
        if not one.values:
            rows.append(ScalingRow(way, reason=one.reason))
            continue
        speedup = ratio(one.values, alone[1]) if alone[1] else None
        rows.append(ScalingRow(
            way,
            median(one.values),
            speedup,
            None if speedup is None else speedup / way.all_devices,
            ratio(one.values, alone[way.all_devices]) if alone[way.all_devices] else None,
        ))  # fmt: skip
    return rows


def text(
    network: str, kind: str, ways: Sequence[ProcessLayout], series: Sequence[Series], rounds: int
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


def _short_of_cores(rows: Sequence[ScalingRow]) -> str:
    here, most = resources.available_cores(), max(row.way.all_devices for row in rows)
    if here >= most:
        return ""
    return f" {most} devices share {here} cores: their efficiency is at most {here / most:.0%}."


def _line(row: ScalingRow) -> str:
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


def verdicts(network: str, rows: Sequence[ScalingRow]) -> List[str]:
    """A line per target: whether it was reached, or that this was not measured."""
    lines = []
    for (judged, backend), least in LEAST.items():
        own = [row for row in rows if row.way[:3] == (2, 1, backend)]
        if judged == network and own:
            shown = None if own[0].beside is None else f"{own[0].beside:.2f}x"
            claim = f"2 processes over {backend} >= {least:g}x one with 2 devices"
            lines.append(outcome(claim, shown, (own[0].beside or 0) >= least))
    return lines
