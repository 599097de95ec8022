"""Benchmark of gluonlab on two devices with the classic Gluon loop, PyTorch, and one device."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from benchmarks import rates
from benchmarks.benchmark import OLD_OPTIONS, Benchmark, OtherCheckout, baseline_options, find_several_devices
from benchmarks.rates import ThroughputRow
from gluonlab.bench.harness.interleaved_rounds import Subject, image_rates, measure_subjects
from gluonlab.bench.harness.measurement_command import (
    DEVICES_OPTION,
    INTERRUPTED,
    MeasuredDevices,
    MeasurementOptions,
    cpu_devices,
    measurement_options,
    option,
)
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.bench.harness.table_format import format_table as as_table
from gluonlab.bench.harness.table_format import outcome_line, rounds_text
from gluonlab.bench.workloads import CLASSES, TASKS, Task
from gluonlab.cli.command import command
from gluonlab.errors import ConfigError, unknown
from gluonlab.host.resources import INSTRUCTION_SETS, ISA_LIMIT_VARIABLE, instruction_set

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROUNDS = 9
ON_CPUS = cpu_devices(2)
COMPILE_TIMEOUT_S = 240.0
SHORT = {"sharded-optimizer": "sharded"}  # for a column of labels
CPU_ROW = "only measured on CPUs"
NO_TORCH = "torch is not installed: run pip install 'gluonlab[bench]'"
LABEL_WIDTH = 28  # columns
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
# else a pool of processes stays beside the measured one
COMPILE_IN_PROCESS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


def images_and_labels(task: Task) -> "Tuple[NDArray[np.float32], NDArray[np.int32]]":
    """Return images in 0..1 and random labels (samples,), as in the data set ``synthetic``.

    They are created here because a process that measures PyTorch must not load MXNet. The labels
    are also random: a constant one is learned within seconds, and its gradients then become
    denormal numbers, with which every library computes slowly.
    """
    import numpy as np  # a bench's --help does without

    random = np.random.RandomState(0)
    images = random.randint(0, 256, (task.samples, *task.shape), dtype=np.uint8)
    labels = random.randint(0, CLASSES, task.samples).astype(np.int32)
    return images.astype(np.float32) / np.float32(255), labels


def torch_limit() -> Dict[str, str]:
    """Return a variable that limits PyTorch's operators as DNNL_MAX_CPU_ISA limits oneDNN, if set.

    PyTorch's oneDNN also obeys DNNL_MAX_CPU_ISA, but PyTorch's operators have a separate variable.
    """
    used = instruction_set()
    if ISA_LIMIT_VARIABLE not in os.environ or used == next(iter(INSTRUCTION_SETS)):
        return {}
    return {"ATEN_CPU_CAPABILITY": "avx2" if used == "AVX2" else "default"}


def missing_torch_reason() -> Optional[str]:
    """Return why PyTorch's rows are missing, or None."""
    return None if importlib.util.find_spec("torch") else NO_TORCH


def lenet_subjects(on: MeasuredDevices = ON_CPUS) -> List[Subject]:
    """Return LeNet's rows, the reference first. Without torch its rows have a reason instead."""
    count = len(on.numbers)
    options = {"device_count": count, **on.job_options(count)}
    label = f"classic loop {_device_count_text(count)}"
    return [
        _gluonlab_subject(on, "lenet", count, 1),
        Subject("classic", label, "classic", options, images=TASKS["lenet"].global_batch_size),
        *_torch_subjects(on, "lenet"),
        *_single_device_subjects(on, "lenet"),
    ]


def resnet18_subjects(on: MeasuredDevices = ON_CPUS) -> List[Subject]:
    """Return ResNet-18's rows. The reference has the fastest store for so many parameters."""
    count = len(on.numbers)
    return [
        _gluonlab_subject(on, "resnet18", count, 1, "sharded-optimizer"),
        _gluonlab_subject(on, "resnet18", count, 1),
        *_torch_subjects(on, "resnet18"),
        *_single_device_subjects(on, "resnet18"),
    ]


def _single_device_subjects(on: MeasuredDevices, task: str) -> List[Subject]:
    """Return one device: on CPUs once with the cores of both, and once with one core."""
    return [_gluonlab_subject(on, task, 1, threads) for threads in ((1,) if on.on_gpus else (2, 1))]


def _device_count_text(count: int) -> str:
    return f"{count} device{'s' * (count > 1)}"


def _gluonlab_subject(
    on: MeasuredDevices, task: str, device_count: int, threads: int, kvstore: str = "device"
) -> Subject:
    name, label = f"gluonlab-{device_count}x{threads}", f"gluonlab {_device_count_text(device_count)}"
    if kvstore != "device":
        name, label = f"{name}-{kvstore}", f"{label} {SHORT.get(kvstore, kvstore)}"
    elif device_count == 1 and not on.on_gpus:
        label += f" {threads} thread{'s' * (threads > 1)}"
    options = {"task": task, "device_count": device_count, "threads": threads, "kvstore": kvstore}
    options.update(on.job_options(device_count))
    return Subject(name, label, "gluonlab", options, images=TASKS[task].global_batch_size)


def _torch_subjects(on: MeasuredDevices, task: str) -> List[Subject]:
    missing, two = CPU_ROW if on.on_gpus else missing_torch_reason(), {"task": task, "threads": 2}
    rows: Sequence[Tuple[str, str, str, Dict[str, Any], Dict[str, str]]] = (
        ("eager", "eager 2 threads", "torch", two, {}),
        ("channels-last", "channels-last", "torch", {**two, "channels_last": True}, {}),
        ("compile", "torch.compile", "torch", {**two, "compiled": True}, COMPILE_IN_PROCESS),
        ("ddp", "DDP 2 processes", "torch-ddp", {"task": task, "world_size": 2}, LOOPBACK),
    )
    common = (missing, COMPILE_TIMEOUT_S, TASKS[task].global_batch_size)
    return [
        Subject(f"torch-{name}", f"PyTorch {label}", job, options, {**variables, **torch_limit()}, *common)
        for name, label, job, options, variables in rows
    ]


class Target(NamedTuple):
    """A target: two devices are this factor faster than the fastest of some rows.

    ``rows``: the prefix of the rows' names.
    """

    at_least: float
    text: str
    rows: str


Targets = Mapping[str, Sequence[Target]]  # by instruction set, as a record names it


class Comparison(NamedTuple):
    """A network's table: its rows, the reference first, and the targets."""

    task: Task
    subjects: Callable[..., List[Subject]]  # on which devices: `ON_CPUS` by default
    targets: Targets


def _lenet_targets(classic: float, torch: float) -> Sequence[Target]:
    return (
        Target(classic, "the classic loop", "classic"),
        Target(torch, "the best PyTorch row", "torch"),
        Target(1.8, "gluonlab 1 device 1 thread", "gluonlab-1x1"),
    )


LENET_TARGETS = {"AVX512_CORE": _lenet_targets(classic=2.1, torch=1.25), "AVX2": _lenet_targets(classic=2.5, torch=1.1)}
RESNET18_TARGETS = dict.fromkeys(
    LENET_TARGETS,
    (Target(0.95, "gluonlab 1 device 2 threads", "gluonlab-1x2"), Target(1.0, "the best PyTorch row", "torch")),
)
COMPARISONS = {
    "lenet": Comparison(TASKS["lenet"], lenet_subjects, LENET_TARGETS),
    "resnet18": Comparison(TASKS["resnet18"], resnet18_subjects, RESNET18_TARGETS),
}


def check_model(name: str) -> Comparison:
    """Return the comparison of this name. Raises ConfigError, with the choices."""
    if name not in COMPARISONS:
        raise ConfigError(unknown("model", name, COMPARISONS))
    return COMPARISONS[name]


def our_subjects(comparison: Comparison, on: MeasuredDevices = ON_CPUS) -> List[Subject]:
    """Return the rows that run gluonlab's code."""
    return [subject for subject in comparison.subjects(on) if subject.job == "gluonlab"]


def make_rows(series: Sequence[Series]) -> List[ThroughputRow]:
    """Return the table's numbers; ratios are the first series' images/s over the row's."""
    return [rates.make_row(item, series[0].values, item.values) for item in series]


def format_results(comparison: Comparison, record: Record, on: MeasuredDevices) -> str:
    """Return the table and, for two CPU devices, whether targets are reached.

    Targets depend on the instruction set with which the record was measured.
    """
    rows = make_rows(record.series)
    table_text = format_rates(comparison.task, rows, record.rounds, len(on.numbers))
    if on.named_by_user:
        return table_text
    instructions = record.about.get("instruction_set", "")
    if instructions not in comparison.targets:
        return f"{table_text}\n\nTargets are only set for {' and '.join(comparison.targets)}."
    targets = comparison.targets[instructions]
    return "\n".join([table_text, "", f"Targets with {instructions}:", *judge_targets(targets, rows)])


def format_rates(task: Task, rows: Sequence[ThroughputRow], rounds: int, devices: int = 2) -> str:
    """Return the rows as text; ``devices``: the first row's."""
    ratio = f"gluonlab {devices} / row"
    note = (
        f"{task.title}, global batch {task.global_batch_size}, {rounds_text(rounds)}. images/s: "
        f"the median; {ratio}: images/s of the first row relative to this row, the median of the "
        "rounds' ratios."
    )
    lines = [rates.format_heading("", LABEL_WIDTH, ratio), *(rates.format_row(row, LABEL_WIDTH) for row in rows)]
    return as_table(lines, note)


def judge_targets(targets: Sequence[Target], rows: Sequence[ThroughputRow]) -> List[str]:
    """Return a line for each target: whether it was reached, or that it was not measured."""
    lines = []
    for target in targets:
        claim = f"2 devices >= {target.at_least:g}x {target.text}"
        row_ratios = (row.ratio for row in rows if row.name.startswith(target.rows))
        ratios = [ratio for ratio in row_ratios if ratio is not None]
        lowest = min(ratios, default=0.0)  # over the fastest of these rows
        ratio_text = f"{lowest:.2f}x" if ratios else None
        lines.append(outcome_line(claim, ratio_text, lowest >= target.at_least))
    return lines


@command("python tools/benchmarks frameworks", INTERRUPTED, renamed={"--network": "--model", **OLD_OPTIONS})
@measurement_options(ROUNDS)
@baseline_options
@DEVICES_OPTION
@option("--model", "NAME", f"one of {', '.join(COMPARISONS)}", "lenet")
def main(
    run_options: MeasurementOptions, baseline: Optional[OtherCheckout], devices: Optional[str], model: str
) -> None:
    """Compare gluonlab with the classic Gluon loop and PyTorch.

    The frameworks train on two CPU devices, or on --devices. Missed targets are reported, and do
    not change the exit status.
    """
    comparison = check_model(model)
    on = find_several_devices(devices, ON_CPUS, "the rows compare several devices with one")
    Benchmark(
        ("peers", {"network": model, **on.record_options()}),
        partial(measure_subjects, comparison.subjects(on)),
        our_subjects(comparison, on),
        image_rates,
        lambda record: format_results(comparison, record, on),
        on,
    ).run(run_options, baseline)
