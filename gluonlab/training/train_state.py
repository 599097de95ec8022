"""Training state between two steps, which checkpoints save and restore."""

from __future__ import annotations

import re
import time
from contextlib import closing
from functools import cached_property
from typing import Any, ContextManager, Dict, Generator, Iterator, List, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.split_batch import Batch
from gluonlab.errors import DataError
from gluonlab.kvstores.gradient_compression import keeps_residual
from gluonlab.models.symbol_graph import parse_graph
from gluonlab.optimizers.optimizer_states import states_from_arrays, states_to_arrays
from gluonlab.parallel.strategy import Strategy, StrategyState
from gluonlab.runs.checkpoint import Checkpoint
from gluonlab.runs.run_schema import Step
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory
from gluonlab.training.callbacks import Callbacks
from gluonlab.training.checkpoint_writer import CheckpointGather, CheckpointWriter
from gluonlab.training.loss_meter import AsyncLossMeter, StepLoss
from gluonlab.training.plan import Plan, dataset_digests
from gluonlab.training.stop_consensus import StopCoordinator
from gluonlab.training.training_setup import train_loader


def set_strategy_parameters(strategy: Strategy, parameters: Mapping[str, nd.NDArray]) -> None:
    """Load parameters onto all devices. Raises DataError for parameters of a different network."""
    nd.waitall()  # running statistics are written without the engine's knowledge
    params = strategy.net._collect_params_with_prefix()
    shapes = {name: param.shape for name, param in params.items()}
    if shapes != {name: array.shape for name, array in parameters.items()}:
        raise DataError("the saved parameters belong to another model: start a new run")
    strategy.set_parameters(parameters)


class TimedIterator:
    """Iterator over ``items`` that measures how many ``seconds`` are spent waiting for items."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self.seconds = items, 0.0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start_time = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - start_time


class TrainState:
    """All parts of a run that change from step to step.

    ``start_time``: the start of the run, by ``time.perf_counter``. For a resumed run, the time is
    set as if the run had not been interrupted.
    """

    def __init__(
        self,
        plan: Plan,
        strategy: Strategy,
        run: "RunDirectory | NoRunDirectory",
        start_time: float,
        coordinator: StopCoordinator,
        callbacks: Callbacks,
    ) -> None:
        self.plan, self.strategy, self.run = plan, strategy, run
        self.callbacks = callbacks
        overflows = plan.loss_scale is not None
        self.loss_meter = AsyncLossMeter(strategy.outputs, overflows, plan.group, coordinator)
        self.loader = train_loader(plan, strategy.inputs)
        self.start_time = self.epoch_start_time = start_time
        self._waited_before_resume = 0.0  # seconds of this epoch
        self._timed_batches = TimedIterator(iter(()))
        self._gather = CheckpointGather(plan.group)
        # Checkpoints cannot contain the residuals of compressed gradients, or states on servers.
        has_hidden_state = keeps_residual(plan.compress) or plan.on_servers
        self.checkpoints = CheckpointWriter(
            run.path,
            plan.checkpoint_period,
            plan.keep_checkpoints,
            None if has_hidden_state else self.make_checkpoint,
            coordinator.shared_time,
        )
        self._device_rng = DeviceRng(strategy, plan.seed, plan.first_device_index)
        self.finished_epochs = 0
        self._resumed_from: Optional[Checkpoint] = None  # until the next epoch starts

    @property
    def images_done(self) -> int:
        """The number of images that this epoch has trained on."""
        return min(self._epoch_steps_done * self.plan.global_batch_size, self.plan.images_per_epoch)

    @property
    def within_epoch(self) -> bool:
        """True between the first and the last step of an epoch."""
        return 0 < self._epoch_steps_done < len(self.loader)

    @property
    def _epoch_steps_done(self) -> int:
        """The number of steps done in this epoch, including steps that a resumed run repeats."""
        if self._resumed_from is not None:
            return int(self._resumed_from.state["loader"]["step"])
        return self.loader.step

    def after_step(self) -> None:
        """Write a checkpoint if one is due, except at the end of an epoch."""
        if self.within_epoch:  # at the end of an epoch, after_epoch does this after the evaluation
            self.checkpoints.after_step(self.loss_meter.step, self.finished_epochs)

    def after_epoch(self, score: float) -> None:
        """Write a checkpoint if one is due, or if the epoch is the best so far.

        ``score``: score of the epoch. A larger score is better.
        """
        self.finished_epochs = self.loader.epoch
        self.checkpoints.after_epoch(self.loss_meter.step, self.finished_epochs, score)

    def save_before_exit(self) -> None:
        """Write a checkpoint, and wait until it is on disk."""
        self.checkpoints.write_now(self.loss_meter.step, self.finished_epochs)

    def _loader_position(self) -> Dict[str, int]:
        """Return the position of the loader: finished epochs, and steps in the current epoch.

        Until an epoch has been evaluated, the position is at the end of this epoch.
        """
        position = self.loader.state()
        if self.loader.epoch > self.finished_epochs:
            position.update(epoch=self.finished_epochs, step=len(self.loader))
        return position

    @property
    def waiting_seconds(self) -> float:
        """The time spent waiting for batches in this epoch."""
        return self._waited_before_resume + self._timed_batches.seconds

    def epoch_batches(self) -> "ContextManager[Generator[Batch, None, None]]":
        """Return a context manager that provides the remaining batches of the epoch.

        On exit, the loader's thread ends.
        """
        return closing(self._iterate_batches())

    def _iterate_batches(self) -> "Generator[Batch, None, None]":
        """Yield the batches of the epoch; in a resumed run, only batches after the checkpoint."""
        if self._resumed_from is None:
            self.epoch_start_time, self._waited_before_resume = time.perf_counter(), 0.0
        with closing(iter(self.loader)) as batches:
            self._retrain_to_checkpoint(batches)
            self._timed_batches = TimedIterator(batches)
            for batch in self._timed_batches:
                self._device_rng.seed_before_step(self.loader.epoch, self.loader.step - 1)
                yield batch

    def _retrain_to_checkpoint(self, batches: "Generator[Batch, None, None]") -> None:
        """Repeat the steps from the last seeding of random numbers to the checkpoint.

        Then restore the checkpoint. The repeated steps advance the devices' random number
        generators, whose state cannot be stored in a checkpoint.
        """
        checkpoint, self._resumed_from = self._resumed_from, None
        if checkpoint is None:
            return
        while self.loader.step < checkpoint.state["loader"]["step"]:
            batch = next(batches)
            self._device_rng.seed_before_step(self.loader.epoch, self.loader.step - 1)
            self.strategy.step(batch)
        self._restore_devices(checkpoint)

    @property
    def draws_random_numbers(self) -> bool:
        """True if the network draws random numbers in training."""
        return self._device_rng.draws_random_numbers

    @property
    def loses_random_state(self) -> bool:
        """True if a resumed run draws different random numbers than an uninterrupted run."""
        return self._device_rng.cannot_be_seeded

    def record_steps(self, epoch: int, step_losses: Sequence[StepLoss]) -> None:
        """Write finished steps to metrics.jsonl, and pass them to the callbacks."""
        seconds, rates = time.perf_counter() - self.start_time, self.plan.rates
        lines = [Step(step, loss, rates(step), epoch, images, seconds) for step, images, loss in step_losses]
        self.run.write(*lines)
        self.callbacks.add_step_losses(lines)

    @cached_property
    def _data_digests(self) -> Dict[str, str]:
        return dataset_digests(self.plan)

    def make_checkpoint(self, score: Optional[float] = None) -> Checkpoint:
        """Return a checkpoint of the current state, without waiting for the devices.

        All processes of a group call this method after the same step. ``score``: score of the epoch
        that has just ended.
        """
        local = self.strategy.state()
        losses, loss_rows = self.loss_meter.state()
        devices, counts = self._gather({**local.devices, **loss_rows}, local.counts)
        now = time.perf_counter()
        state = {
            "step": self.loss_meter.step,
            "score": score,
            "loader": self._loader_position(),
            "losses": losses,
            "loss_scale": dict(local.loss_scale),
            "counts": dict(counts),
            "seconds": now - self.start_time,
            "epoch_seconds": now - self.epoch_start_time,
            "waited": self.waiting_seconds,
            "metrics": self.run.metrics_position(),
            "callbacks": self.callbacks.state(),
            "data": self._data_digests,
            "run": self.run.config_content,
        }
        return Checkpoint(self.strategy.parameters(), states_to_arrays(local.optimizer), devices, state)

    def restore(self, checkpoint: Checkpoint, best_score: float) -> List[StepLoss]:
        """Restore the state of a checkpoint, and return the losses that had not been read yet.

        ``best_score``: the best score of the epochs so far.
        """
        state, now = checkpoint.state, time.perf_counter()
        step_losses = self.loss_meter.restore(state["losses"], checkpoint.devices)
        self.start_time -= state["seconds"]
        self.epoch_start_time = now - state["epoch_seconds"]
        self._waited_before_resume = state["waited"]
        step = state["loader"]["step"]
        replayed = self._device_rng.steps_to_replay(step)
        self.loader.restore({**state["loader"], "step": step - replayed})
        self.finished_epochs = state["loader"]["epoch"]
        self._restore_devices(checkpoint)
        self._resumed_from = checkpoint if step else None
        self.checkpoints.start_from(checkpoint.step, self.loader.epoch, best_score)
        return step_losses

    def _restore_devices(self, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint's arrays to the devices. Raises DataError for a different network."""
        set_strategy_parameters(self.strategy, checkpoint.parameters)
        state: Dict[str, Any] = checkpoint.state
        self.strategy.restore(
            StrategyState(
                states_from_arrays(checkpoint.optimizer, "the checkpoint"),
                state["loss_scale"],
                checkpoint.devices,
                state["counts"],
            )
        )


# MXNet's random number generators can be seeded, but their state cannot be read. So they are seeded
# every SEED_EVERY steps of an epoch, from seed, epoch and step. A run that is resumed between two
# seedings trains the steps since the last seeding again, and then restores the checkpoint's arrays.
# Seeding a CPU device takes about 13 ms (on an AMD EPYC), which is too long for every step. All CPU
# devices of a process share one generator, which the last device seeds. On GPUs, cuDNN's Dropout
# has its own generator, which cannot be seeded again.
SEED_EVERY = 64
RANDOM_OPERATORS = re.compile(
    "dropout|rnn|random|sample|shuffle|uniform|normal(_n)?$|"
    "_npi_(bernoulli|choice|exponential|gamma|gumbel|logistic|multinomial|pareto|powerd|rayleigh)",
    re.IGNORECASE,
)


class DeviceRng:
    """Seeds the random number generators of the devices, if the network draws random numbers.

    Each device draws different numbers. ``first_index``: the index of this process's first device
    among the devices of all processes.
    """

    def __init__(self, strategy: Strategy, seed: int, first_index: int = 0) -> None:
        self._seed, self._first = seed, first_index
        self._ctxs = _all_devices(strategy) if _draws_random_numbers(strategy) else []

    @property
    def draws_random_numbers(self) -> bool:
        """True if the network draws random numbers."""
        return bool(self._ctxs)

    @property
    def cannot_be_seeded(self) -> bool:
        """True if cuDNN draws random numbers. cuDNN's generator cannot be seeded again."""
        return any(ctx.device_type == "gpu" for ctx in self._ctxs)

    def seed_before_step(self, epoch: int, step: int) -> None:
        """Seed the devices' random numbers before every SEED_EVERY-th step, without waiting.

        ``epoch``, and ``step`` within the epoch, are counted from 0.
        """
        if self._ctxs and step % SEED_EVERY == 0:
            for device, ctx in enumerate(self._ctxs, start=self._first):
                entropy = [self._seed, epoch, step, device]
                [seed] = np.random.SeedSequence(entropy).generate_state(1)
                mx.random.seed(int(seed) >> 1, ctx=ctx)

    def steps_to_replay(self, step: int) -> int:
        """Return how many steps before ``step`` a resumed run must repeat."""
        return step % SEED_EVERY if self._ctxs else 0


def _draws_random_numbers(strategy: Strategy) -> bool:
    """Return True if an operator of the network may draw random numbers."""
    nodes = parse_graph(strategy.net(mx.sym.var("data")))["nodes"]
    return any(
        RANDOM_OPERATORS.search(node["op"]) or node.get("attrs", {}).get("act_type") == "rrelu" for node in nodes
    )


def _all_devices(strategy: Strategy) -> List[mx.Context]:
    """Return all devices that have a part of the network, in a fixed order."""
    ctxs = [
        *strategy.inputs,
        *strategy.outputs,
        *(ctx for param in strategy.replicated_parameters() for ctx in param.list_ctx()),
    ]
    return list(dict.fromkeys(ctxs))
