"""Where a run stands between two steps: what a checkpoint takes, and what it gives back."""

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
from gluonlab.kvstores.gradient_compression import keeps_rest
from gluonlab.models.symbol_graph import parsed
from gluonlab.optimizers.optimizer_states import states_from_arrays, states_to_arrays
from gluonlab.parallel.strategy import State, Strategy
from gluonlab.runs.checkpoint import Checkpoint
from gluonlab.runs.run_schema import Step
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory
from gluonlab.training.callbacks import Callbacks
from gluonlab.training.checkpoint_writer import CheckpointGather, Checkpoints
from gluonlab.training.loss_meter import LossLog, StepLoss
from gluonlab.training.plan import Plan, digests
from gluonlab.training.stop_consensus import Consensus
from gluonlab.training.training_setup import train_loader


def put_parameters(strategy: Strategy, parameters: Mapping[str, nd.NDArray]) -> None:
    """Give the devices these parameters. Raises DataError for another network's."""
    nd.waitall()  # running statistics are written without the engine's knowledge
    params = strategy.net._collect_params_with_prefix()
    shapes = {name: param.shape for name, param in params.items()}
    if shapes != {name: array.shape for name, array in parameters.items()}:
        raise DataError("the parameters are those of another network: begin a new run")
    strategy.put_parameters(parameters)


class Waiting:
    """Iterates over ``items``; ``seconds``: how long somebody has waited for them so far."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self.seconds = items, 0.0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - began


class TrainState:
    """The parts of a run that change from step to step, together.

    ``began``: when the run did, by ``time.perf_counter``; of a run that goes on, as if it had never
    stopped. ``consensus``: by what the processes of a group decide together. ``callbacks``: who is
    told.
    """

    def __init__(
        self,
        plan: Plan,
        strategy: Strategy,
        run: "RunDirectory | NoRunDirectory",
        began: float,
        consensus: Consensus,
        callbacks: Callbacks,
    ) -> None:
        self.plan, self.strategy, self.run = plan, strategy, run
        self.callbacks = callbacks
        overflows = plan.loss_scale is not None
        self.log = LossLog(strategy.outputs, overflows, plan.group, consensus)
        self.loader = train_loader(plan, strategy.inputs)
        self.began = self.epoch_began = began
        self._waited = 0.0  # for batches, in this epoch before the run went on
        self._waiting = Waiting(iter(()))
        self._gather = CheckpointGather(plan.group)
        # what compressed gradients have left over stays where they are summed, and servers' states
        take = None if keeps_rest(plan.compress) or plan.on_servers else self.take
        self.checkpoints = Checkpoints(
            run.path, plan.checkpoint_period, plan.keep, take, consensus.moment
        )
        self._chance = DeviceRng(strategy, plan.seed, plan.first_device)
        self.finished = 0  # epochs
        self._again: Optional[Checkpoint] = None  # that the next epoch begins from

    @property
    def images(self) -> int:
        """How many this epoch has trained on."""
        return min(self._step * self.plan.global_batch_size, self.plan.images_per_epoch)

    @property
    def within_epoch(self) -> bool:
        """Whether some steps of an epoch are done, and others are not."""
        return 0 < self._step < len(self.loader)

    @property
    def _step(self) -> int:
        """How many steps of this epoch are done; some of them may be made again to go on."""
        return int(self._again.state["loader"]["step"]) if self._again else self.loader.step

    def step_done(self) -> None:
        """Write a checkpoint if one is due; at the end of an epoch, after its evaluation."""
        if self.within_epoch:
            self.checkpoints.after_step(self.log.step, self.finished)

    def epoch_done(self, score: float) -> None:
        """An epoch is evaluated and noted: write a checkpoint if one is due, or it is the best.

        ``score``: how good it is, the larger the better.
        """
        self.finished = self.loader.epoch
        self.checkpoints.after_epoch(self.log.step, self.finished, score)

    def leave(self) -> None:
        """The run ends here, for now: write a checkpoint, and wait until it is on disk."""
        self.checkpoints.now(self.log.step, self.finished)

    def _place(self) -> Dict[str, int]:
        """Where the loader stands; before an epoch is evaluated, at its end."""
        place = self.loader.state()
        if self.loader.epoch > self.finished:
            place.update(epoch=self.finished, step=len(self.loader))
        return place

    @property
    def waited(self) -> float:
        """Seconds that this epoch has waited for batches."""
        return self._waited + self._waiting.seconds

    def epoch(self) -> "ContextManager[Generator[Batch, None, None]]":
        """The batches of the epoch, or those that are left of it.

        The thread that makes them ends with the block.
        """
        return closing(self._batches())

    def _batches(self) -> "Generator[Batch, None, None]":
        if self._again is None:
            self.epoch_began, self._waited = time.perf_counter(), 0.0
        with closing(iter(self.loader)) as loaded:
            self._catch_up(loaded)
            self._waiting = Waiting(loaded)
            for batch in self._waiting:
                self._chance.before_step(self.loader.epoch, self.loader.step - 1)
                yield batch

    def _catch_up(self, loaded: "Generator[Batch, None, None]") -> None:
        """Have the devices' random numbers, and all else, where they were at the checkpoint."""
        again, self._again = self._again, None
        if again is None:
            return
        while self.loader.step < again.state["loader"]["step"]:
            batch = next(loaded)
            self._chance.before_step(self.loader.epoch, self.loader.step - 1)
            self.strategy.step(batch)
        self._put(again)

    @property
    def draws(self) -> bool:
        """Whether the network draws random numbers while it trains."""
        return self._chance.draws

    @property
    def other_chance(self) -> bool:
        """Whether a run that goes on draws other random numbers than it would have."""
        return self._chance.out_of_reach

    def note(self, epoch: int, known: Sequence[StepLoss]) -> None:
        """Record finished steps."""
        since, rates = time.perf_counter() - self.began, self.plan.rates
        lines = [Step(n, loss, rates(n), epoch, x, since) for n, x, loss in known]
        self.run.write(*lines)
        self.callbacks.known(lines)

    @cached_property
    def _data(self) -> Dict[str, str]:
        return digests(self.plan)

    def take(self, score: Optional[float] = None) -> Checkpoint:
        """A checkpoint of this moment; nothing waits for the devices.

        All processes of a group take one at once. ``score``: of the epoch that has just ended.
        """
        own = self.strategy.state()
        losses, rows = self.log.state()
        devices, counts = self._gather({**own.devices, **rows}, own.counts)
        now = time.perf_counter()
        state = {
            "step": self.log.step,
            "score": score,
            "loader": self._place(),
            "losses": losses,
            "loss_scale": dict(own.loss_scale),
            "counts": dict(counts),
            "seconds": now - self.began,
            "epoch_seconds": now - self.epoch_began,
            "waited": self.waited,
            "metrics": self.run.mark(),
            "callbacks": self.callbacks.state(),
            "data": self._data,
            "run": self.run.about,
        }
        return Checkpoint(
            self.strategy.parameters(), states_to_arrays(own.optimizer), devices, state
        )

    def go_on(self, checkpoint: Checkpoint, best: float) -> List[StepLoss]:
        """Stand where the checkpoint was taken; the steps whose losses were not known there.

        ``best``: the best score so far.
        """
        state, now = checkpoint.state, time.perf_counter()
        known = self.log.restore(state["losses"], checkpoint.devices)
        self.began -= state["seconds"]
        self.epoch_began, self._waited = now - state["epoch_seconds"], state["waited"]
        step = state["loader"]["step"]
        self.loader.restore({**state["loader"], "step": step - self._chance.replayed(step)})
        self.finished = state["loader"]["epoch"]
        self._put(checkpoint)
        self._again = checkpoint if step else None
        self.checkpoints.begin(checkpoint.step, self.loader.epoch, best)
        return known

    def _put(self, checkpoint: Checkpoint) -> None:
        """Give the devices what the checkpoint holds. Raises DataError for another network's."""
        put_parameters(self.strategy, checkpoint.parameters)
        state: Dict[str, Any] = checkpoint.state
        self.strategy.restore(
            State(
                states_from_arrays(checkpoint.optimizer, "the checkpoint's states"),
                state["loss_scale"],
                checkpoint.devices,
                state["counts"],
            )
        )


# MXNet's generators can be seeded, but not asked where they stand. So they are seeded anew every
# STEPS steps of an epoch, from seed, epoch and step; a run that goes on from a step between trains
# those before it once more, and then takes the checkpoint's state. Seeding takes a CPU device some
# 13 ms (1,024 Mersenne Twisters, on an AMD EPYC), so it is not done in every step. All CPU devices
# of a process draw from one generator, in the order in which their work is queued, and the last of
# them seeds it. On GPUs cuDNN's Dropout has a generator of its own, which nothing seeds again.
STEPS = 64
DRAWS = re.compile(
    "dropout|rnn|random|sample|shuffle|uniform|normal(_n)?$|"
    "_npi_(bernoulli|choice|exponential|gamma|gumbel|logistic|multinomial|pareto|powerd|rayleigh)",
    re.IGNORECASE,
)


class DeviceRng:
    """Seeds the devices of a strategy whose network draws random numbers while it trains.

    ``first``: where they begin among the devices of all processes, each of which draws numbers of
    its own.
    """

    def __init__(self, strategy: Strategy, seed: int, first: int = 0) -> None:
        self._seed, self._first = seed, first
        self._ctxs = _ctxs(strategy) if _draws(strategy) else []

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return bool(self._ctxs)

    @property
    def out_of_reach(self) -> bool:
        """Whether random numbers are drawn where nothing can seed them: by cuDNN."""
        return any(ctx.device_type == "gpu" for ctx in self._ctxs)

    def before_step(self, epoch: int, step: int) -> None:
        """Seed the devices if it is time.

        ``step``: of the ``epoch``, both from 0. Nothing waits.
        """
        if self._ctxs and step % STEPS == 0:
            for device, ctx in enumerate(self._ctxs, start=self._first):
                of_device = [self._seed, epoch, step, device]
                [seed] = np.random.SeedSequence(of_device).generate_state(1)
                mx.random.seed(int(seed) >> 1, ctx=ctx)

    def replayed(self, step: int) -> int:
        """How many steps before this one are to be trained again to go on from here."""
        return step % STEPS if self._ctxs else 0


def _draws(strategy: Strategy) -> bool:
    """Whether an operator of the network may draw random numbers."""
    nodes = parsed(strategy.net(mx.sym.var("data")))["nodes"]
    return any(
        DRAWS.search(node["op"]) or node.get("attrs", {}).get("act_type") == "rrelu"
        for node in nodes
    )


def _ctxs(strategy: Strategy) -> List[mx.Context]:
    """All devices that hold a part of the network, in an order that is always the same."""
    ctxs = [
        *strategy.inputs,
        *strategy.outputs,
        *(ctx for each in strategy.replicated() for ctx in each.list_ctx()),
    ]
    return list(dict.fromkeys(ctxs))
