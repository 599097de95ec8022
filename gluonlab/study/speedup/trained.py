"""A training that is measured in short windows of steps, whole or with parts left out.

What it learns is thrown away: its learning rate is so small that the same batch can come again and
again, and sums or updates be left out, without numbers that compute at another speed.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional

from mxnet import nd

from gluonlab.config import TrainConfig
from gluonlab.data.loading.shards import Batch
from gluonlab.data.sets.dataset import Dataset
from gluonlab.engine.invoke import Gate
from gluonlab.errors import ConfigError
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.strategy import Around, MakeStrategy
from gluonlab.timeline.recorder import Recorder
from gluonlab.timeline.shares import Timeline
from gluonlab.training.losses import LossLog
from gluonlab.training.plan import make_plan
from gluonlab.training.prepare import prepare, train_loader

LEARNING_RATE = 1e-5
SUM, UPDATE, FORWARD = "allreduce", "update", "forward"  # what strategies call them
MOST_GATED = 32  # steps that wait behind a gate; more would be measured in keeping the queue
LEAST_GATED = 4
PATIENCE_S = 0.5  # a host that has not queued a step after so long waits for its devices


class Queued(NamedTuple):
    """Seconds that the host takes for a phase while no device works: by the clock, and computing.

    What it does not compute it sleeps, or waits for others.
    """

    seconds: float
    computing: float


class Trained:
    """The training of ``config``: each method that trains queues a step, and waits for nothing.

    ``strategy``: as for `gluonlab.training.loop.train`. Raises a UsageError for what cannot be
    trained, and ConfigError for a data set of less than one batch. A graph is bound when a step
    first needs it, so every method that queues one does so within the plan's `pieces`.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: Optional[Dataset] = None,
        strategy: Optional[MakeStrategy] = None,
    ) -> None:
        plan = make_plan(config.replace(lr=LEARNING_RATE, scale_lr=False), dataset)
        self.plan, self.strategy, _ = prepare(plan, strategy)
        self._log = LossLog(self.strategy.outputs, self.plan.loss_scale is not None)
        self._batches = self._whole_batches()
        first = next(self._batches)
        self.batch = Batch([x.copy() for x in first.xs], [y.copy() for y in first.ys], first.size)

    @property
    def devices(self) -> int:
        """How many train."""
        return len(self.plan.ctxs)

    @property
    def images(self) -> int:
        """Those of a step."""
        return self.batch.size

    def step(self) -> None:
        """As a run makes it: the next batch, trained on, its losses noted."""
        self._noted(next(self._batches))

    def steps(self) -> "Streamed":
        """A window of steps."""
        return Streamed(self, self.step)

    def fetches(self) -> "Streamed":
        """A window of batches that are used for nothing."""
        return Streamed(self, lambda: next(self._batches))

    def again(self) -> None:
        """The same, but for the batch, which has been there."""
        self._noted(self.batch)

    def close(self) -> None:
        """End the loader."""
        nd.waitall()
        self._batches.close()

    def queue(self, batch: Batch, without: Collection[str] = ()) -> Dict[str, Queued]:
        """A step without some of its phases; what the host took to queue the others."""
        spent: Dict[str, Queued] = {}
        with self.plan.pieces():
            for name, queue in self.strategy.phases(batch):
                if name in without:
                    continue
                wall, cpu = time.perf_counter(), time.thread_time()
                queue()
                before = spent.get(name, Queued(0.0, 0.0))
                spent[name] = Queued(
                    before.seconds + time.perf_counter() - wall,
                    before.computing + time.thread_time() - cpu,
                )
        return spent

    def alone(self, device: int) -> None:
        """Forward and backward of this device's shard, while the others have nothing to do."""
        assert isinstance(self.strategy, DataParallel)
        replica = self.strategy.replicas[device]
        part = Batch([self.batch.xs[device]], [self.batch.ys[device]], len(self.batch.xs[device]))
        with self.plan.pieces():
            for number, [(_, images, labels)] in enumerate(self.plan.microbatches.rounds(part)):
                replica.forward(images, labels, add=number > 0)
                replica.backward()

    def record(self, steps: int) -> Timeline:
        """So many steps, as a run makes them, recorded; more if the loader is ahead of them."""
        for _ in range(self.ahead):
            self.step()
        steps = max(steps, 4 * self.ahead)
        recorder = Recorder(self.plan.ctxs, 1)
        batch = next(self._batches)
        recorder.learn(partial(self._step, batch))
        for _ in range(steps):
            batch = recorder.fetch(lambda: next(self._batches))
            self._log.append(recorder.record(partial(self._step, batch)), batch.size)
        return recorder.end()

    def _noted(self, batch: Batch) -> None:
        self._log.append(self._step(batch), batch.size)

    def _step(self, batch: Batch, around: Optional[Around] = None) -> List[nd.NDArray]:
        with self.plan.pieces():
            return self.strategy.step(batch, around)

    def _whole_batches(self) -> "Any":
        """Batches of full size, epoch after epoch."""
        size = self.plan.global_batch_size
        loader = train_loader(self.plan, self.strategy.inputs)
        works = not loader.resident or loader.augment is not None or loader.mixup is not None
        self.ahead = self.plan.prefetch + 1 if works and self.plan.prefetch else 0
        if len(self.plan.dataset.train) < size:
            raise ConfigError(
                f"a batch has {size:,} images, and {self.plan.dataset.name} only "
                f"{len(self.plan.dataset.train):,}: choose a smaller --batch-size"
            )
        while True:
            with closing(iter(loader)) as batches:
                for batch in batches:
                    if batch.size == size:
                        yield batch


class Streamed:
    """What takes a batch each time, once the batches that the loader has made ahead are used up."""

    def __init__(self, trained: Trained, queue: Callable[[], Any]) -> None:
        self._queue = queue
        self._ahead = trained.ahead

    def seconds(self, repeat: int) -> float:
        """Of one, the mean of ``repeat``, or more if so few would be a guess at the loader's."""
        for _ in range(self._ahead):
            self._queue()
        nd.waitall()
        repeat = max(repeat, 2 * self._ahead)
        began = time.perf_counter()
        for _ in range(repeat):
            self._queue()
        nd.waitall()
        return (time.perf_counter() - began) / repeat


class OfNothing:
    """Sums or updates that come again and again, of gradients that are 0, as others would grow."""

    def __init__(self, trained: Trained, queue: Callable[[], Any]) -> None:
        strategy: Any = trained.strategy
        self._updates = getattr(strategy, "trainer", None) or strategy.updates
        self._copies, self._queue = range(len(strategy.inputs)), queue

    def seconds(self, repeat: int) -> float:
        """Of one, the mean of ``repeat``."""
        self._updates.zero_grad(self._copies)
        nd.waitall()
        began = time.perf_counter()
        for _ in range(repeat):
            self._queue()
        nd.waitall()
        return (time.perf_counter() - began) / repeat


class Gated:
    """Steps that the devices make while the host is far ahead: what they take, the host left out.

    ``queue``: queues one that uses ``arrays``. `gluonlab.bench.harness.rounds` times it.
    """

    def __init__(self, arrays: List[nd.NDArray], queue: Callable[[], Any]) -> None:
        self._arrays, self._queue = arrays, queue
        self._patience_s = 0.0
        self.last: Any = None  # what ``queue`` gave, behind a gate
        self.waits = False  # whether the host waits for the devices within a step

    def seconds(self, repeat: int) -> float:
        """Of a step, the mean of ``repeat`` of them, or of LEAST_GATED to MOST_GATED."""
        if not self._patience_s:
            self._freely(1)  # it binds and allocates
            self._patience_s = PATIENCE_S + 3 * self._freely(1)
        repeat = max(LEAST_GATED, min(repeat, MOST_GATED))
        return self._freely(repeat) if self.waits else self._behind_a_gate(repeat)

    def _behind_a_gate(self, repeat: int) -> float:
        gate = Gate(self._arrays, self._patience_s)
        self.last = self._queue()
        self.waits = not gate.held
        gate.stay(self._patience_s * repeat)
        for _ in range(repeat - 1):
            self.last = self._queue()
        began = time.perf_counter()
        gate.open()
        nd.waitall()
        return self._freely(repeat) if self.waits else (time.perf_counter() - began) / repeat

    def _freely(self, repeat: int) -> float:
        began = time.perf_counter()
        for _ in range(repeat):
            self.last = self._queue()
        nd.waitall()
        return (time.perf_counter() - began) / repeat
