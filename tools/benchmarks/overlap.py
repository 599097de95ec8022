"""Benchmark of training on several devices by --backward-bulk-size, the size of backward's pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Dict, List, Optional, Sequence, Tuple, Union

from benchmarks.benchmark import find_several_devices
from benchmarks.rates import Ratio, paired_ratio
from gluonlab.bench.harness.interleaved_rounds import Measurement, Subject, measure_subjects
from gluonlab.bench.harness.measurement_command import (
    DEVICES_OPTION,
    INTERRUPTED,
    OLD_NAMES,
    MeasuredDevices,
    MeasurementOptions,
    cpu_devices,
    measurement_options,
    option,
)
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table as as_table
from gluonlab.bench.harness.table_format import missing_row, rounds_text
from gluonlab.bench.workloads import TASKS
from gluonlab.cli.command import command
from gluonlab.errors import ConfigError, unknown

ROUNDS = 11
DEVICES = 2
NETWORKS = ("lenet", "resnet18")
OFF = "off"
OVERLAPS: Sequence[Union[int, str]] = (OFF, 32, 15, 8, 4, 1)
TRACED = 5  # steps of each round, after those that are timed
SPEED, BESIDE = "images/s", "beside"


@dataclass(frozen=True)
class OverlapRow:
    """Images/s with an ``overlap``, over those without, and the overlap in a trace.

    ``beside``: the share of the time of sums and copies in which some device computed backward.
    """

    overlap: str
    images_per_second: Optional[float] = None
    ratio: Optional[Ratio] = None
    beside: Optional[float] = None
    reason: Optional[str] = None


def check_model(name: str) -> str:
    """Return the name. Raises ConfigError, with the choices, for an unknown one."""
    if name not in NETWORKS:
        raise ConfigError(unknown("model", name, NETWORKS))
    return name


def make_subjects(network: str, on: MeasuredDevices) -> List[Subject]:
    """Return a subject for each overlap, the first one without."""
    count, images = len(on.numbers), TASKS[network].global_batch_size
    common = {"task": network, "device_count": count, "threads": 1, "traced": TRACED}
    common.update(on.job_options(count))
    return [
        Subject(f"{overlap}", f"{overlap}", "gluonlab", {**common, "overlap": overlap}, images=images)
        for overlap in OVERLAPS
    ]


def make_series(measurements: Sequence[Measurement]) -> List[Series]:
    """Return images/s of each overlap, and the share of its sums beside backward, by round."""
    all_series = []
    for measurement in measurements:
        name, reason = measurement.subject.name, measurement.reason
        beside = tuple(answer["beside"] for answer in measurement.answers)
        all_series.append(Series(f"{name} {SPEED}", name, SPEED, measurement.images_per_second(), reason))
        all_series.append(Series(f"{name} {BESIDE}", name, BESIDE, beside, reason))
    return all_series


def make_rows(series: Sequence[Series]) -> List[OverlapRow]:
    """Return a row for each overlap."""
    by_name: Dict[Tuple[str, str], Series] = {(item.label, item.unit): item for item in series}
    off, rows = by_name[OFF, SPEED].values, []
    for overlap in map(str, OVERLAPS):
        speed, beside = (by_name[overlap, unit] for unit in (SPEED, BESIDE))
        if not speed.values:
            rows.append(OverlapRow(overlap, reason=speed.reason))
            continue
        ratio = paired_ratio(speed.values, off) if off and overlap != OFF else None
        rows.append(OverlapRow(overlap, median(speed.values), ratio, median(beside.values)))
    return rows


def format_results(network: str, series: Sequence[Series], rounds: int) -> str:
    """Return the table."""
    lines = [f"{'--backward-bulk-size':<12}{'images/s':>9}   {'vs off':<21}{'overlap':>16}"]
    for row in make_rows(series):
        label = f"{row.overlap:<12}"
        if row.images_per_second is None or row.beside is None:
            lines.append(missing_row(label, row.reason))
            continue
        ratio = "" if row.ratio is None else str(row.ratio)
        lines.append(f"{label}{row.images_per_second:>9,.0f}   {ratio:<21}{row.beside:>16.0%}")
    note = (
        f"{TASKS[network].title}, kvstore device. Backward is queued in bulks of this many "
        f"operators, or with off in one. images/s: medians of {rounds_text(rounds)}; vs off: the "
        "median of the rounds' ratios with its 95 % interval. overlap: the share of the time of "
        f"reductions and copies in which some device computed backward, in a trace of {TRACED} "
        "steps of each round, which are not timed."
    )
    return as_table(lines, note)


@command("python tools/benchmarks overlap", INTERRUPTED, renamed={"--network": "--model", **OLD_NAMES})
@measurement_options(ROUNDS)
@option("--model", "NAME", f"one of {', '.join(NETWORKS)}", "resnet18")
@DEVICES_OPTION
def main(run_options: MeasurementOptions, model: str, devices: Optional[str]) -> None:
    """Measure the effect of --backward-bulk-size on throughput.

    The training runs on two CPU devices, or on --devices. Missed targets are reported, and do not
    change the exit status.
    """
    check_model(model)
    on = find_several_devices(devices, cpu_devices(DEVICES), "one device has nothing to reduce")
    title = ("overlap", {"network": model, **on.record_options()})
    measured = partial(measure_subjects, make_subjects(model, on))
    _, record = run_options.measure_and_record(title, measured, make_series)
    run_options.print_record(record, format_results(model, record.series, run_options.rounds), on)
