"""Benchmark of gluonlab.optimize: images/s of tutorials' networks before and after, interleaved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import List, NamedTuple, Optional, Sequence, Tuple

from benchmarks.benchmark import OLD_OPTIONS, Benchmark, OtherCheckout, baseline_options
from benchmarks.rates import Ratio, paired_ratio
from gluonlab.bench.harness import table_format as texts
from gluonlab.bench.harness.interleaved_rounds import Subject, image_rates, measure_subjects
from gluonlab.bench.harness.measurement_command import INTERRUPTED, MeasurementOptions, measurement_options
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.cli.command import command


class Task(NamedTuple):
    """A network, and random images for it.

    ``network``: the function of `benchmarks.optimize_job`. ``batch``: the shape (n, C, H, W) of a
    batch. ``batches``: their number. ``learning_rate``: the tutorial's.
    """

    title: str
    network: str
    batch: Tuple[int, int, int, int]
    batches: int
    learning_rate: float


TASKS = {
    "mnist-cnn": Task("MXNet's CNN for MNIST", "mnist_cnn", (64, 1, 28, 28), 64, 0.02),
    "lenet": Task("d2l's LeNet", "lenet", (64, 1, 28, 28), 64, 0.9),
    "lenet-batch-norm": Task("d2l's LeNet with BatchNorm", "lenet_with_batch_norm", (64, 1, 28, 28), 64, 1.0),
    "nin": Task("d2l's NiN", "nin", (8, 1, 96, 96), 32, 0.1),
    "googlenet": Task("d2l's GoogLeNet", "googlenet", (8, 1, 96, 96), 32, 0.1),
}


ROUNDS = 9
START_TIMEOUT_S = 240.0  # a network is trained for some steps before, as it is and optimized
PLAIN, OPTIMIZED = "plain", "optimized"
LABEL_WIDTH = 28  # columns
_NOTE = (
    "One CPU device with one thread, a plain Gluon loop, {rounds}. images/s: medians. faster by: "
    "optimized relative to plain, the median of the rounds' ratios, with its 95 % interval."
)


@dataclass(frozen=True)
class OptimizeRow:
    """Images/s of a network, medians over the rounds, or the ``reason`` for none."""

    name: str
    label: str
    batch: str
    plain: Optional[float] = None
    optimized: Optional[float] = None
    faster: Optional[Ratio] = None
    reason: Optional[str] = None


def make_subjects() -> List[Subject]:
    """Return two workers for each network."""
    return [
        Subject(
            f"{name} {kind}",
            f"{task.title}, {kind}",
            "optimize",
            {"network": name, "optimized": kind == OPTIMIZED},
            start_timeout_s=START_TIMEOUT_S,
            images=task.batch[0],
        )
        for name, task in TASKS.items()
        for kind in (PLAIN, OPTIMIZED)
    ]


def our_subjects() -> List[Subject]:
    """Return the subjects that gluonlab's code makes faster."""
    return [subject for subject in make_subjects() if subject.options["optimized"]]


def make_rows(series: Sequence[Series]) -> List[OptimizeRow]:
    """Return the table's numbers."""
    by_name = {item.name: item for item in series}
    return [
        _optimize_row(name, by_name[f"{name} {PLAIN}"], by_name[f"{name} {OPTIMIZED}"])
        for name in TASKS
        if f"{name} {PLAIN}" in by_name and f"{name} {OPTIMIZED}" in by_name
    ]


def _optimize_row(name: str, plain: Series, optimized: Series) -> OptimizeRow:
    size, _, height, width = TASKS[name].batch
    head = (name, TASKS[name].title, f"{size} of {height}x{width}")
    if not (plain.values and optimized.values):
        return OptimizeRow(*head, reason=plain.reason or optimized.reason)
    return OptimizeRow(
        *head, median(plain.values), median(optimized.values), paired_ratio(optimized.values, plain.values)
    )


def format_results(record: Record) -> str:
    """Return the table as text."""
    heading = f"{'':<{LABEL_WIDTH}}{'batch':>11}{'plain':>9}{'optimized':>11}  faster by"
    lines = [heading, *map(_format_row, make_rows(record.series))]
    return texts.format_table(lines, _NOTE.format(rounds=texts.rounds_text(record.rounds)))


def _format_row(row: OptimizeRow) -> str:
    head = f"{row.label:<{LABEL_WIDTH}}{row.batch:>11}"
    if row.plain is None:
        return texts.missing_row(f"{head}  ", row.reason)
    return f"{head}{row.plain:>9,.0f}{row.optimized:>11,.0f}  {row.faster}"


@command("python tools/benchmarks optimize", INTERRUPTED, renamed=OLD_OPTIONS)
@measurement_options(ROUNDS)
@baseline_options
def main(run_options: MeasurementOptions, baseline: Optional[OtherCheckout]) -> None:
    """Measure models of tutorials before and after gluonlab.optimize.

    The models train on one CPU device with one thread. If the losses of the first steps differ, the
    row shows the losses instead of the throughput. Missed targets are reported, and do not change
    the exit status.
    """
    Benchmark(
        ("optimize", {}), partial(measure_subjects, make_subjects()), our_subjects(), image_rates, format_results
    ).run(run_options, baseline)
