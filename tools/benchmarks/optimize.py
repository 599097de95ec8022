"""Images/s of tutorials' networks as they are and optimized, in turns, and the ratio of both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import List, NamedTuple, Optional, Sequence, Tuple

from benchmarks.benchmark import Benchmark, Beside, in_turns
from benchmarks.rates import Ratio, of_pairs
from gluonlab.bench.harness import table_format as texts
from gluonlab.bench.harness.interleaved_rounds import Subject, image_rates, measure_subjects
from gluonlab.bench.harness.measurement_command import (
    INTERRUPTED,
    MeasurementOptions,
    measurement_options,
)
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.cli.command import command


class Task(NamedTuple):
    """A network, and random images for it.

    ``network``: the function of `benchmarks.optimize_job`. ``batch``: the shape
    (n, C, H, W) of a batch. ``batches``: how many there are. ``learning_rate``: the tutorial's.
    """

    title: str
    network: str
    batch: Tuple[int, int, int, int]
    batches: int
    learning_rate: float


TASKS = {
    "mnist-cnn": Task("MXNet's CNN for MNIST", "mnist_cnn", (64, 1, 28, 28), 64, 0.02),
    "lenet": Task("d2l's LeNet", "lenet", (64, 1, 28, 28), 64, 0.9),
    "lenet-batch-norm": Task(
        "d2l's LeNet with BatchNorm", "lenet_with_batch_norm", (64, 1, 28, 28), 64, 1.0
    ),
    "nin": Task("d2l's NiN", "nin", (8, 1, 96, 96), 32, 0.1),
    "googlenet": Task("d2l's GoogLeNet", "googlenet", (8, 1, 96, 96), 32, 0.1),
}


ROUNDS = 9
START_TIMEOUT_S = 240.0  # a network is trained for some steps before, as it is and optimized
PLAIN, OPTIMIZED = "plain", "optimized"
LABELS = 28  # columns
_NOTE = (
    "One CPU device with one thread, a plain Gluon loop, {rounds}. images/s: medians. "
    "faster by: optimized over plain, the median of the rounds' ratios, with its 95 % interval."
)


@dataclass(frozen=True)
class Row:
    """Images/s of a network, medians over the rounds, or the ``reason`` for none."""

    name: str
    label: str
    batch: str
    plain: Optional[float] = None
    optimized: Optional[float] = None
    faster: Optional[Ratio] = None
    reason: Optional[str] = None


def subjects() -> List[Subject]:
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


def ours() -> List[Subject]:
    """Return the subjects that gluonlab's code makes faster."""
    return [subject for subject in subjects() if subject.options["optimized"]]


def make_rows(found: Sequence[Series]) -> List[Row]:
    """Return the table's numbers."""
    by_name = {one.name: one for one in found}
    return [
        _row(name, by_name[f"{name} {PLAIN}"], by_name[f"{name} {OPTIMIZED}"])
        for name in TASKS
        if f"{name} {PLAIN}" in by_name and f"{name} {OPTIMIZED}" in by_name
    ]


def _row(name: str, plain: Series, optimized: Series) -> Row:
    size, _, height, width = TASKS[name].batch
    head = (name, TASKS[name].title, f"{size} of {height}x{width}")
    if not (plain.values and optimized.values):
        return Row(*head, reason=plain.reason or optimized.reason)
    return Row(
        *head,
        median(plain.values),
        median(optimized.values),
        of_pairs(optimized.values, plain.values),
    )


def text(record: Record) -> str:
    """Return the table as text."""
    heading = f"{'':<{LABELS}}{'batch':>11}{'plain':>9}{'optimized':>11}  faster by"
    lines = [heading, *map(_line, make_rows(record.series))]
    return texts.format_table(lines, _NOTE.format(rounds=texts.rounds_text(record.rounds)))


def _line(row: Row) -> str:
    head = f"{row.label:<{LABELS}}{row.batch:>11}"
    if row.plain is None:
        return texts.missing_row(f"{head}  ", row.reason)
    return f"{head}{row.plain:>9,.0f}{row.optimized:>11,.0f}  {row.faster}"


@command("python tools/benchmarks optimize", INTERRUPTED)
@measurement_options(ROUNDS)
@in_turns
def main(asked: MeasurementOptions, beside: Optional[Beside]) -> None:
    """Measure tutorials' networks before and after gluonlab.optimize.

    They train on one CPU device with one thread. The losses of the first steps are compared, and a
    row whose losses differ shows them instead of a speed.
    A slow result is a result: it does not change the exit status.
    """
    Benchmark(
        ("optimize", {}), partial(measure_subjects, subjects()), ours(), image_rates, text
    ).run(asked, beside)
