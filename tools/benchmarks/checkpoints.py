"""Benchmark of the cost of checkpoints and replica checks, per step, interleaved.

All runs share one strategy, so that the memory layout is the same. Each has its own folder, and is
measured in whole epochs of EVERY steps. Files are written, and replicas checked, in the middle of
an epoch, since the devices are waited for at its end anyway. Pending writes are waited for at the
end, so that their whole cost is in the epoch.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from benchmarks.rates import Ratio, paired_ratio
from gluonlab.bench.harness.interleaved_rounds import progress_bar, rotate, time_block
from gluonlab.bench.harness.measurement_command import (
    DEVICES_OPTION,
    INTERRUPTED,
    OLD_NAMES,
    MeasuredDevices,
    MeasurementOptions,
    cpu_devices,
    find_measured_devices,
    measurement_options,
    option,
)
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table as as_table
from gluonlab.bench.harness.table_format import missing_row, outcome_line, rounds_text
from gluonlab.bench.splits import find_task
from gluonlab.bench.workloads import Task
from gluonlab.cli.command import command
from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset_registry import load_dataset
from gluonlab.errors import DeviceError
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_writer import RunDirectory
from gluonlab.training.builtin_callbacks import ReplicaCheck
from gluonlab.training.callbacks import Callbacks, RunView
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.stop_consensus import StopCoordinator
from gluonlab.training.train_state import TrainState
from gluonlab.training.training_setup import prepare

DEVICES, ROUNDS = 2, 9
EVERY = 50  # steps from one checkpoint to the next
CHECKS = (100, 10, 1)  # steps from one check of replicas to the next
NONE, CHECKPOINTS, FILES = "none", "checkpoints", "files"


def check_name(every: int) -> str:
    """Return the name of the run that checks replicas every ``every`` steps."""
    return f"check {every}"


NAMES = (NONE, CHECKPOINTS, FILES, *map(check_name, CHECKS))
JUDGED = "resnet18"
TASKS = {
    JUDGED: Task("ResNet-18 32x32", "resnet18", (3, 32, 32), 64),
    "resnet8": Task("ResNet-8 32x32", "resnet8", (3, 32, 32), 64),
    "lenet": Task("LeNet 28x28", "lenet", (1, 28, 28), 128),
}


MIDDLE = EVERY // 2
CLASSES = 10
# The same images come again and again. If they were learned, gradients would become denormal
# numbers, with which the CPU computes slowly.
LEARNING_RATE = 1e-5


class CheckpointRun:
    """A run of ``strategy`` that writes to ``folder`` as ``plan`` requires.

    ``save``: called in the middle of each epoch, in the loop. ``epochs``: those of a block.
    """

    def __init__(
        self, plan: Plan, strategy: Strategy, folder: Path, save: Callable[[], None] = lambda: None, epochs: int = 1
    ) -> None:
        self.run = RunDirectory.create(str(folder), folder.name)
        self.strategy, self.epochs = strategy, epochs
        consensus = StopCoordinator(plan.group)
        view = RunView(plan, Result(plan, strategy.net, folder), consensus)
        no_callbacks = Callbacks([], view, consensus)
        self.state = TrainState(plan, strategy, self.run, time.perf_counter(), consensus, no_callbacks)
        # no epoch is the best, which would have a checkpoint of its own
        self.state.checkpoints.start_from(-MIDDLE, 0, best_score=1.0)
        self._every, self._save = plan.check_replicas or 1, save
        self._check = ReplicaCheck.for_plan(plan, strategy) if plan.check_replicas else None

    @property
    def block_steps(self) -> int:
        """Return the steps of a block."""
        return self.epochs * EVERY

    def train_block(self) -> None:
        """Train for the epochs of a block, and wait until everything is written."""
        for _ in range(self.epochs):
            self._epoch()
        self.state.checkpoints.wait()

    def _epoch(self) -> None:
        state = self.state
        epoch, log = state.loader.epoch + 1, state.loss_meter
        with state.epoch_batches() as batches:
            for batch in batches:
                state.record_steps(epoch, log.append(self.strategy.step(batch), batch.size))
                if self._check is not None and (log.step + MIDDLE) % self._every == 0:
                    self._check.compare_replicas(log.step + MIDDLE)
                state.after_step()
                if log.step % EVERY == MIDDLE:
                    self._save()
        state.record_steps(epoch, log.flush())
        state.after_epoch(score=0.0)

    def close(self) -> None:
        """Close the run."""
        self.state.checkpoints.close()
        self.run.close()


def check_devices(on: MeasuredDevices) -> int:
    """Return the number of devices. Raises DeviceError for one, which has no replica to compare."""
    count = len(on.numbers)
    if count < 2:
        raise DeviceError(
            f"--devices {on.device_spec(count)}: a comparison of replicas requires at least 2 "
            "devices: pass more devices"
        )
    return count


def measure_checkpoints(task: Task, on: MeasuredDevices, devices: int, rounds: int) -> List[Series]:
    """Return seconds of a step in each of NAMES, by round."""
    seconds: Dict[str, List[float]] = {name: [] for name in NAMES}
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("bench"))
        runs = dict(make_runs(task, on.device_spec(devices), rounds, folder, stack))
        bar = stack.enter_context(progress_bar((1 + rounds) * len(runs)))
        for round in range(-1, rounds):  # the first one binds and allocates
            for name in rotate(NAMES, round):
                step_seconds = time_block(runs[name].train_block, 1) / runs[name].block_steps
                if round >= 0:
                    seconds[name].append(step_seconds)
                bar.update()
    return [Series(name, name, "s", tuple(values)) for name, values in seconds.items()]


def make_runs(
    task: Task, devices: str, rounds: int, folder: Path, stack: ExitStack
) -> "Iterator[tuple[str, CheckpointRun]]":
    """Yield all of NAMES, with runs below ``folder``, which ``stack`` closes."""
    most_epochs = -(-max(CHECKS) // EVERY)  # epochs of a block
    samples = EVERY * task.global_batch_size
    dataset = load_dataset("synthetic", samples=samples, shape=task.shape, classes=CLASSES)
    config = TrainConfig(
        model=task.model, dataset="synthetic", devices=devices,
        threads=1 if devices.startswith("cpu") else None, epochs=most_epochs * (rounds + 2),
        global_batch_size=task.global_batch_size, optimizer="sgd", lr=LEARNING_RATE, momentum=0.9,
    )  # fmt: skip
    plan = make_plan(config, dataset)
    strategy = prepare(plan).strategy
    assert isinstance(strategy, DataParallel)

    def open_run(name: str, run_plan: Plan, **options: Any) -> "tuple[str, CheckpointRun]":
        run = CheckpointRun(run_plan, strategy, folder / name, **options)
        stack.callback(run.close)
        return name, run

    def save() -> None:
        strategy.net.save_parameters(str(folder / FILES / "net.params"))
        strategy.trainer.save_states(str(folder / FILES / "trainer.states"))

    yield open_run(NONE, plan)
    yield open_run(CHECKPOINTS, replace(plan, checkpoint_every=f"{EVERY} steps"))
    yield open_run(FILES, plan, save=save)
    for every in CHECKS:
        epochs = -(-every // EVERY)
        yield open_run(check_name(every), replace(plan, check_replicas=every), epochs=epochs)


MOST = 0.03  # of the steps' time
LABELS = {
    NONE: "no checkpoints",
    CHECKPOINTS: f"--checkpoint-every {EVERY}",
    FILES: f"save files in the loop, every {EVERY} steps",
    **{check_name(every): f"--check-replicas {every}" for every in CHECKS},
}


@dataclass(frozen=True)
class CheckpointRow:
    """The measurement of a run: ``step_s``, the median seconds of a step, and its ratio to NONE."""

    name: str
    step_s: Optional[float] = None
    ratio: Optional[Ratio] = None

    @property
    def relative_overhead(self) -> Optional[float]:
        """Return by how much longer a step is than in NONE: 0.02 is 2 %."""
        return None if self.ratio is None else self.ratio.value - 1

    @property
    def overhead_interval(self) -> str:
        """Return the interval of the overhead, ``0.8..2.9 %``, or ""."""
        if self.ratio is None or self.ratio.lowest is None or self.ratio.highest is None:
            return ""
        return f"{self.ratio.lowest * 100 - 100:.1f}..{self.ratio.highest * 100 - 100:.1f} %"


def make_rows(series: Sequence[Series]) -> List[CheckpointRow]:
    """Return a row for each run, in their order."""
    values_by_name = {item.name: item.values for item in series}
    none = values_by_name.get(NONE, ())
    return [_checkpoint_row(name, values_by_name.get(name, ()), none) for name in LABELS]


def _checkpoint_row(name: str, values: Sequence[float], none: Sequence[float]) -> CheckpointRow:
    if not values:
        return CheckpointRow(name)
    compared = name != NONE and none
    return CheckpointRow(name, median(values), paired_ratio(values, none) if compared else None)


def format_results(series: Sequence[Series], task: Task, devices: int, rounds: int) -> str:
    """Return the table, and whether the target is reached."""
    rows = make_rows(series)
    head = f"{task.title}, batches of {task.global_batch_size}, {devices} devices"
    lines = [f"{head:<41}{'ms':>9}{'overhead':>9}{'95 %':>16}", *map(_format_row, rows)]
    note = (
        f"ms: time of a step of SGD with momentum, the median of {rounds_text(rounds)}. overhead: "
        "relative to a run without checkpoints, with its 95 % interval. save files in the loop: "
        "net.save_parameters and trainer.save_states. The time until all files are written "
        "counts."
    )
    return f"{as_table(lines, note)}\n\n{judge_overhead(rows, task, devices)}"


def _format_row(row: CheckpointRow) -> str:
    label = f"{LABELS[row.name]:<41}"
    if row.step_s is None:
        return missing_row(label, None)
    overhead = f"{format_percent(row.relative_overhead):>9}{row.overhead_interval:>16}"
    return f"{label}{row.step_s * 1e3:>9.2f}{overhead}".rstrip()


def format_percent(share: Optional[float]) -> str:
    """Return ``2.1 %``, or "" for None."""
    return "" if share is None else f"{share:.1%}".replace("%", " %")


def judge_overhead(rows: Sequence[CheckpointRow], task: Task, devices: int) -> str:
    """Return whether a checkpoint costs as little as the target, which is set for JUDGED on
    DEVICES.
    """
    [overhead] = [row.relative_overhead for row in rows if row.name == CHECKPOINTS]
    overhead_text = None if overhead is None else format_percent(overhead)
    claim = f"a checkpoint every {EVERY} steps"
    if (task.title, devices) != (TASKS[JUDGED].title, DEVICES):
        return f"{claim}: {overhead_text or 'not measured'} of the steps' time"
    return outcome_line(
        f"{claim} <= {MOST:.0%} of the steps' time", overhead_text, overhead is not None and overhead <= MOST
    )


@command("python tools/benchmarks checkpoints", INTERRUPTED, renamed={"--network": "--model", **OLD_NAMES})
@measurement_options(ROUNDS)
@option("--model", "NAME", f"one of {', '.join(TASKS)}", JUDGED)
@DEVICES_OPTION
def main(run_options: MeasurementOptions, model: str, devices: Optional[str]) -> None:
    """Measure the overhead of checkpoints and of --check-replicas.

    The baseline saves files in the training loop. The training runs on two CPU devices with one
    thread each, or on --devices. Files are written into the temporary folder (TMPDIR). Missed
    targets are reported, and do not change the exit status.
    """
    task = find_task(model, TASKS)
    # MXNet is loaded here, not for the other commands

    on = cpu_devices(DEVICES) if devices is None else find_measured_devices(devices)
    count = check_devices(on)
    title = ("checkpoints", {"network": model, **on.record_options()})
    series, record = run_options.measure_and_record(title, partial(measure_checkpoints, task, on, count), list)
    run_options.print_record(record, format_results(series, task, count, run_options.rounds), on)
