"""The ways of a network over devices that are compared, each with a strategy and a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Optional

from gluonlab.bench.harness.measured_on import MeasuredOn
from gluonlab.bench.splits.names import (
    CHANNELS,
    CUT_APART,
    DATA,
    GPIPE,
    INTERLEAVED,
    LAYERS,
    NAMES,
    ONE,
    ONE_F_ONE_B,
    SUMS,
    Task,
    run_options,
)
from gluonlab.config import TrainConfig
from gluonlab.data.loading.loader import Loader
from gluonlab.data.loading.shards import Batch
from gluonlab.data.sets.registry import load_dataset
from gluonlab.errors import UsageError
from gluonlab.parallel.pipeline.executor import Program
from gluonlab.parallel.stages.strategy import StagedParallel
from gluonlab.parallel.strategy import Strategy
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.prepare import prepare

CLASSES = 10
# The same batch comes again and again. If it were learnt, its gradients would become denormal
# numbers, with which the CPU computes slowly.
LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Way:
    """A strategy that is ready to train, and a batch for it; or the ``reason`` why there is none.

    ``name``: one of NAMES. ``cuts``: the layers with which stages begin, but the first.
    """

    name: str
    plan: Optional[Plan] = None
    strategy: Optional[Strategy] = None
    batch: Optional[Batch] = None
    reason: Optional[str] = None

    @property
    def staged(self) -> Optional[StagedParallel]:
        """The strategy, if it is one of stages."""
        return self.strategy if isinstance(self.strategy, StagedParallel) else None

    @property
    def cuts(self) -> str:
        """``3,7``, or nothing."""
        return ",".join(map(str, self.staged.cuts)) if self.staged is not None else ""

    def step(self) -> None:
        """Queue the training on the batch."""
        assert self.strategy is not None and self.batch is not None
        self.strategy.step(self.batch)

    def program(self) -> Program:
        """What a step of stages queues."""
        assert self.staged is not None and self.batch is not None
        [program] = self.staged.programs(self.batch)
        return program


def make_ways(
    task: Task,
    on: MeasuredOn,
    devices: int,
    microbatches: int,
    cuts: Optional[Mapping[str, str]] = None,
) -> Iterator[Way]:
    """All of NAMES, on the first ``devices`` of ``on``; stages as many as devices are cut alike.

    ``cuts``: where those of `cuts_of` begin; what is not among them is chosen by measured time.
    """
    chosen = dict(cuts or {})
    found = {}
    for name in (ONE_F_ONE_B, GPIPE, INTERLEAVED, LAYERS, CHANNELS, DATA, ONE):
        options = run_options(name, microbatches)
        alike = ONE_F_ONE_B if name in (GPIPE, LAYERS) else name
        if alike in chosen:
            options["cut"] = chosen[alike]
        way = found[name] = _make(name, task, on.first(1 if name == ONE else devices), options)
        if name == ONE_F_ONE_B and way.cuts:
            chosen[name] = way.cuts
    yield from (found[name] for name in NAMES)


def cuts_of(task: Task, on: MeasuredOn, devices: int, microbatches: int) -> Dict[str, str]:
    """The cuts of pipelines by name, as measured times choose them now: not always alike."""
    ways = make_ways(task, on, devices, microbatches)
    return {way.name: way.cuts for way in ways if way.name in CUT_APART and way.cuts}


def _make(name: str, task: Task, devices: str, options: Dict[str, Any]) -> Way:
    size = task.global_batch_size
    dataset = load_dataset("synthetic", samples=size, shape=task.shape, classes=CLASSES)
    config = TrainConfig(
        model=task.model, dataset="synthetic", devices=devices,
        threads=1 if devices.startswith("cpu") else None, global_batch_size=size, optimizer="sgd",
        lr=LEARNING_RATE, momentum=0.9, kvstore=SUMS, **options,
    )  # fmt: skip
    try:
        plan = make_plan(config, dataset)
        strategy = prepare(plan).strategy
    except UsageError as error:
        return Way(name, reason=str(error))
    loader = Loader(
        dataset.train, strategy.inputs, size, raw=True, resident_bytes=plan.resident_bytes
    )
    return Way(name, plan, strategy, next(iter(loader)))
