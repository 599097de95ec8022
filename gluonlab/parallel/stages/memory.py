"""What stages of a network take on each device, planned.

A stage's graphs share the memory of their activations slot by slot: as many slots as microbatches
are kept there, by `gluonlab.parallel.pipeline.check.peaks`.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, List, NamedTuple, Sequence, Set, Tuple

from mxnet import gluon

from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.stage_gradients import Kind, Kinds, bytes_of
from gluonlab.parallel.objective import label_columns
from gluonlab.parallel.pipeline.check import peaks
from gluonlab.parallel.pipeline.schedule import SCHEDULES, PipelineSchedule
from gluonlab.parallel.planned import Graph, Shards, Taken, input_kinds, of_parameters
from gluonlab.parallel.split import Split
from gluonlab.parallel.stages.stage import ACTIVATION, Stage
from gluonlab.parallel.strategy import StrategyPlan

MakeSchedule = Callable[[int], PipelineSchedule]  # for a number of microbatches


class Binding(NamedTuple):
    """A graph that the pipeline binds for a stage: for how many images, and in which slot.

    ``columns``: of their labels, `gluonlab.parallel.objective.label_columns`. ``add``: whether it
    adds to the gradients that are there.
    """

    images: int
    columns: int
    add: bool
    slot: int


def schedule_of(split: Split, microbatches: int) -> PipelineSchedule:
    """The order in which a copy of the network works on so many microbatches."""
    return SCHEDULES[split.schedule](split.size, microbatches, split.stages_per_device)


def bindings(
    shards: Shards, microbatches: Microbatches, split: Split, columns: int
) -> List[Set[Binding]]:
    """What `gluonlab.parallel.pipeline.executor.Pipeline` binds, of each stage."""
    found: List[Set[Binding]] = [set() for _ in range(split.size * split.stages_per_device)]
    for share in filter(None, shards.trained):
        bounds = microbatches.bounds(share)
        slots = peaks(schedule_of(split, len(bounds)))
        for number, (begin, end) in enumerate(bounds):
            for own, count in zip(found, slots):
                own.add(Binding(end - begin, columns, number > 0, number % count))
    for share in filter(None, shards.scored):
        for begin, end in microbatches.bounds(share):
            for own in found:
                own.add(Binding(end - begin, 0, False, 0))
    return found


class StagedMemory:
    """Tells what the devices of a copy take, stage i on device ``i % plan.split.size``."""

    def __init__(
        self, stages: Sequence[Stage], loss: gluon.HybridBlock, plan: StrategyPlan
    ) -> None:
        self._stages, self._plan, self._columns = stages, plan, label_columns(loss)
        self._given: Dict[Tuple[int, int], Kind] = {}
        self._own = [
            StageMemory(stage, partial(self._activation, number), plan)
            for number, stage in enumerate(stages)
        ]

    def taken(self, shards: Shards) -> List[Taken]:
        """As `gluonlab.parallel.strategy.Strategy` says."""
        split = self._plan.split
        bound = bindings(shards, self._plan.microbatches, split, self._columns)
        of_stages = [each.taken(graphs) for each, graphs in zip(self._own, bound)]
        return [
            Taken(*map(sum, zip(*of_stages[device :: split.size]))) for device in range(split.size)
        ]

    def _activation(self, number: int, images: int) -> Kind:
        """What the stage before gives for so many images."""
        key = number, images
        if key not in self._given:
            before = self._stages[number - 1]
            split = self._plan.split
            kinds = input_kinds(images, split.image_shape, self._columns, split.image_dtype)
            if number > 1:
                kinds[ACTIVATION] = self._activation(number - 1, images)
            inputs = {name: kinds[name] for name in before.inputs}
            [self._given[key]] = Graph(before.graph, before.kept).outputs(inputs)
        return self._given[key]


class StageMemory:
    """Tells what one stage takes; ``given(images)``: shape and type of what it is given."""

    def __init__(self, stage: Stage, given: Callable[[int], Kind], plan: StrategyPlan) -> None:
        self._stage, self._given, self._plan = stage, given, plan
        self._always = of_parameters(
            stage.params.values(), plan.make_optimizer(), plan.kvstore, len(plan.split.copies)
        )
        self._planned: Dict[Tuple[int, int], int] = {}  # of graphs, by images and columns
        self._apart: Dict[Tuple[int, int], Tuple[int, int]] = {}

    def taken(self, bound: Set[Binding]) -> Taken:
        """All together, with these graphs."""
        apart = [self._own(binding.images, binding.columns) for binding in bound]
        own, inputs = map(sum, zip(*apart))
        slots: Dict[int, Tuple[int, int]] = {}  # the largest graph of each
        for binding in bound:
            size = binding.images, binding.columns
            slots[binding.slot] = max(slots.get(binding.slot, size), size)
        activations = own + sum(self._activations(*size) for size in slots.values())
        return Taken(*self._always, activations, inputs)

    def _own(self, images: int, columns: int) -> Tuple[int, int]:
        """What each binding has to itself: beside what is an input of the network, and that."""
        key = images, columns
        if key not in self._apart:
            kinds = self._kinds(images, columns)
            taken = {name: bytes_of(kind) for name, kind in kinds.items()}
            given = taken.pop(ACTIVATION, 0)
            self._apart[key] = given + self._graph(columns).own(kinds), sum(taken.values())
        return self._apart[key]

    def _activations(self, images: int, columns: int) -> int:
        key = images, columns
        if key not in self._planned:
            self._planned[key] = self._graph(columns).activations(self._kinds(images, columns))
        return self._planned[key]

    def _graph(self, columns: int) -> Graph:
        stage = self._stage
        symbol = stage.graph if columns else stage.scoring
        return Graph(symbol, stage.kept, [ACTIVATION] * stage.wants)

    def _kinds(self, images: int, columns: int) -> Kinds:
        split = self._plan.split
        found = input_kinds(images, split.image_shape, columns, split.image_dtype)
        if ACTIVATION in self._stage.inputs:
            found[ACTIVATION] = self._given(images)
        return {name: found[name] for name in self._stage.inputs}
