"""Measures a step on several devices, part by part, beside one on a single device.

All windows take turns in one process, so that what slows the machine for a while slows all of them.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from mxnet import nd

from gluonlab.bench.harness.rounds import Timed, time_in_turns
from gluonlab.config import TrainConfig
from gluonlab.data.loading.shards import Batch
from gluonlab.data.sets.dataset import ArraySplit, Dataset, ReadAheadSplit
from gluonlab.data.sets.registry import takes
from gluonlab.engine.invoke import AddInto, CopyInto
from gluonlab.engine.neighbours import own_cores
from gluonlab.errors import ConfigError
from gluonlab.host.resources import room
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.strategy import DATA, MakeStrategy
from gluonlab.study.speedup import parts as windows
from gluonlab.study.speedup.advice import Facts
from gluonlab.study.speedup.parts import Parts, parts
from gluonlab.study.speedup.trained import SUM, UPDATE, Gated, OfNothing, Trained
from gluonlab.timeline.phases import BACKWARD, FORWARD, STAGES
from gluonlab.timeline.shares import Timeline

ROUNDS = 11
BLOCK_S = 0.1
MOST_COPIED = 32 * 2**20  # bytes of the plain sum; more take in proportion
FEW = 16  # images per device: fewer are doubled to see what an image costs, more are halved
RECORDED_S, FEWEST_RECORDED, MOST_RECORDED = 0.4, 4, 60  # steps of the trace
Progress = Callable[[str], None]


class Measured(NamedTuple):
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
    facts: Facts

    def columns(self) -> Dict[str, List[float]]:
        """The `differences` of each round."""
        count = len(self.rounds[windows.STEP])
        each = [
            windows.differences({name: values[number] for name, values in self.rounds.items()})
            for number in range(count)
        ]
        return {name: [found[name] for found in each] for name in each[0]}

    def parts(self) -> Parts:
        """Those of all rounds."""
        columns = self.columns()
        return parts({name: median(values) for name, values in columns.items()}, self.ratio)


def on_one(config: TrainConfig, trained: Trained) -> TrainConfig:
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
) -> Measured:
    """Measure the training of ``config``, whose CPU devices have their threads.

    ``begins`` is called when it is known that there is something to measure.

    ``strategy``: as for `gluonlab.training.loop.train`; of one device, too. Raises a UsageError.
    """
    with ExitStack() as stack:
        trained = Trained(config, dataset, strategy)
        stack.callback(trained.close)
        if trained.devices < 2:
            raise ConfigError(
                f"{trained.plan.ctxs[0]} is one device, and a speed-up is that of several over "
                "one: give --gpus 2 or more, or as many --devices"
            )
        begins()
        one = Trained(on_one(config, trained), trained.plan.dataset, strategy)
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
        return Measured(
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


def _facts(trained: Trained) -> Facts:
    """What a training is like, for the choice of what to try."""
    plan = trained.plan
    used, copies, train = plan.settled.config, len(plan.split.copies), plan.dataset.train
    grows = takes(plan.config.dataset, "samples")
    here = room()
    return Facts(
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
        decoders=(used.decoders or own_cores()) if isinstance(train, ReadAheadSplit) else None,
        free_bytes=here.free if here is not None else 0,
        cores=own_cores(),
        is_cpu=plan.ctxs[0].device_type == "cpu",
        shares=[len(x) for x in trained.batch.xs],
    )


def _gated(trained: Trained) -> Dict[str, Gated]:
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


def _by_themselves(trained: Trained) -> Dict[str, Timed]:
    """Parts of a step, each repeated without the others."""
    batch, passes = trained.batch, (FORWARD, BACKWARD, STAGES)
    return {
        windows.JUST_INPUT: trained.fetches(),
        windows.JUST_SUM: OfNothing(trained, partial(trained.queue, batch, (*passes, UPDATE))),
        windows.JUST_UPDATE: OfNothing(trained, partial(trained.queue, batch, (*passes, SUM))),
    }


def _other_size(trained: Trained) -> "tuple[float, Batch]":
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


def _updates_in_store(trained: Trained) -> bool:
    trainer = getattr(trained.strategy, "trainer", None)
    return bool(trainer is not None and trainer._update_on_kvstore)


class _PlainSum:
    """Gradients on all devices, copied to the first, added there, and copied back, as they are.

    Called, it queues that for as many bytes as the training's gradients have, or MOST_COPIED;
    ``factor``: how many times as many those are.
    """

    def __init__(self, trained: Trained) -> None:
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
