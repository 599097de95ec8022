"""``bench strategies``: compares the parallel strategies of a model.

The strategies are data parallelism, splits of layers or channels, and pipelines. This module
contains their names and options, and the tables of results. `gluonlab.bench.measure_splits` makes
the measurements. This module does not import MXNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from gluonlab.bench.harness.confidence_interval import median_ratio
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table, missing_row, outcome_line, rounds_text
from gluonlab.bench.workloads import Task
from gluonlab.config.option_checks import whole_number_check
from gluonlab.errors import ConfigError, unknown
from gluonlab.parallel.pipeline.pipeline_cost import ideal_bubble

DEFAULT_DEVICES, DEFAULT_MICROBATCHES, ROUNDS = 2, 8, 9
ONE, DATA, LAYERS, CHANNELS = "one", "data", "layers", "channels"
GPIPE, ONE_F_ONE_B, INTERLEAVED = PIPELINES = ("gpipe", "1f1b", "interleaved")
SPLIT_NAMES = (ONE, DATA, LAYERS, CHANNELS, *PIPELINES)
SEPARATELY_CUT = (ONE_F_ONE_B, INTERLEAVED)  # other splits into stages have the cuts of 1f1b
ISOLATED_STAGES_OF = {GPIPE: ONE_F_ONE_B}  # gpipe has the stages of 1f1b, so they are measured only once
ALLREDUCE_STORE = "sharded"  # sums gradients, and the activations of split channels
COST_TOPOLOGY = "p3.16xlarge"
# On 64x64 images ResNet-18's eight blocks compute about equally much, so stages can be balanced.
TASKS = {
    "resnet18": Task("ResNet-18 64x64", "resnet18", (3, 64, 64), 64),
    "resnet8": Task("ResNet-8 32x32", "resnet8", (3, 32, 32), 64),
    "lenet": Task("LeNet 28x28", "lenet", (1, 28, 28), 128),
    "alexnet": Task("AlexNet, two towers, 63x63", "alexnet-2towers", (3, 63, 63), 64),
    "mlp": Task("MLP 28x28", "mlp", (1, 28, 28), 128),
}


def find_task(name: str, tasks: Mapping[str, Task] = TASKS) -> Task:
    """Return the task with this name.

    If the name is unknown, raises a ConfigError that lists the choices.
    """
    if name not in tasks:
        raise ConfigError(unknown("model", name, tasks))
    return tasks[name]


def run_options(name: str, microbatches: int) -> Dict[str, Any]:
    """Return the options for a run with the split ``name``, one of SPLIT_NAMES."""
    if name in PIPELINES:
        schedule = {"pipeline_schedule": name, "microbatches": microbatches}
        return {"strategy": "pipeline", **schedule}
    return {"strategy": {ONE: DATA, CHANNELS: "tensor"}.get(name, name)}


def check_microbatches(text: str, task: Task) -> int:
    """Return the value of --microbatches. Raises ConfigError if it exceeds the batch."""
    return int(whole_number_check(1, task.global_batch_size)("--microbatches", text))


# --- the tables

# a pipeline's step may take this factor longer than the bubble of its schedule explains
OVERLAP_MARGIN = 1.1
MB, MOST_SHOWN = 1e6, 4


@dataclass(frozen=True)
class SplitRow:
    """The measurement of a split.

    Attributes:
        name: a name of SPLIT_NAMES.
        label: the name in the table.
        cuts: the numbers of the layers before which the network is cut, as text.
        seconds: seconds per step in each round.
        speed: the time of a step on one device divided by the time of a step with this split.
        moved_bytes: bytes that devices send each other in a step.
        links_s: predicted seconds to send these bytes on COST_TOPOLOGY.
        memory: bytes of memory on each device.
        reason: why the split was not measured, or None.
    """

    name: str
    label: str
    cuts: str = ""
    seconds: Tuple[float, ...] = ()
    speed: Optional[float] = None
    moved_bytes: float = 0.0
    links_s: float = 0.0
    memory: Tuple[float, ...] = ()
    reason: Optional[str] = None


@dataclass(frozen=True)
class PipelineRow:
    """The time per step of a pipeline, and the fraction of time that devices are idle (bubble).

    Attributes:
        name: the name of the pipeline schedule.
        step_s: measured seconds per step.
        predicted_s: seconds predicted from measured stages, on COST_TOPOLOGY.
        bubble: the measured bubble.
        predicted_bubble: the bubble predicted from measured stages, on COST_TOPOLOGY.
        ideal_bubble: the bubble (p-1) / (v m + p-1) of p devices with v equal stages each, for m
            microbatches.
        host_s: the seconds that the host needs to queue an instruction.
    """

    name: str
    step_s: float
    predicted_s: float
    bubble: float
    predicted_bubble: float
    ideal_bubble: float
    host_s: float


class NamedSeries:
    """The series in a record, by name."""

    def __init__(self, series: Sequence[Series]) -> None:
        self._named = {item.name: item for item in series}

    def get_series(self, name: str) -> Series:
        """Return the series of this name."""
        return self._named[name]

    def get_values(self, name: str) -> Tuple[float, ...]:
        """Return the values of a series, or () if there is no such series."""
        return self._named[name].values if name in self._named else ()

    def get_numbered_values(self, name: str) -> List[Tuple[float, ...]]:
        """Return the values of the series ``name 0``, ``name 1`` and so on, while they exist."""
        count = 0
        while f"{name} {count}" in self._named:
            count += 1
        return [self.get_values(f"{name} {number}") for number in range(count)]


def make_rows(series: Sequence[Series]) -> List[SplitRow]:
    """Return a row for each split, in the order of SPLIT_NAMES."""
    named_series = NamedSeries(series)
    return [_split_row(named_series, name) for name in SPLIT_NAMES]


def _split_row(named_series: NamedSeries, name: str) -> SplitRow:
    """Return the row of one split, with its speed relative to a single device."""
    step, single_device_s = named_series.get_series(f"step {name}"), named_series.get_values(f"step {ONE}")
    label, _, cuts = step.label.partition(", cut ")
    if not step.values:
        return SplitRow(name, label, reason=step.reason)
    moved, links = (named_series.get_values(f"{quantity} {name}") or (0.0,) for quantity in ("moved", "links"))
    memory = tuple(values[0] for values in named_series.get_numbered_values(f"memory {name}"))
    speed = median_ratio(single_device_s, step.values) if single_device_s else None
    return SplitRow(name, label, cuts, step.values, speed, moved[0], links[0], memory)


def make_pipeline_rows(series: Sequence[Series], microbatches: int) -> List[PipelineRow]:
    """Return a row for each measured pipeline."""
    named_series = NamedSeries(series)
    measured = [name for name in PIPELINES if named_series.get_values(f"step {name}")]
    return [_pipeline_row(named_series, name, microbatches) for name in measured]


def _pipeline_row(named_series: NamedSeries, name: str, microbatches: int) -> PipelineRow:
    """Return the row of one pipeline: its times, and the measured, predicted and ideal bubble."""
    step, devices = named_series.get_series(f"step {name}"), len(named_series.get_numbered_values(f"memory {name}"))
    measured_name = ISOLATED_STAGES_OF.get(name, name)
    stages = named_series.get_numbered_values(f"alone {measured_name}")
    updates = [named_series.get_values(f"update {measured_name} {device}") for device in range(devices)]
    work = [sum(round_seconds) for round_seconds in zip(*stages, *filter(None, updates))]
    busy = median_ratio(work, [devices * seconds for seconds in step.values])
    return PipelineRow(
        name, median(step.values), named_series.get_values(f"price {name}")[0], 1 - busy,
        named_series.get_values(f"price bubble {name}")[0],
        ideal_bubble(devices, microbatches, len(stages) // devices),
        median(named_series.get_values(f"host {name}")),
    )  # fmt: skip


def judge_overlap(series: Sequence[Series], microbatches: int) -> str:
    """Return a line that compares a pipeline's step with independent runs of its stages.

    The reference is the time of all stages when they run at the same time and do not wait for each
    other. With 2 devices and 8 microbatches, the line also reports whether the pipeline is fast
    enough.
    """
    named_series = NamedSeries(series)
    devices = len(named_series.get_numbered_values(f"memory {ONE_F_ONE_B}"))
    step, at_once = named_series.get_values(f"step {ONE_F_ONE_B}"), named_series.get_values("at once")
    slowdown = median_ratio(step, at_once) if step and at_once else None
    slowdown_text = None if slowdown is None else f"{slowdown:.2f}x"
    reference = "its stages run independently"
    if (devices, microbatches) != (DEFAULT_DEVICES, DEFAULT_MICROBATCHES):
        return f"a step of 1f1b compared with {reference}: {slowdown_text or 'not measured'}"
    limit = OVERLAP_MARGIN * (microbatches + devices - 1) / microbatches
    reached = slowdown is not None and slowdown <= limit
    return outcome_line(f"a step of 1f1b <= {limit:.4g}x {reference}", slowdown_text, reached)


def format_results(series: Sequence[Series], task: Task, microbatches: int, rounds: int) -> str:
    """Return the tables of splits and pipelines, and the line of `judge_overlap`."""
    return "\n\n".join(
        [
            _split_table(make_rows(series), task, rounds),
            _pipeline_table(make_pipeline_rows(series, microbatches), microbatches),
            judge_overlap(series, microbatches),
        ]
    )


def _split_table(rows: Sequence[SplitRow], task: Task, rounds: int) -> str:
    """Return the table of all splits, with an explanation of its columns."""
    lines = [
        f"{task.title}, batches of {task.global_batch_size}",
        f"{'':<14}{'ms':>9}{'speed':>7}{'moved MB':>10}{'links ms':>10}  memory MB",
    ]
    for row in rows:
        label = f"{row.label:<14}"
        if row.reason is not None or not row.seconds:
            lines.append(missing_row(label, row.reason))
            continue
        speed = "" if row.speed is None else f"{row.speed:.2f}x"
        lines.append(
            f"{label}{median(row.seconds) * 1e3:>9.2f}{speed:>7}{row.moved_bytes / MB:>10.2f}"
            f"{row.links_s * 1e3:>10.2f}  {format_megabytes(row.memory)}"
        )
    note = (
        f"ms: time of a step of SGD with momentum, the median of {rounds_text(rounds)}. "
        "speed: speed-up over one device. moved: bytes that devices send each other per step. "
        f"links: predicted time of these messages on {COST_TOPOLOGY}, one after the other. "
        "memory: estimate of --estimate-memory for each device."
    )
    cuts = "; ".join(f"{row.label} {row.cuts}" for row in rows if row.cuts)
    note += f" First layers of the stages: {cuts}." if cuts else ""
    return format_table(lines, note)


def format_megabytes(sizes: Sequence[float]) -> str:
    """Return sizes in MB, such as ``66 102``.

    If there are more than four sizes, return only their range, such as ``7..12``.
    """
    several = len(sizes) > MOST_SHOWN
    numbers = [min(sizes), max(sizes)] if several else sizes
    return (".." if several else " ").join(f"{size / MB:.0f}" for size in numbers)


def _pipeline_table(rows: Sequence[PipelineRow], microbatches: int) -> str:
    """Return the table of all pipelines, with an explanation of its columns."""
    lines = [
        f"{microbatches} microbatches",
        f"{'':<14}{'ms':>9}{'predicted':>10}{'bubble':>9}{'pred.':>9}{'ideal':>7}{'host us':>9}",
    ]
    for row in rows:
        lines.append(
            f"{row.name:<14}{row.step_s * 1e3:>9.2f}{row.predicted_s * 1e3:>10.2f}"
            f"{row.bubble:>9.1%}{row.predicted_bubble:>9.1%}{row.ideal_bubble:>7.1%}{row.host_s * 1e6:>9.1f}"
        )
    note = (
        "bubble: 1 - work / (devices x step), where work is the time of stages and updates, "
        "measured separately. predicted, pred.: calculated from the same times and the schedule, "
        f"on the links of {COST_TOPOLOGY}. ideal: (p-1) / (v m + p-1). host us: launch overhead "
        "of an instruction."
    )
    return format_table(lines, note)
