"""Benchmark of the host's time per step, and of the share of a core's arithmetic in training."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Dict, Iterator, List, Optional, Sequence

from benchmarks.benchmark import OLD_OPTIONS, Benchmark, OtherCheckout, baseline_options
from gluonlab.bench.harness import table_format as texts
from gluonlab.bench.harness.confidence_interval import median_ratio
from gluonlab.bench.harness.interleaved_rounds import Measurement, Subject, measure_subjects
from gluonlab.bench.harness.measurement_command import (
    DEVICES_OPTION,
    INTERRUPTED,
    MeasuredDevices,
    MeasurementOptions,
    cpu_devices,
    find_measured_devices,
    measurement_options,
)
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.cli.command import command

ROUNDS = 5
DEVICE_COUNTS = (1, 2, 4, 8)
ON_CPUS = cpu_devices(max(DEVICE_COUNTS))
COLUMNS = ("forward", "backward", "allreduce", "update", "total", "loader")
OF_CPUS = "not measured on GPUs, because it concerns a CPU core"
EFFICIENCY, KERNELS = "efficiency", ("sgemm", "lenet")
TARGET = 0.13  # of what Gluon's loop costs
_LABELS = {"gluonlab": "gluonlab", "gluon": "Gluon's loop"}
_NOTE = (
    "Launch overhead: microseconds of CPU time per step and device to queue the parts of a step, "
    "not to compute them. Shards are tiny, and devices are held until a block of steps is "
    "queued. total: the whole step, in one call; load+log: fetching the batch and logging its "
    "losses."
)


@dataclass(frozen=True)
class HostCostRow:
    """Microseconds per step and device of ``COLUMNS`` (medians), or the ``reason`` for none."""

    name: str
    label: str
    devices: int
    microseconds: Dict[str, float] = field(default_factory=dict)
    reason: Optional[str] = None


def find_host_devices(spec: Optional[str]) -> MeasuredDevices:
    """Return the devices of --devices; eight CPU devices without it."""
    return ON_CPUS if spec is None else find_measured_devices(spec)


def make_subjects(on: MeasuredDevices = ON_CPUS) -> List[Subject]:
    """Return a worker for every device count and loop, then one for a core's arithmetic."""
    costs = []
    for kind, label in _LABELS.items():
        for count in on.available_counts(DEVICE_COUNTS):
            options = {"kind": kind, "device_count": count, **on.job_options(count)}
            costs.append(Subject(f"host-{kind}-{count}", label, "host", options))
    missing = OF_CPUS if on.on_gpus else None
    return [*costs, Subject(EFFICIENCY, "arithmetic", "efficiency", missing=missing)]


def our_subjects(on: MeasuredDevices = ON_CPUS) -> List[Subject]:
    """Return the subjects that run gluonlab's code."""
    return [subject for subject in make_subjects(on) if subject.options.get("kind") == "gluonlab"]


def make_series(measurements: Sequence[Measurement]) -> List[Series]:
    """Return ``host-gluonlab-4 total`` in microseconds and ``efficiency sgemm`` in GFLOP/s, by
    round.
    """
    return [item for measurement in measurements for item in _measurement_series(measurement)]


def _measurement_series(measurement: Measurement) -> Iterator[Series]:
    subject, costs = measurement.subject, measurement.subject.job == "host"
    for name in COLUMNS if costs else KERNELS:
        has_it = measurement.answers and name in measurement.answers[0]
        if has_it or measurement.reason:
            values = tuple(measurement.numbers_by_round(name)) if has_it else ()
            unit = "us" if costs else "GFLOP/s"
            yield Series(f"{subject.name} {name}", subject.label, unit, values, measurement.reason)


def make_rows(series: Sequence[Series]) -> List[HostCostRow]:
    """Return the table's numbers: medians over the rounds."""
    rows: Dict[str, List[Series]] = {}
    for item in series:
        rows.setdefault(item.name.rpartition(" ")[0], []).append(item)
    rows.pop(EFFICIENCY, None)
    return [_host_cost_row(name, columns) for name, columns in rows.items()]


def _host_cost_row(name: str, columns: Sequence[Series]) -> HostCostRow:
    medians = {item.name.rpartition(" ")[2]: median(item.values) for item in columns if item.values}
    return HostCostRow(name, columns[0].label, int(name.rpartition("-")[2]), medians, columns[0].reason)


def format_results(record: Record) -> str:
    """Return the table, a core's arithmetic, and whether targets are reached."""
    rows = make_rows(record.series)
    return "\n".join([format_costs(rows), "", *describe_efficiency(record), "", *judge_targets(record)])


def format_costs(rows: Sequence[HostCostRow]) -> str:
    """Return the host's cost as text."""
    columns = "".join(f"{name:>10}" for name in (*COLUMNS[:-1], "load+log"))
    return texts.format_table([f"{'':<12}{'devices':>8}{columns}", *map(_format_row, rows)], _NOTE)


def _format_row(row: HostCostRow) -> str:
    label, microseconds = f"{row.label:<12}{row.devices:>8}", row.microseconds
    if not microseconds:
        return texts.missing_row(f"{label}  ", row.reason)
    cells = (f"{microseconds[name]:.0f}" if name in microseconds else "-" for name in COLUMNS)
    return label + "".join(f"{cell:>10}" for cell in cells)


def describe_efficiency(record: Record) -> List[str]:
    """Return lines on what one thread computes."""
    sgemm, lenet = (record.find(f"{EFFICIENCY} {kernel}") for kernel in KERNELS)
    if sgemm is None or lenet is None:
        reasons = (item.reason for item in record.series if item.name.startswith(EFFICIENCY))
        return [texts.missing_row("arithmetic: ", next(reasons, None))]
    share = median_ratio(lenet.values, sgemm.values)
    lenet_text = f"{median(lenet.values):6.1f} GFLOP/s, {share:.0%} of sgemm"
    return [
        f"1 thread, sgemm 1024x1024:         {median(sgemm.values):6.1f} GFLOP/s",
        f"1 thread, LeNet training, batch 64:{lenet_text}",
    ]


def judge_targets(record: Record) -> List[str]:
    """Return whether each target is reached, or that it was not measured."""
    return [_judge_target(record, count) for count in DEVICE_COUNTS if count > 1]


def _judge_target(record: Record, count: int) -> str:
    claim = f"launch overhead on {count} devices <= {TARGET:.2f} of Gluon's loop"
    ours, gluons = (record.find(f"host-{name}-{count} total") for name in ("gluonlab", "gluon"))
    if ours is None or gluons is None or not (ours.values and gluons.values):
        return texts.outcome_line(claim, None, False)
    share = median_ratio(ours.values, gluons.values)
    return texts.outcome_line(claim, f"{share:.2f}", share <= TARGET)


@command("python tools/benchmarks overhead", INTERRUPTED, renamed=OLD_OPTIONS)
@measurement_options(ROUNDS)
@baseline_options
@DEVICES_OPTION
def main(run_options: MeasurementOptions, baseline: Optional[OtherCheckout], devices: Optional[str]) -> None:
    """Measure the time and cores that Python uses per training step."""
    on = find_host_devices(devices)
    Benchmark(
        ("host", on.record_options()),
        partial(measure_subjects, make_subjects(on)),
        our_subjects(on),
        make_series,
        format_results,
        on,
    ).run(run_options, baseline)
