"""One copy of a network, its channels split over devices: each level's graphs, and the meetings."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.parallel.compiled_graph import (
    BoundGraph,
    CompiledGraph,
    Heads,
    SharedArrays,
    bytes_of,
)
from gluonlab.parallel.data.replica import IMAGES, LABELS
from gluonlab.parallel.mixed_precision import Conversion
from gluonlab.parallel.strategy import Around
from gluonlab.parallel.tensor.layout import (
    COPY,
    PASS,
    SUM,
    Crossing,
    Layout,
    crossings,
    graphs,
    wanted,
)

Call = Callable[[], None]
Params = Mapping[str, gluon.Parameter]


# The operators that join the devices, each of the first two the other's derivative (M. Shoeybi et
# al., "Megatron-LM: Training multi-billion parameter language models using model parallelism",
# 2019, section 3, where `CopyOperator` is f and `SumOperator` is g).


class CopyOperator:
    """Identity forward, allreduce backward: every device computes with the same value."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        """``values``: of each device, all equal."""
        self._schedule, self.results = schedule, list(values)

    def forward(self) -> List[Call]:
        """Nothing is to be done."""
        return []

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """The calls that add up what each device has of the value's gradient, in place."""
        return [Executor(self._schedule, [[gradient] for gradient in gradients]).run]


class SumOperator:
    """Allreduce forward, identity backward: every device has a summand of the same value."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        """``values``: the summand of each device, in whose place the sum appears."""
        self._schedule, self.results = schedule, list(values)

    def forward(self) -> List[Call]:
        """The calls that add up the summands, which nobody else takes, backward neither."""
        return [Executor(self._schedule, [[value] for value in self.results]).run]

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """Nothing is to be done: the gradient of a sum is that of each summand."""
        return []


class PassOperator:
    """The value goes on as it is, both ways: all that takes it is the same on every device."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        self.results = list(values)

    def forward(self) -> List[Call]:
        """Nothing is to be done."""
        return []

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """Nothing is to be done."""
        return []


OPERATORS: Dict[str, Callable[[Schedule, Sequence[nd.NDArray]], Any]] = {
    COPY: CopyOperator, SUM: SumOperator, PASS: PassOperator,
}  # fmt: skip


class _Calls(NamedTuple):
    """What is queued for microbatches of one kind, and what that leaves on the first device."""

    images: List[CopyInto]
    labels: List[CopyInto]
    forward: List[Tuple[List[CompiledGraph], List[BoundGraph], List[Call]]]
    backward: List[Tuple[bool, Call]]  # whether the devices meet in it
    heads: List[Heads]
    outputs: List[nd.NDArray]
    moved: "MicrobatchTraffic"


class MicrobatchTraffic(NamedTuple):
    """Bytes that go from device to device for one microbatch.

    ``inputs``: of images and labels, to all devices but the first. ``sums``: the size of each array
    that the devices add up, forward and backward.
    """

    inputs: int
    sums: List[int]


class ChannelReplica:
    """Trains on microbatches and scores, on ``ctxs``, device i with the parameters ``params[i]``.

    ``scoring``: the layout for labels (n,), where those of training are of another kind.
    """

    def __init__(
        self,
        layout: Layout,
        scoring: Layout,
        params: Sequence[Params],
        ctxs: Sequence[mx.Context],
        schedule: Schedule,
        convert: Conversion,
    ) -> None:
        self._schedule, self._ctxs, self.ctx = schedule, list(ctxs), ctxs[0]
        self.levels = Levels(layout, params, ctxs, convert)
        self.scoring = self.levels if scoring is layout else Levels(scoring, params, ctxs, convert)
        self._gradients = [SharedArrays(ctx) for ctx in ctxs]
        self._made: Dict[Any, _Calls] = {}
        self._last: "_Calls | None" = None

    def forward(
        self,
        images: nd.NDArray,
        labels: nd.NDArray,
        train: bool = True,
        add: bool = False,
        around: Optional[Around] = None,
    ) -> Tuple[nd.NDArray, nd.NDArray]:
        """As `gluonlab.parallel.data.replica.GraphReplica.forward`; ``around`` sees meetings."""
        key = (images.shape, images.dtype, labels.shape, labels.dtype, add)
        if key not in self._made:
            self._made[key] = self._make(images, labels, add)
        calls = self._last = self._made[key]
        for copy in calls.images:
            copy.copy(images)
        for copy in calls.labels:
            copy.copy(labels)
        for parts, bounds, meetings in calls.forward:
            for part, bound in zip(parts, bounds):
                part.forward(bound, train)
            for call in meetings:
                _meet(call, around)
        loss, scores, *others = calls.outputs
        return (loss if train or not others else others[0]), scores

    def backward(self, scale: float = 1.0, around: Optional[Around] = None) -> None:
        """Write the gradients of the last forward's loss, times ``scale``, on all devices."""
        assert self._last is not None, "forward comes first"
        for heads in self._last.heads:
            heads.fill(scale)
        for meets, call in self._last.backward:
            if meets:
                _meet(call, around)
            else:
                call()

    def moved(self) -> MicrobatchTraffic:
        """What the devices told each other for the last microbatch."""
        assert self._last is not None, "forward comes first"
        return self._last.moved

    def _make(self, images: nd.NDArray, labels: nd.NDArray, add: bool) -> _Calls:
        levels = self.scoring if len(labels.shape) == 1 else self.levels
        bounds: List[List[BoundGraph]] = []
        forward: List[Any] = []
        meetings: List[List[Any]] = []
        given: List[Dict[str, nd.NDArray]] = [{} for _ in self._ctxs]
        for level, parts in enumerate(levels.parts):
            inputs, last = {IMAGES: images, LABELS: labels}, level == len(levels.parts) - 1
            bounds.append(
                [
                    # backward takes a level's gradients before it writes those of the level before
                    part.bind(
                        _taken(part, inputs),
                        add,
                        given=own,
                        heads=last,
                        into=shared.like({name: own[name] for name in part.wants}, level % 2),
                    )
                    for part, own, shared in zip(parts, given, self._gradients)
                ]
            )
            between = levels.between[level] if level < len(levels.between) else []
            operators = [
                OPERATORS[crossing.kind](
                    self._schedule, [bound.outputs[place] for bound in bounds[-1]]
                )
                for place, crossing in enumerate(between)
            ]
            meetings.append(operators)
            given = [
                {each.name: operator.results[device] for each, operator in zip(between, operators)}
                for device in range(len(self._ctxs))
            ]
            forward.append((parts, bounds[-1], [c for each in operators for c in each.forward()]))
        backward, heads = self._backward(levels, bounds, meetings)
        all_bounds = [bound for of_level in bounds for bound in of_level]
        return _Calls(
            [bound.inputs[IMAGES] for bound in all_bounds if IMAGES in bound.inputs],
            [bound.inputs[LABELS] for bound in all_bounds if LABELS in bound.inputs],
            forward, backward, heads, bounds[-1][0].outputs, _moved(levels, bounds),
        )  # fmt: skip

    def _backward(
        self,
        levels: "Levels",
        bounds: List[List[BoundGraph]],
        meetings: List[List[Any]],
    ) -> Tuple[List[Tuple[bool, Call]], List[Heads]]:
        """The calls from the last level to the first, and the heads of the losses."""
        calls: List[Tuple[bool, Call]] = []
        losses: List[Heads] = []
        for level in range(len(bounds) - 1, -1, -1):
            for device, part in enumerate(levels.parts[level]):
                bound = bounds[level][device]
                if level == len(bounds) - 1:
                    losses.append(bound.heads)
                else:
                    after = bounds[level + 1][device].gradients
                    own = {
                        place: after[crossing.name]
                        for place, crossing in enumerate(levels.between[level])
                        if crossing.learns
                    }
                    bound = bound._replace(heads=Heads(bound.outputs, (), own))
                if part.learns:
                    calls.append((False, partial(part.backward, bound)))
            if level:
                for crossing, operator in zip(levels.between[level - 1], meetings[level - 1]):
                    if crossing.learns:
                        arrays = [bound.gradients[crossing.name] for bound in bounds[level]]
                        calls += [(True, call) for call in operator.backward(arrays)]
        return calls, losses


def _meet(call: Call, around: Optional[Around]) -> None:
    """Have the devices meet; ``around``, if given, calls it in its place."""
    if around is None:
        call()
    else:
        around("allreduce", call)


class Levels:
    """``parts[level][device]``, and what crosses ``between`` them."""

    def __init__(
        self,
        layout: Layout,
        params: Sequence[Params],
        ctxs: Sequence[mx.Context],
        convert: Conversion,
    ) -> None:
        self.between: List[List[Crossing]] = crossings(layout)
        by_device = [graphs(layout, device) for device in range(len(ctxs))]
        levels = [[own[level] for own in by_device] for level in range(layout.levels)]
        self.parts = [
            [
                CompiledGraph(
                    convert(own), params[device], ctxs[device],
                    [0] if level == layout.levels - 1 else [],
                    wanted(self.between[level - 1]) if level else [],
                )
                for device, own in enumerate(of_level)
            ]
            for level, of_level in enumerate(levels)
        ]  # fmt: skip


def _moved(levels: Levels, bounds: Sequence[Sequence[BoundGraph]]) -> MicrobatchTraffic:
    """Sums are those that go forward, and of the gradients of what all devices compute with."""
    inputs = [array for level in bounds for bound in level[1:] for array in bound.arrays.values()]
    sums = [
        value
        for between, (bound, *_) in zip(levels.between, bounds)
        for value, crossing in zip(bound.outputs, between)
        if crossing.kind == SUM or (crossing.kind == COPY and crossing.learns)
    ]
    return MicrobatchTraffic(sum(map(_bytes, inputs)), list(map(_bytes, sums)))


def _bytes(array: nd.NDArray) -> int:
    return bytes_of((array.shape, array.dtype))


def _taken(part: CompiledGraph, inputs: Mapping[str, nd.NDArray]) -> Dict[str, nd.NDArray]:
    names = set(part.graph.list_arguments())
    return {name: array for name, array in inputs.items() if name in names}
