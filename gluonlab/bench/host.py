"""What the host costs a step, and how much of a core's arithmetic training reaches."""

from __future__ import annotations

import statistics
import textwrap
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence

from gluonlab.bench.rounds import Measurement, Subject, measure

ROUNDS = 5
DEVICE_COUNTS = (1, 2, 4, 8)
COLUMNS = ("forward", "backward", "allreduce", "update", "total", "loader")
TARGET_US = 150.0  # per device and step
TARGET_DEVICES = 4
_LABELS = {"gluonlab": "gluonlab", "gluon": "Gluon's loop"}


@dataclass(frozen=True)
class Row:
    """Microseconds per step and device of ``COLUMNS`` (the medians over rounds), or why there are none (``reason``)."""

    name: str
    label: str
    devices: int
    microseconds: Dict[str, float] = field(default_factory=dict)
    reason: Optional[str] = None


@dataclass(frozen=True)
class Efficiency:
    """GFLOP/s of one thread, the medians over rounds; ``fraction``: the median of the rounds' quotients."""

    sgemm_gflops: Optional[float] = None
    lenet_gflops: Optional[float] = None
    fraction: Optional[float] = None
    reason: Optional[str] = None


@dataclass(frozen=True)
class Report:
    """Both halves of ``python -m gluonlab.bench host``."""

    rows: List[Row]
    efficiency: Efficiency


def subjects() -> List[Subject]:
    """A worker for every device count and loop, and one for the arithmetic, which comes last."""
    cases = [(kind, count) for kind in _LABELS for count in DEVICE_COUNTS]
    costs = [Subject(f"host-{kind}-{count}", _LABELS[kind], "host", {"kind": kind, "device_count": count}) for kind, count in cases]
    return [*costs, Subject("efficiency", "arithmetic", "efficiency")]


def host(rounds: int = ROUNDS) -> Report:
    """Measure all rows in one run, interleaved."""
    *costs, arithmetic = measure(subjects(), rounds)
    return Report([make_row(measurement) for measurement in costs], make_efficiency(arithmetic))


def make_row(measurement: Measurement) -> Row:
    """The table's numbers for one loop and device count."""
    subject = measurement.subject
    columns = [name for name in COLUMNS if all(name in answer for answer in measurement.answers)] if measurement.answers else []
    medians = {name: statistics.median(measurement.column(name)) for name in columns}
    return Row(subject.name, subject.label, subject.options["device_count"], medians, measurement.reason)


def make_efficiency(measurement: Measurement) -> Efficiency:
    """The medians over the rounds."""
    if not measurement.answers:
        return Efficiency(reason=measurement.reason)
    sgemm, lenet = measurement.column("sgemm"), measurement.column("lenet")
    fraction = statistics.median(reached / possible for reached, possible in zip(lenet, sgemm))
    return Efficiency(statistics.median(sgemm), statistics.median(lenet), fraction)


def table(rows: Sequence[Row], width: int = 80) -> str:
    """The host's cost as text, at most ``width`` columns wide."""
    heading = f"{'':<12}{'devices':>8}" + "".join(f"{name:>10}" for name in (*COLUMNS[:-1], "load+log"))
    note = (
        "Microseconds per step and device to queue the parts of a step, not to compute them: tiny shards, idle devices. "
        "total: the whole step, called as one; load+log: fetching the batch and noting its losses."
    )
    return "\n".join([heading, *(_line(row, width) for row in rows), "", textwrap.fill(note, width)])


def _line(row: Row, width: int) -> str:
    label = f"{row.label:<12}{row.devices:>8}"
    if not row.microseconds:
        return f"{label}  " + textwrap.shorten(row.reason or "not measured", width - len(label) - 2, placeholder="...")
    cells = (f"{row.microseconds[name]:.0f}" if name in row.microseconds else "-" for name in COLUMNS)
    return label + "".join(f"{cell:>10}" for cell in cells)


def efficiency_lines(efficiency: Efficiency) -> List[str]:
    """What one thread computes, in words."""
    if efficiency.fraction is None:
        return [f"arithmetic: {efficiency.reason}"]
    return [
        f"1 thread, sgemm 1024x1024:         {efficiency.sgemm_gflops:6.1f} GFLOP/s",
        f"1 thread, LeNet training, batch 64:{efficiency.lenet_gflops:6.1f} GFLOP/s, {efficiency.fraction:.0%} of that",
    ]


def verdict(rows: Sequence[Row]) -> str:
    """Whether the target is reached, or that it is not known."""
    claim = f"host <= {TARGET_US:g} us per device and step at {TARGET_DEVICES} devices"
    totals = [row.microseconds["total"] for row in rows if row.name == f"host-gluonlab-{TARGET_DEVICES}" and row.microseconds]
    if not totals:
        return f"{claim}: not measured"
    return f"{claim}: {totals[0]:.0f} us {'reached' if totals[0] <= TARGET_US else 'not reached'}"
