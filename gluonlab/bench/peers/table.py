"""gluonlab on two devices beside its peers: the classic Gluon loop, PyTorch in four ways, and
gluonlab on one device.

A table per network: `COMPARISONS`.
"""

from __future__ import annotations

import importlib.util
import statistics
import textwrap
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence

from gluonlab.bench.harness.environment import COMPILE_IN_PROCESS, LOOPBACK
from gluonlab.bench.harness.measured_on import MeasuredOn, cpu_devices, measured_on
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Measurement, Subject
from gluonlab.bench.peers.work import TASKS, Task
from gluonlab.errors import ConfigError, unknown

ROUNDS = 9
ON_CPUS = cpu_devices(2)
COMPILE_TIMEOUT_S = 240.0
SHORT = {"sharded-optimizer": "sharded"}  # for a column of labels
CPU_ROW = "measured on CPUs only"
NO_TORCH = "torch is not installed: pip install 'gluonlab[bench]'"


def lenet(on: MeasuredOn = ON_CPUS) -> List[Subject]:
    """LeNet's rows, the reference first. Without torch its rows say so."""
    count = len(on.numbers)
    return [
        _gluonlab(on, "lenet", count, 1),
        Subject(
            "classic",
            f"classic loop {_devices(count)}",
            "classic",
            {"device_count": count, **on.options(count)},
        ),
        *_torch(on, "lenet"),
        *_alone(on, "lenet"),
    ]


def resnet18(on: MeasuredOn = ON_CPUS) -> List[Subject]:
    """ResNet-18's rows: the reference has the store that suits so many parameters best."""
    count = len(on.numbers)
    return [
        _gluonlab(on, "resnet18", count, 1, "sharded-optimizer"),
        _gluonlab(on, "resnet18", count, 1),
        *_torch(on, "resnet18"),
        *_alone(on, "resnet18"),
    ]


def _alone(on: MeasuredOn, task: str) -> List[Subject]:
    """One device: of a CPU with the cores of both, and with one of them."""
    return [_gluonlab(on, task, 1, threads) for threads in ((1,) if on.on_gpus else (2, 1))]


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count > 1)}"


def _gluonlab(
    on: MeasuredOn, task: str, device_count: int, threads: int, kvstore: str = "device"
) -> Subject:
    name, label = f"gluonlab-{device_count}x{threads}", f"gluonlab {_devices(device_count)}"
    if kvstore != "device":
        name, label = f"{name}-{kvstore}", f"{label} {SHORT.get(kvstore, kvstore)}"
    elif device_count == 1 and not on.on_gpus:
        label += f" {threads} thread{'s' * (threads > 1)}"
    options = {
        "task": task,
        "device_count": device_count,
        "threads": threads,
        "kvstore": kvstore,
        **on.options(device_count),
    }
    return Subject(name, label, "gluonlab", options)


def _torch(on: MeasuredOn, task: str) -> List[Subject]:
    missing = CPU_ROW if on.on_gpus else None if importlib.util.find_spec("torch") else NO_TORCH
    two = {"task": task, "threads": 2}
    return [
        Subject("torch-eager", "PyTorch eager 2 threads", "torch", two, missing=missing),
        Subject(
            "torch-channels-last",
            "PyTorch channels-last",
            "torch",
            {**two, "channels_last": True},
            missing=missing,
        ),
        Subject(
            "torch-compile",
            "PyTorch torch.compile",
            "torch",
            {**two, "compiled": True},
            COMPILE_IN_PROCESS,
            missing,
            COMPILE_TIMEOUT_S,
        ),
        Subject(
            "torch-ddp",
            "PyTorch DDP 2 processes",
            "torch-ddp",
            {"task": task, "world_size": 2},
            LOOPBACK,
            missing,
        ),
    ]


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
    """What the project wants to be true of the table: the fastest of some rows is beaten by this
    factor.
    """

    at_least: float
    text: str
    against: Callable[[Row], bool]


@dataclass(frozen=True)
class Comparison:
    """A network's table: its rows, the reference first, and what is wanted of them."""

    task: Task
    subjects: Callable[..., List[Subject]]  # on which devices: `ON_CPUS` by default
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
    return [
        Series(
            one.subject.name, one.subject.label, "images/s", tuple(_rates(task, one)), one.reason
        )
        for one in measurements
    ]


def _rates(task: Task, measurement: Measurement) -> List[float]:
    return [
        task.global_batch_size * measurement.steps / seconds
        for seconds in measurement.column("seconds")
    ]


def on_devices(spec: Optional[str]) -> MeasuredOn:
    """What --devices names, two or more; two CPU devices without it. Raises ConfigError for one."""
    on = ON_CPUS if spec is None else measured_on(spec)
    if len(on.numbers) < 2:
        raise ConfigError(
            f"--devices {spec}: the rows compare several devices with one: name two or more"
        )
    return on


def ours(comparison: Comparison, on: MeasuredOn = ON_CPUS) -> List[Subject]:
    """The rows that a change of gluonlab changes."""
    return [subject for subject in comparison.subjects(on) if subject.job == "gluonlab"]


def make_rows(found: Sequence[Series]) -> List[Row]:
    """The table's numbers; the first series is the reference of the ratios."""
    return [_row(one, found[0].values) for one in found]


def _row(one: Series, reference: Sequence[float]) -> Row:
    own = one.values
    if not own:
        return Row(one.name, one.label, reason=one.reason)
    ratio = (
        statistics.median(mine / its for mine, its in zip(reference, own)) if reference else None
    )
    return Row(one.name, one.label, statistics.median(own), min(own), max(own), ratio)


def table(task: Task, rows: Sequence[Row], rounds: int, width: int = 80, devices: int = 2) -> str:
    """The rows as text, at most ``width`` columns wide; ``devices``: those of the first row."""
    ratio = f"gluonlab {devices} / row"
    heading = f"{'':<28}{'images/s':>9}   {'lowest..highest':>17}   {ratio:>17}"
    note = (
        f"{task.title}, global batch {task.global_batch_size}, {_rounds(rounds)}. images/s: "
        f"the median; {ratio}: images/s of the first row over this row's, "
        "the median of the rounds' ratios."
    )
    return "\n".join(
        [heading, *(_line(row, width) for row in rows), "", textwrap.fill(note, width)]
    )


def _rounds(count: int) -> str:
    return f"{count} interleaved round{'s' * (count > 1)}"


def _line(row: Row, width: int) -> str:
    if row.images_per_second is None:
        label = f"{row.label:<23}  "
        return label + textwrap.shorten(
            row.reason or "not measured", width - len(label), placeholder="..."
        )
    extent = f"{row.lowest:,.0f}..{row.highest:,.0f}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    return f"{row.label:<28}{row.images_per_second:>9,.0f}   {extent:>17}   {ratio:>17}"


def verdicts(targets: Sequence[Target], rows: Sequence[Row]) -> List[str]:
    """A line per target: whether it was reached, or why that is not known."""
    return [
        _verdict(
            target, [row.ratio for row in rows if target.against(row) and row.ratio is not None]
        )
        for target in targets
    ]


def _verdict(target: Target, ratios: List[float]) -> str:
    claim = f"2 devices >= {target.at_least:g}x {target.text}"
    if not ratios:
        return f"{claim}: not measured"
    lowest = min(ratios)  # over the fastest of these rows
    return f"{claim}: {lowest:.2f}x {'reached' if lowest >= target.at_least else 'not reached'}"
