"""Measures a step on several devices, part by part, beside one on a single device.

A training is measured in short windows of steps, whole or with parts left out. All windows take
turns in one process, so that what slows the machine for a while slows all of them. What is learnt
is thrown away: the learning rate is so small that the same batch can come again and again, and sums
or updates be left out, without numbers that compute at another speed.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, closing
from functools import partial
from statistics import median
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Sequence

from mxnet import nd

from gluonlab.bench.harness.interleaved_rounds import Timed, time_in_turns
from gluonlab.config import TrainConfig
from gluonlab.data.loading.split_batch import Batch
from gluonlab.data.sets.dataset import ArraySplit, Dataset, ReadAheadSplit
from gluonlab.data.sets.dataset_registry import takes
from gluonlab.engine.fast_invoke import AddInto, CopyInto, EngineHold
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.errors import ConfigError
from gluonlab.host.resources import available_memory
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.strategy import DATA, Around, MakeStrategy
from gluonlab.study.speedup import step_breakdown as windows
from gluonlab.study.speedup.step_breakdown import StepParts, parts
from gluonlab.timeline.recorder import Recorder
from gluonlab.timeline.timeline import BACKWARD, STAGES, Timeline
from gluonlab.training.loss_meter import LossLog
from gluonlab.training.plan import make_plan
from gluonlab.training.training_setup import prepare, train_loader

ROUNDS = 11
BLOCK_S = 0.1
MOST_COPIED = 32 * 2**20  # bytes of the plain sum; more take in proportion
FEW = 16  # images per device: fewer are doubled to see what an image costs, more are halved
RECORDED_S, FEWEST_RECORDED, MOST_RECORDED = 0.4, 4, 60  # steps of the trace
LEARNING_RATE = 1e-5
SUM, UPDATE, FORWARD = "allreduce", "update", "forward"  # what strategies call them
MOST_GATED = 32  # steps that wait behind a gate; more would be measured in keeping the queue
LEAST_GATED = 4
PATIENCE_S = 0.5  # a host that has not queued a step after so long waits for its devices


class TrainingFacts(NamedTuple):
    """What a training is like now.

    ``each``: images per copy of the network, of which there are ``copies``, one on each device or
    on several together; ``most``: how many the data set has for each. ``option``: the one that sets
    the batch's size. ``data_bytes``: of all training images, None for files that are decoded anew;
    ``devices``: their names, as --devices takes them; ``shares``: each one's images of a step.
    """

    devices: Sequence[str]
    each: int
    copies: int
    most: int
    option: str
    kvstore: str
    microbatches: Optional[int]
    prefetch: int
    resident_bytes: int
    data_bytes: Optional[int]
    decoders: Optional[int]
    free_bytes: int
    cores: int
    is_cpu: bool
    shares: Sequence[int] = ()


class StepMeasurement(NamedTuple):
    """Seconds of a step in each window, by round, and a trace of some steps.

    ``images``: of a step, on all devices and on the one; ``ratio``: those of OTHER_SIZE over them.
    ``waits``: the host waits for the devices in each step. ``joint``: the store updates.
    ``apart``: forward and backward are phases of their own.
    ``gradient_bytes``: of one device.
    """

    rounds: Dict[str, List[float]]
    devices: List[str]
    images: int
    images_of_one: int
    ratio: float
    waits: bool
    joint: bool
    apart: bool
    gradient_bytes: int
    threads: int
    timeline: Timeline
    dataset: Dataset
    facts: TrainingFacts

    def columns(self) -> Dict[str, List[float]]:
        """The `differences` of each round."""
        count = len(self.rounds[windows.STEP])
        each = [
            windows.differences({name: values[number] for name, values in self.rounds.items()})
            for number in range(count)
        ]
        return {name: [found[name] for found in each] for name in each[0]}

    def parts(self) -> StepParts:
        """Those of all rounds."""
        columns = self.columns()
        return parts({name: median(values) for name, values in columns.items()}, self.ratio)


def on_one(config: TrainConfig, trained: MeasuredTraining) -> TrainConfig:
    """The same training on the first of the devices, with as many images for it."""
    first = trained.plan.ctxs[0]
    return config.replace(
        gpus=None, devices=f"{first.device_type}:{first.device_id}", require_gpu=False,
        threads=trained.plan.threads if first.device_type == "cpu" else None,
        split=DATA, stages=None, cut=None, balance=None, pipeline_schedule=None,
        stages_per_device=None, ways=None, channels=None, topology=None, compress=None,
        kvstore="device", device_weights=None,
    )  # fmt: skip


def for_several(config: TrainConfig) -> TrainConfig:
    """``config`` with one thread for each CPU device, as one alone would use all cores, too."""
    return config if config.threads is not None else config.replace(threads=1)


def measure(
    config: TrainConfig,
    dataset: Optional[Dataset] = None,
    strategy: Optional[MakeStrategy] = None,
    rounds: int = ROUNDS,
    done: Callable[[], object] = lambda: None,
    begins: Callable[[], object] = lambda: None,
) -> StepMeasurement:
    """Measure the training of ``config``, whose CPU devices have their threads.

    ``begins`` is called when it is known that there is something to measure.

    ``strategy``: as for `gluonlab.training.loop.train`; of one device, too. Raises a UsageError.
    """
    with ExitStack() as stack:
        trained = MeasuredTraining(config, dataset, strategy)
        stack.callback(trained.close)
        if trained.devices < 2:
            raise ConfigError(
                f"{trained.plan.ctxs[0]} is one device, and a speed-up is that of several over "
                "one: give --gpus 2 or more, or as many --devices"
            )
        begins()
        one = MeasuredTraining(on_one(config, trained), trained.plan.dataset, strategy)
        stack.callback(one.close)
        gated = _gated(trained)
        calls: Dict[str, Timed] = {windows.ONE: one.steps(), windows.STEP: trained.steps(),
                                   windows.AGAIN: trained.again, **gated}  # fmt: skip
        plain = _PlainSum(trained)
        calls.update(_by_themselves(trained))
        calls[windows.PLAIN] = plain
        queued: List[float] = []
        blocked: List[float] = []

        def noted() -> None:
            last = gated[windows.ALL].last
            queued.append(sum(phase.seconds for phase in last.values()))
            blocked.append(_blocked(last))
            done()

        seconds = time_in_turns(calls, rounds, done=noted, block_s=BLOCK_S)
        waits = gated[windows.ALL].waits
        seconds[windows.QUEUED] = queued
        seconds[windows.BLOCKED] = [0.0 if waits else each for each in blocked]
        seconds[windows.PLAIN] = [each * plain.factor for each in seconds[windows.PLAIN]]
        steps = int(RECORDED_S / median(seconds[windows.STEP]))
        timeline = trained.record(max(FEWEST_RECORDED, min(MOST_RECORDED, steps)))
        return StepMeasurement(
            rounds=seconds,
            devices=[str(ctx) for ctx in trained.plan.ctxs],
            images=trained.images,
            images_of_one=one.images,
            ratio=_other_size(trained)[0],
            waits=waits,
            joint=_updates_in_store(trained),
            apart=windows.FORWARD in gated,
            gradient_bytes=plain.gradient_bytes,
            threads=trained.plan.threads,
            timeline=timeline,
            dataset=trained.plan.dataset,
            facts=_facts(trained),
        )


def _facts(trained: MeasuredTraining) -> TrainingFacts:
    """What a training is like, for the choice of what to try."""
    plan = trained.plan
    used, copies, train = plan.resolved.config, len(plan.split.copies), plan.dataset.train
    grows = takes(plan.config.dataset, "samples")
    here = available_memory()
    return TrainingFacts(
        devices=[f"{ctx.device_type}:{ctx.device_id}" for ctx in plan.ctxs],
        each=plan.global_batch_size // copies,
        copies=copies,
        most=2**31 if grows else len(train) // copies,
        option="batch_size" if used.global_batch_size is None else "global_batch_size",
        kvstore=used.kvstore,
        microbatches=plan.microbatches.count,
        prefetch=plan.prefetch,
        resident_bytes=plan.resident_bytes,
        data_bytes=(
            train.images.nbytes + train.labels.nbytes if isinstance(train, ArraySplit) else None
        ),
        decoders=(used.decoders or cores_per_process())
        if isinstance(train, ReadAheadSplit)
        else None,
        free_bytes=here.free if here is not None else 0,
        cores=cores_per_process(),
        is_cpu=plan.ctxs[0].device_type == "cpu",
        shares=[len(x) for x in trained.batch.xs],
    )


def _gated(trained: MeasuredTraining) -> Dict[str, Gated]:
    """The windows without the host."""
    batch = trained.batch
    _, other = _other_size(trained)

    def window(batch: Batch, *without: str) -> Gated:
        return Gated(list(batch.xs), partial(trained.queue, batch, without))

    found = {
        windows.ALL: window(batch),
        windows.NO_SUM: window(batch, SUM),
        windows.NO_UPDATE: window(batch, UPDATE),
        windows.PASSES: window(batch, SUM, UPDATE),
        windows.OTHER_SIZE: window(other, SUM, UPDATE),
    }
    if BACKWARD in trained.queue(batch):  # a strategy of stages has both passes in one phase
        found[windows.FORWARD] = window(batch, BACKWARD, SUM, UPDATE)
    if isinstance(trained.strategy, DataParallel) and not trained.plan.sync_bn:
        for device, array in enumerate(batch.xs):
            found[windows.alone(device)] = Gated([array], partial(trained.alone, device))
    return found


def _by_themselves(trained: MeasuredTraining) -> Dict[str, Timed]:
    """Parts of a step, each repeated without the others."""
    batch, passes = trained.batch, (FORWARD, BACKWARD, STAGES)
    return {
        windows.JUST_INPUT: trained.fetches(),
        windows.JUST_SUM: OfNothing(trained, partial(trained.queue, batch, (*passes, UPDATE))),
        windows.JUST_UPDATE: OfNothing(trained, partial(trained.queue, batch, (*passes, SUM))),
    }


def _other_size(trained: MeasuredTraining) -> "tuple[float, Batch]":
    """Another batch, and its images over those of a step: half of each shard, or twice."""
    batch = trained.batch
    if min(map(len, batch.xs)) >= FEW:
        half = [slice(0, len(x) // 2) for x in batch.xs]
        xs, ys = ([a[s].copy() for a, s in zip(arrays, half)] for arrays in (batch.xs, batch.ys))
    else:
        xs, ys = ([nd.concat(a, a, dim=0) for a in arrays] for arrays in (batch.xs, batch.ys))
    images = sum(map(len, xs))
    return images / batch.size, Batch(xs, ys, images)


def _blocked(queued: Any) -> float:
    """How long the host did not compute within the sum."""
    spent = (queued or {}).get(SUM)
    return 0.0 if spent is None else max(0.0, spent.seconds - spent.computing)


def _updates_in_store(trained: MeasuredTraining) -> bool:
    trainer = getattr(trained.strategy, "trainer", None)
    return bool(trainer is not None and trainer._update_on_kvstore)


class _PlainSum:
    """Gradients on all devices, copied to the first, added there, and copied back, as they are.

    Called, it queues that for as many bytes as the training's gradients have, or MOST_COPIED;
    ``factor``: how many times as many those are.
    """

    def __init__(self, trained: MeasuredTraining) -> None:
        params = trained.strategy.net.collect_params().values()
        learnt = [param for param in params if param.grad_req != "null"]
        self.gradient_bytes = 4 * sum(math.prod(param.shape) for param in learnt)
        used = max(4, min(self.gradient_bytes, MOST_COPIED))
        self.factor = max(1.0, self.gradient_bytes / used)
        first, *others = trained.plan.ctxs
        shape = (used // 4,)
        self._first = nd.zeros(shape, ctx=first)
        arrived = [nd.zeros(shape, ctx=first) for _ in others]
        self._others = [nd.zeros(shape, ctx=ctx) for ctx in others]
        self._come = [CopyInto(array) for array in arrived]
        self._add = AddInto(self._first)
        self._arrived = arrived
        self._go = [CopyInto(array) for array in self._others]

    def __call__(self) -> None:
        for copy, array, arrived in zip(self._come, self._others, self._arrived):
            copy.copy(array)
            self._add.add(arrived)
        for copy in self._go:
            copy.copy(self._first)


# --- windows of steps


class HostPhaseCost(NamedTuple):
    """Seconds that the host takes for a phase while no device works: by the clock, and computing.

    What it does not compute it sleeps, or waits for others.
    """

    seconds: float
    computing: float


class MeasuredTraining:
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

    def queue(self, batch: Batch, without: Collection[str] = ()) -> Dict[str, HostPhaseCost]:
        """A step without some of its phases; what the host took to queue the others."""
        spent: Dict[str, HostPhaseCost] = {}
        with self.plan.pieces():
            for name, queue in self.strategy.phases(batch):
                if name in without:
                    continue
                wall, cpu = time.perf_counter(), time.thread_time()
                queue()
                before = spent.get(name, HostPhaseCost(0.0, 0.0))
                spent[name] = HostPhaseCost(
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


def _mean_seconds(queue: Callable[[], Any], repeat: int) -> float:
    """Of what is queued ``repeat`` times, after all that was queued before."""
    nd.waitall()
    began = time.perf_counter()
    for _ in range(repeat):
        queue()
    nd.waitall()
    return (time.perf_counter() - began) / repeat


class Streamed:
    """What takes a batch each time, once the batches that the loader has made ahead are used up."""

    def __init__(self, trained: MeasuredTraining, queue: Callable[[], Any]) -> None:
        self._queue = queue
        self._ahead = trained.ahead

    def seconds(self, repeat: int) -> float:
        """Of one, the mean of ``repeat``, or more if so few would be a guess at the loader's."""
        for _ in range(self._ahead):
            self._queue()
        return _mean_seconds(self._queue, max(repeat, 2 * self._ahead))


class OfNothing:
    """Sums or updates that come again and again, of gradients that are 0, as others would grow."""

    def __init__(self, trained: MeasuredTraining, queue: Callable[[], Any]) -> None:
        strategy: Any = trained.strategy
        self._updates = getattr(strategy, "trainer", None) or strategy.updates
        self._copies, self._queue = range(len(strategy.inputs)), queue

    def seconds(self, repeat: int) -> float:
        """Of one, the mean of ``repeat``."""
        self._updates.zero_grad(self._copies)
        return _mean_seconds(self._queue, repeat)


class Gated:
    """Steps that the devices make while the host is far ahead: what they take, the host left out.

    ``queue``: queues one that uses ``arrays``. `gluonlab.bench.harness.interleaved_rounds` times
    it.
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
        gate = EngineHold(self._arrays, self._patience_s)
        self.last = self._queue()
        self.waits = not gate.held_until_release
        gate.extend(self._patience_s * repeat)
        for _ in range(repeat - 1):
            self.last = self._queue()
        began = time.perf_counter()
        gate.release()
        nd.waitall()
        return self._freely(repeat) if self.waits else (time.perf_counter() - began) / repeat

    def _freely(self, repeat: int) -> float:
        def queue() -> None:
            self.last = self._queue()

        return _mean_seconds(queue, repeat)
