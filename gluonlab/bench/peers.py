"""gluonlab on two devices beside its peers: the classic Gluon loop, PyTorch in four ways, and gluonlab on one device.

A table per network: `COMPARISONS`.
"""

from __future__ import annotations

import importlib.util
import statistics
import textwrap
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence

from gluonlab.bench.environment import COMPILE_IN_PROCESS, LOOPBACK
from gluonlab.bench.record import Series
from gluonlab.bench.rounds import Measurement, Subject
from gluonlab.bench.work import TASKS, Task
from gluonlab.errors import ConfigError, unknown

ROUNDS = 9
COMPILE_TIMEOUT_S = 240.0
SHORT = {"sharded-optimizer": "sharded"}  # for a column of labels
NO_TORCH = "torch is not installed: pip install 'gluonlab[bench]'"


def lenet() -> List[Subject]:
    """LeNet's rows, the reference first. Without torch its rows say so."""
    return [
        _gluonlab("lenet", 2, 1),
        Subject("classic", "classic loop 2 devices", "classic", {"device_count": 2}),
        *_torch("lenet"),
        _gluonlab("lenet", 1, 2),
        _gluonlab("lenet", 1, 1),
    ]


def resnet18() -> List[Subject]:
    """ResNet-18's rows: the reference has the store that suits so many parameters best."""
    return [
        _gluonlab("resnet18", 2, 1, "sharded-optimizer"),
        _gluonlab("resnet18", 2, 1),
        *_torch("resnet18"),
        _gluonlab("resnet18", 1, 2),
        _gluonlab("resnet18", 1, 1),
    ]


def _gluonlab(task: str, device_count: int, threads: int, kvstore: str = "device") -> Subject:
    name, label = f"gluonlab-{device_count}x{threads}", f"gluonlab {device_count} device{'s' * (device_count > 1)}"
    if kvstore != "device":
        name, label = f"{name}-{kvstore}", f"{label} {SHORT.get(kvstore, kvstore)}"
    elif device_count == 1:
        label += f" {threads} thread{'s' * (threads > 1)}"
    return Subject(name, label, "gluonlab", {"task": task, "device_count": device_count, "threads": threads, "kvstore": kvstore})


def _torch(task: str) -> List[Subject]:
    missing = None if importlib.util.find_spec("torch") else NO_TORCH
    two = {"task": task, "threads": 2}
    return [
        Subject("torch-eager", "PyTorch eager 2 threads", "torch", two, missing=missing),
        Subject("torch-channels-last", "PyTorch channels-last", "torch", {**two, "channels_last": True}, missing=missing),
        Subject(
            "torch-compile", "PyTorch torch.compile", "torch", {**two, "compiled": True}, COMPILE_IN_PROCESS, missing,
            COMPILE_TIMEOUT_S,
        ),
        Subject("torch-ddp", "PyTorch DDP 2 processes", "torch-ddp", {"task": task, "world_size": 2}, LOOPBACK, missing),
    ]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the table: images/s over the rounds, or why there are none (``reason``).

    ``ratio``: the reference's images/s over this row's, the median of the rounds' ratios.
    """

    name: str
    label: str
    images_per_second: Optional[float] = None
    lowest: Optional[float] = None
    highest: Optional[float] = None
    ratio: Optional[float] = None
    reason: Optional[str] = None


@dataclass(frozen=True)
class Target:
    """What the project wants to be true of the table: the fastest of some rows is beaten by this factor."""

    at_least: float
    text: str
    against: Callable[[Row], bool]


@dataclass(frozen=True)
class Comparison:
    """A network's table: its rows, the reference first, and what is wanted of them."""

    task: Task
    subjects: Callable[[], List[Subject]]
    targets: Sequence[Target]


COMPARISONS = {
    "lenet": Comparison(
        TASKS["lenet"],
        lenet,
        (
            Target(2.0, "the classic loop", lambda row: row.name == "classic"),
            Target(1.15, "the best PyTorch row", lambda row: row.name.startswith("torch")),
            Target(1.8, "gluonlab 1 device 1 thread", lambda row: row.name == "gluonlab-1x1"),
        ),
    ),
    "resnet18": Comparison(
        TASKS["resnet18"],
        resnet18,
        (
            Target(0.95, "gluonlab 1 device 2 threads", lambda row: row.name == "gluonlab-1x2"),
            Target(1.0, "the best PyTorch row", lambda row: row.name.startswith("torch")),
        ),
    ),
}


def check_network(name: str) -> Comparison:
    """The comparison of this name. Raises ConfigError, with the choices."""
    if name not in COMPARISONS:
        raise ConfigError(unknown("network", name, COMPARISONS))
    return COMPARISONS[name]


def series(task: Task, measurements: Sequence[Measurement]) -> List[Series]:
    """Images/s, by round."""
    return [Series(one.subject.name, one.subject.label, "images/s", tuple(_rates(task, one)), one.reason) for one in measurements]


def _rates(task: Task, measurement: Measurement) -> List[float]:
    return [task.global_batch_size * measurement.steps / seconds for seconds in measurement.column("seconds")]


def ours(comparison: Comparison) -> List[Subject]:
    """The rows that a change of gluonlab changes."""
    return [subject for subject in comparison.subjects() if subject.job == "gluonlab"]


def make_rows(found: Sequence[Series]) -> List[Row]:
    """The table's numbers; the first series is the reference of the ratios."""
    return [_row(one, found[0].values) for one in found]


def _row(one: Series, reference: Sequence[float]) -> Row:
    own = one.values
    if not own:
        return Row(one.name, one.label, reason=one.reason)
    ratio = statistics.median(mine / its for mine, its in zip(reference, own)) if reference else None
    return Row(one.name, one.label, statistics.median(own), min(own), max(own), ratio)


def table(task: Task, rows: Sequence[Row], rounds: int, width: int = 80) -> str:
    """The rows as text, at most ``width`` columns wide."""
    heading = f"{'':<28}{'images/s':>9}   {'lowest..highest':>17}   {'gluonlab 2 / row':>17}"
    note = (
        f"{task.title}, global batch {task.global_batch_size}, {_rounds(rounds)}. images/s: the median; "
        "gluonlab 2 / row: images/s of the first row over this row's, the median of the rounds' ratios."
    )
    return "\n".join([heading, *(_line(row, width) for row in rows), "", textwrap.fill(note, width)])


def _rounds(count: int) -> str:
    return f"{count} interleaved round{'s' * (count > 1)}"


def _line(row: Row, width: int) -> str:
    if row.images_per_second is None:
        label = f"{row.label:<23}  "
        return label + textwrap.shorten(row.reason or "not measured", width - len(label), placeholder="...")
    extent = f"{row.lowest:,.0f}..{row.highest:,.0f}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    return f"{row.label:<28}{row.images_per_second:>9,.0f}   {extent:>17}   {ratio:>17}"


def verdicts(targets: Sequence[Target], rows: Sequence[Row]) -> List[str]:
    """A line per target: whether it was reached, or why that is not known."""
    return [_verdict(target, [row.ratio for row in rows if target.against(row) and row.ratio is not None]) for target in targets]


def _verdict(target: Target, ratios: List[float]) -> str:
    claim = f"2 devices >= {target.at_least:g}x {target.text}"
    if not ratios:
        return f"{claim}: not measured"
    lowest = min(ratios)  # over the fastest of these rows
    return f"{claim}: {lowest:.2f}x {'reached' if lowest >= target.at_least else 'not reached'}"
