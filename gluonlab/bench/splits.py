"""``bench splits``: a network spread over devices in each of the possible ways.

This module has the ways, the command and its tables, made from the series that
`gluonlab.bench.measure_splits` measures. It does not import MXNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from gluonlab.bench.harness.confidence_interval import ratio
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import interleaved, missing, outcome
from gluonlab.bench.harness.table_format import table as as_table
from gluonlab.bench.workloads import Task
from gluonlab.config.option_types import whole_number_check
from gluonlab.errors import ConfigError, unknown
from gluonlab.parallel.pipeline.pipeline_cost import ideal_bubble

DEVICES, MICROBATCHES, ROUNDS = 2, 8, 9
ONE, DATA, LAYERS, CHANNELS = "one", "data", "layers", "channels"
GPIPE, ONE_F_ONE_B, INTERLEAVED = PIPELINES = ("gpipe", "1f1b", "interleaved")
NAMES = (ONE, DATA, LAYERS, CHANNELS, *PIPELINES)
CUT_APART = (ONE_F_ONE_B, INTERLEAVED)  # the cuts of the others are the first one's
APART = {GPIPE: ONE_F_ONE_B}  # the way whose stages are measured, where that is another one
SUMS = "sharded"  # the allreduce of gradients, and of the activations of split channels
LINKS = "p3.16xlarge"
# On 64x64 images each of ResNet-18's eight blocks computes about as much as any other, so that its
# stages can be balanced.
TASKS = {
    "resnet18": Task("ResNet-18 64x64", "resnet18", (3, 64, 64), 64),
    "resnet8": Task("ResNet-8 32x32", "resnet8", (3, 32, 32), 64),
    "lenet": Task("LeNet 28x28", "lenet", (1, 28, 28), 128),
    "alexnet": Task("AlexNet, two towers, 63x63", "alexnet-2towers", (3, 63, 63), 64),
    "mlp": Task("MLP 28x28", "mlp", (1, 28, 28), 128),
}


def check_network(name: str, tasks: Mapping[str, Task] = TASKS) -> Task:
    """The one of the ``tasks`` with this name. Raises ConfigError, with the choices, for others."""
    if name not in tasks:
        raise ConfigError(unknown("network", name, tasks))
    return tasks[name]


def run_options(name: str, microbatches: int) -> Dict[str, Any]:
    """The options of a run that is spread over its devices in one of NAMES."""
    if name in PIPELINES:
        schedule = {"pipeline_schedule": name, "microbatches": microbatches}
        return {"split": "pipeline", **schedule}
    return {"split": DATA if name == ONE else name}


def check_microbatches(text: str, task: Task) -> int:
    """How many microbatches a pipeline's batch has. Raises ConfigError."""
    return int(whole_number_check(1, task.global_batch_size)("--microbatches", text))


# --- the tables

MARGIN = 1.1  # of what the schedule's bubble alone allows
MB, MOST_SHOWN = 1e6, 4


@dataclass(frozen=True)
class SplitRow:
    """A way of the network over devices. ``speed``: one device's time of a step over this one's.

    ``cuts``: the layers with which stages begin, but the first, as text. ``memory``: bytes of each
    device. ``links_s``: what is moved, priced on LINKS.
    """

    name: str
    label: str
    cuts: str = ""
    seconds: Tuple[float, ...] = ()
    speed: Optional[float] = None
    moved: float = 0.0
    links_s: float = 0.0
    memory: Tuple[float, ...] = ()
    reason: Optional[str] = None


@dataclass(frozen=True)
class PipelineRow:
    """A pipeline: the share of the devices' time in which they are idle, measured and expected.

    ``ideal``: (p-1) / (v m + p-1). ``priced``: with measured stages, on LINKS. ``host_s``: of the
    host's time, for an instruction.
    """

    name: str
    step_s: float
    price_s: float
    bubble: float
    priced: float
    ideal: float
    host_s: float


class NamedSeries:
    """The series of a record, by name."""

    def __init__(self, series: Sequence[Series]) -> None:
        self._named = {one.name: one for one in series}

    def series(self, name: str) -> Series:
        """That of this name."""
        return self._named[name]

    def values(self, name: str) -> Tuple[float, ...]:
        """Its values; none if there is no such series."""
        return self._named[name].values if name in self._named else ()

    def numbered(self, name: str) -> List[Tuple[float, ...]]:
        """The values of ``name 0``, ``name 1`` and so on, as far as there are any."""
        count = 0
        while f"{name} {count}" in self._named:
            count += 1
        return [self.values(f"{name} {number}") for number in range(count)]


def make_rows(series: Sequence[Series]) -> List[SplitRow]:
    """All ways, in their order."""
    found = NamedSeries(series)
    one = found.values(f"step {ONE}")
    return [_row(found, found.series(f"step {name}"), name, one) for name in NAMES]


def _row(found: NamedSeries, step: Series, name: str, one: Sequence[float]) -> SplitRow:
    label, _, cuts = step.label.partition(", cut ")
    if not step.values:
        return SplitRow(name, label, reason=step.reason)
    moved, links = (found.values(f"{what} {name}") or (0.0,) for what in ("moved", "links"))
    memory = tuple(values[0] for values in found.numbered(f"memory {name}"))
    speed = ratio(one, step.values) if one else None
    return SplitRow(name, label, cuts, step.values, speed, moved[0], links[0], memory)


def make_pipeline_rows(series: Sequence[Series], microbatches: int) -> List[PipelineRow]:
    """The pipelines that were measured."""
    found = NamedSeries(series)
    there = [name for name in PIPELINES if found.values(f"step {name}")]
    return [_pipeline_row(found, name, microbatches) for name in there]


def _pipeline_row(found: NamedSeries, name: str, microbatches: int) -> PipelineRow:
    step, devices = found.series(f"step {name}"), len(found.numbered(f"memory {name}"))
    apart = APART.get(name, name)
    stages = found.numbered(f"alone {apart}")
    updates = [found.values(f"update {apart} {device}") for device in range(devices)]
    work = [sum(of_round) for of_round in zip(*stages, *filter(None, updates))]
    busy = ratio(work, [devices * seconds for seconds in step.values])
    return PipelineRow(
        name, median(step.values), found.values(f"price {name}")[0], 1 - busy,
        found.values(f"price bubble {name}")[0],
        ideal_bubble(devices, microbatches, len(stages) // devices),
        median(found.values(f"host {name}")),
    )  # fmt: skip


def verdict(series: Sequence[Series], microbatches: int) -> str:
    """Whether the pipeline overlaps: its step beside its stages at once, each for itself.

    Judged for 2 devices and 8 microbatches.
    """
    found = NamedSeries(series)
    devices = len(found.numbered(f"memory {ONE_F_ONE_B}"))
    step, at_once = found.values(f"step {ONE_F_ONE_B}"), found.values("at once")
    value = ratio(step, at_once) if step and at_once else None
    shown = None if value is None else f"{value:.2f}x"
    beside = "its stages at once, each for itself"
    if (devices, microbatches) != (DEVICES, MICROBATCHES):
        return f"a step of 1f1b beside {beside}: {shown or 'not measured'}"
    most = MARGIN * (microbatches + devices - 1) / microbatches
    reached = value is not None and value <= most
    return outcome(f"a step of 1f1b <= {most:.4g}x {beside}", shown, reached)


def text(series: Sequence[Series], task: Task, microbatches: int, rounds: int) -> str:
    """All tables, and the verdict."""
    return "\n\n".join(
        [
            _ways(make_rows(series), task, rounds),
            _pipelines(make_pipeline_rows(series, microbatches), microbatches),
            verdict(series, microbatches),
        ]
    )


def _ways(rows: Sequence[SplitRow], task: Task, rounds: int) -> str:
    lines = [
        f"{task.title}, batches of {task.global_batch_size}",
        f"{'':<14}{'ms':>9}{'speed':>7}{'moved MB':>10}{'links ms':>10}  memory MB",
    ]
    for row in rows:
        label = f"{row.label:<14}"
        if row.reason is not None or not row.seconds:
            lines.append(missing(label, row.reason))
            continue
        speed = "" if row.speed is None else f"{row.speed:.2f}x"
        lines.append(
            f"{label}{median(row.seconds) * 1e3:>9.2f}{speed:>7}{row.moved / MB:>10.2f}"
            f"{row.links_s * 1e3:>10.2f}  {in_megabytes(row.memory)}"
        )
    note = (
        f"ms: of a step of SGD with momentum, the median of {interleaved(rounds)}. "
        "speed: one device's time over this one's. moved: what devices send each other in a step. "
        f"links: the price of that on {LINKS}, one message after the other. "
        "memory: of each device, as --memory plans it."
    )
    cuts = "; ".join(f"{row.label} {row.cuts}" for row in rows if row.cuts)
    note += f" Layers with which stages begin: {cuts}." if cuts else ""
    return as_table(lines, note)


def in_megabytes(sizes: Sequence[float]) -> str:
    """``66 102``; of more than four the smallest and the largest, ``7..12``."""
    several = len(sizes) > MOST_SHOWN
    shown = [min(sizes), max(sizes)] if several else sizes
    return (".." if several else " ").join(f"{size / MB:.0f}" for size in shown)


def _pipelines(rows: Sequence[PipelineRow], microbatches: int) -> str:
    lines = [
        f"{microbatches} microbatches",
        f"{'':<14}{'ms':>9}{'priced':>10}{'bubble':>9}{'priced':>9}{'ideal':>7}{'host us':>9}",
    ]
    for row in rows:
        lines.append(
            f"{row.name:<14}{row.step_s * 1e3:>9.2f}{row.price_s * 1e3:>10.2f}"
            f"{row.bubble:>9.1%}{row.priced:>9.1%}{row.ideal:>7.1%}{row.host_s * 1e6:>9.1f}"
        )
    note = (
        "bubble: 1 - work / (devices x step), the work being that of stages and updates, each "
        f"measured by itself; priced: by the schedule from the same times, on {LINKS}'s links; "
        "ideal: (p-1) / (v m + p-1). host us: of an instruction, for which the host's "
        "thread computes to queue it."
    )
    return as_table(lines, note)
