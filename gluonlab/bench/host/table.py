"""What the host costs a step, and how much of a core's arithmetic training reaches."""

from __future__ import annotations

import statistics
import textwrap
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Sequence

from gluonlab.bench.harness.measured_on import MeasuredOn, cpu_devices, measured_on
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Measurement, Subject

ROUNDS = 5
DEVICE_COUNTS = (1, 2, 4, 8)
ON_CPUS = cpu_devices(max(DEVICE_COUNTS))
COLUMNS = ("forward", "backward", "allreduce", "update", "total", "loader")
OF_CPUS = "not measured on GPUs, it is that of a CPU's core"
EFFICIENCY, KERNELS = "efficiency", ("sgemm", "lenet")
TARGET_US = 150.0  # per device and step
TARGET_DEVICES = 4
_LABELS = {"gluonlab": "gluonlab", "gluon": "Gluon's loop"}


@dataclass(frozen=True)
class Row:
    """Microseconds per step and device of ``COLUMNS`` (the medians over rounds), or why there are
    none (``reason``).
    """

    name: str
    label: str
    devices: int
    microseconds: Dict[str, float] = field(default_factory=dict)
    reason: Optional[str] = None


@dataclass(frozen=True)
class Efficiency:
    """GFLOP/s of one thread, the medians over rounds; ``fraction``: the median of the rounds'
    quotients.
    """

    sgemm_gflops: Optional[float] = None
    lenet_gflops: Optional[float] = None
    fraction: Optional[float] = None
    reason: Optional[str] = None


@dataclass(frozen=True)
class Report:
    """Both halves of ``python -m gluonlab.bench host``."""

    rows: List[Row]
    efficiency: Efficiency


def on_devices(spec: Optional[str]) -> MeasuredOn:
    """What --devices names; eight CPU devices without it."""
    return ON_CPUS if spec is None else measured_on(spec)


def subjects(on: MeasuredOn = ON_CPUS) -> List[Subject]:
    """A worker for every device count and loop, and one for a core's arithmetic, which comes
    last.
    """
    cases = [(kind, count) for kind in _LABELS for count in on.counts(DEVICE_COUNTS)]
    costs = [
        Subject(
            f"host-{kind}-{count}",
            _LABELS[kind],
            "host",
            {"kind": kind, "device_count": count, **on.options(count)},
        )
        for kind, count in cases
    ]
    return [
        *costs,
        Subject(EFFICIENCY, "arithmetic", "efficiency", missing=OF_CPUS if on.on_gpus else None),
    ]


def ours(on: MeasuredOn = ON_CPUS) -> List[Subject]:
    """The subjects that a change of gluonlab changes."""
    return [subject for subject in subjects(on) if subject.options.get("kind") == "gluonlab"]


def series(measurements: Sequence[Measurement]) -> List[Series]:
    """``host-gluonlab-4 total`` and so on in microseconds, ``efficiency sgemm`` and ``lenet`` in
    GFLOP/s, by round.
    """
    return [one for measurement in measurements for one in _series(measurement)]


def _series(measurement: Measurement) -> Iterator[Series]:
    subject, costs = measurement.subject, measurement.subject.job == "host"
    for name in COLUMNS if costs else KERNELS:
        has_it = measurement.answers and name in measurement.answers[0]
        if has_it or measurement.reason:
            values = tuple(measurement.column(name)) if has_it else ()
            unit = "us" if costs else "GFLOP/s"
            yield Series(f"{subject.name} {name}", subject.label, unit, values, measurement.reason)


def make_report(found: Sequence[Series]) -> Report:
    """The tables' numbers: medians over the rounds."""
    names = [
        name
        for name in dict.fromkeys(one.name.rpartition(" ")[0] for one in found)
        if name != EFFICIENCY
    ]
    rows = [_row(name, [one for one in found if one.name.startswith(f"{name} ")]) for name in names]
    return Report(
        rows, _efficiency([one for one in found if one.name.startswith(f"{EFFICIENCY} ")])
    )


def _row(name: str, columns: Sequence[Series]) -> Row:
    medians = {
        one.name.rpartition(" ")[2]: statistics.median(one.values) for one in columns if one.values
    }
    return Row(name, columns[0].label, int(name.rpartition("-")[2]), medians, columns[0].reason)


def _efficiency(found: Sequence[Series]) -> Efficiency:
    if not found or not found[0].values:
        return Efficiency(reason=found[0].reason if found else "not measured")
    sgemm, lenet = (one.values for one in found)
    fraction = statistics.median(reached / possible for reached, possible in zip(lenet, sgemm))
    return Efficiency(statistics.median(sgemm), statistics.median(lenet), fraction)


def table(rows: Sequence[Row], width: int = 80) -> str:
    """The host's cost as text, at most ``width`` columns wide."""
    heading = f"{'':<12}{'devices':>8}" + "".join(
        f"{name:>10}" for name in (*COLUMNS[:-1], "load+log")
    )
    note = (
        "Microseconds per step and device to queue the parts of a step, not to compute them: "
        "tiny shards, idle devices. total: the whole step, called as one; load+log: "
        "fetching the batch and noting its losses."
    )
    return "\n".join(
        [heading, *(_line(row, width) for row in rows), "", textwrap.fill(note, width)]
    )


def _line(row: Row, width: int) -> str:
    label = f"{row.label:<12}{row.devices:>8}"
    if not row.microseconds:
        return f"{label}  " + textwrap.shorten(
            row.reason or "not measured", width - len(label) - 2, placeholder="..."
        )
    cells = (
        f"{row.microseconds[name]:.0f}" if name in row.microseconds else "-" for name in COLUMNS
    )
    return label + "".join(f"{cell:>10}" for cell in cells)


def efficiency_lines(efficiency: Efficiency) -> List[str]:
    """What one thread computes, in words."""
    if efficiency.fraction is None:
        return [f"arithmetic: {efficiency.reason}"]
    return [
        f"1 thread, sgemm 1024x1024:         {efficiency.sgemm_gflops:6.1f} GFLOP/s",
        (
            f"1 thread, LeNet training, batch 64:{efficiency.lenet_gflops:6.1f} GFLOP/s, "
            f"{efficiency.fraction:.0%} of that"
        ),
    ]


def verdict(rows: Sequence[Row]) -> str:
    """Whether the target is reached, or that it is not known."""
    claim = f"host <= {TARGET_US:g} us per device and step at {TARGET_DEVICES} devices"
    totals = [
        row.microseconds["total"]
        for row in rows
        if row.name == f"host-gluonlab-{TARGET_DEVICES}" and row.microseconds
    ]
    if not totals:
        return f"{claim}: not measured"
    return f"{claim}: {totals[0]:.0f} us {'reached' if totals[0] <= TARGET_US else 'not reached'}"
