"""Steps with and without checkpoints, in turns.

The ways share one strategy, so that memory lies alike for all of them. Each has a run of its own
around it, with a folder, and is measured in whole epochs of EVERY steps. What is written or checked
is so in the middle of one, as at its end the devices are waited for anyway. What is written is
waited for at the end: all that it costs falls into the epoch.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

from gluonlab.bench.checkpoints.names import (
    CHECKPOINTS,
    CHECKS,
    EVERY,
    FILES,
    NAMES,
    NONE,
    check_name,
)
from gluonlab.bench.harness.measured_on import MeasuredOn
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import progress, rotated
from gluonlab.bench.harness.turns import time_block
from gluonlab.bench.splits.names import Task
from gluonlab.config import TrainConfig
from gluonlab.data.sets.registry import load_dataset
from gluonlab.errors import DeviceError
from gluonlab.files.temporary import temporary_folder
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.result import Result
from gluonlab.runs.writer import RunDirectory
from gluonlab.training.builtin_callbacks import ReplicaCheck
from gluonlab.training.callbacks import Callbacks, RunView
from gluonlab.training.consensus import Consensus
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.prepare import prepare
from gluonlab.training.train_state import TrainState

MIDDLE = EVERY // 2
CLASSES = 10
# The same images come again and again. If they were learnt, gradients would become denormal
# numbers, with which the CPU computes slowly.
LEARNING_RATE = 1e-5


class Way:
    """A run over ``strategy`` that keeps in ``folder`` what ``plan`` says.

    ``save``: called in the middle of each epoch, in the loop. ``epochs``: those of a block.
    """

    def __init__(
        self,
        plan: Plan,
        strategy: Strategy,
        folder: Path,
        save: Callable[[], None] = lambda: None,
        epochs: int = 1,
    ) -> None:
        self.run = RunDirectory.create(str(folder), folder.name)
        self.strategy, self.epochs = strategy, epochs
        consensus = Consensus(plan.group)
        view = RunView(plan, Result(plan, strategy.net, folder), consensus)
        nobody = Callbacks([], view, consensus)
        self.standing = TrainState(plan, strategy, self.run, time.perf_counter(), consensus, nobody)
        # no epoch is the best, which would have a checkpoint of its own
        self.standing.checkpoints.begin(-MIDDLE, 0, best=1.0)
        self._every, self._save = plan.check_replicas or 1, save
        self._check = ReplicaCheck.of(plan, strategy) if plan.check_replicas else None

    @property
    def steps(self) -> int:
        """Those of a block."""
        return self.epochs * EVERY

    def block(self) -> None:
        """Train for some epochs, until all that they keep is kept."""
        for _ in range(self.epochs):
            self._epoch()
        self.standing.checkpoints.wait()

    def _epoch(self) -> None:
        standing = self.standing
        epoch, log = standing.loader.epoch + 1, standing.log
        with standing.epoch() as batches:
            for batch in batches:
                standing.note(epoch, log.append(self.strategy.step(batch), batch.size))
                if self._check is not None and (log.step + MIDDLE) % self._every == 0:
                    self._check.after(log.step + MIDDLE)
                standing.step_done()
                if log.step % EVERY == MIDDLE:
                    self._save()
        standing.note(epoch, log.flush())
        standing.epoch_done(score=0.0)

    def close(self) -> None:
        """End the run."""
        self.standing.checkpoints.close()
        self.run.close()


def check_devices(on: MeasuredOn) -> int:
    """How many devices train. Raises DeviceError for one, which has no replica to compare."""
    count = len(on.numbers)
    if count < 2:
        raise DeviceError(
            f"--devices {on.first(count)}: replicas are compared on 2 devices or more: name so many"
        )
    return count


def checkpoints(task: Task, on: MeasuredOn, devices: int, rounds: int) -> List[Series]:
    """Seconds of a step in each of NAMES, by round."""
    seconds: Dict[str, List[float]] = {name: [] for name in NAMES}
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("bench"))
        ways = dict(make_ways(task, on.first(devices), rounds, folder, stack))
        bar = stack.enter_context(progress((1 + rounds) * len(ways)))
        for number in range(-1, rounds):  # the first one binds and allocates
            for name in rotated(NAMES, number):
                spent = time_block(ways[name].block, 1) / ways[name].steps
                if number >= 0:
                    seconds[name].append(spent)
                bar.update()
    return [Series(name, name, "s", tuple(values)) for name, values in seconds.items()]


def make_ways(
    task: Task, devices: str, rounds: int, folder: Path, stack: ExitStack
) -> "Iterator[tuple[str, Way]]":
    """All of NAMES, with runs below ``folder``, which ``stack`` closes."""
    longest = -(-max(CHECKS) // EVERY)  # epochs of a block
    samples = EVERY * task.global_batch_size
    dataset = load_dataset("synthetic", samples=samples, shape=task.shape, classes=CLASSES)
    config = TrainConfig(
        model=task.model, dataset="synthetic", devices=devices,
        threads=1 if devices.startswith("cpu") else None, epochs=longest * (rounds + 2),
        global_batch_size=task.global_batch_size, optimizer="sgd", lr=LEARNING_RATE, momentum=0.9,
    )  # fmt: skip
    plan = make_plan(config, dataset)
    strategy = prepare(plan).strategy
    assert isinstance(strategy, DataParallel)

    def made(name: str, changed: Plan, **more: Any) -> "tuple[str, Way]":
        way = Way(changed, strategy, folder / name, **more)
        stack.callback(way.close)
        return name, way

    def save() -> None:
        strategy.net.save_parameters(str(folder / FILES / "net.params"))
        strategy.trainer.save_states(str(folder / FILES / "trainer.states"))

    yield made(NONE, plan)
    yield made(CHECKPOINTS, replace(plan, checkpoint_every=f"{EVERY} steps"))
    yield made(FILES, plan, save=save)
    for every in CHECKS:
        epochs = -(-every // EVERY)
        yield made(check_name(every), replace(plan, check_replicas=every), epochs=epochs)
