"""Runs one replica of a network with tensor parallelism: graphs of segments, and collectives."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.parallel.compiled_graph import ArrayMemory, BoundGraph, CompiledGraph, HeadGradients, array_bytes
from gluonlab.parallel.data.replica import IMAGES, LABELS
from gluonlab.parallel.mixed_precision import Conversion
from gluonlab.parallel.strategy import PhaseHook
from gluonlab.parallel.tensor.layout import (
    COPY,
    PASS,
    SUM,
    Layout,
    SegmentEdge,
    gradient_inputs,
    segment_edges,
    segment_graphs,
)

Call = Callable[[], None]
Params = Mapping[str, gluon.Parameter]


# The first two operators are each other's derivative (M. Shoeybi et al., "Megatron-LM: Training
# multi-billion parameter language models using model parallelism", 2019, section 3, where
# `CopyOperator` is f and `SumOperator` is g).


class CopyOperator:
    """Identity in forward, allreduce in backward: all devices use the same value."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        """Store each device's copy of the value."""
        self._schedule, self.results = schedule, list(values)

    def forward(self) -> List[Call]:
        """Return no calls."""
        return []

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """Return the calls that sum the devices' gradients of the value, in place."""
        return [Executor(self._schedule, [[gradient] for gradient in gradients]).run]


class SumOperator:
    """Allreduce in forward, identity in backward: each device has one summand of a value."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        """Store the devices' summands. The sum overwrites the summands."""
        self._schedule, self.results = schedule, list(values)

    def forward(self) -> List[Call]:
        """Return the calls that sum the values in place. No pass needs the summands afterwards."""
        return [Executor(self._schedule, [[value] for value in self.results]).run]

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """Return no calls: the gradient of each summand equals the gradient of the sum."""
        return []


class PassOperator:
    """Identity in both directions, for a value that every device uses in the same way."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        self.results = list(values)

    def forward(self) -> List[Call]:
        """Return no calls."""
        return []

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """Return no calls."""
        return []


OPERATORS: Dict[str, Callable[[Schedule, Sequence[nd.NDArray]], Any]] = {
    COPY: CopyOperator, SUM: SumOperator, PASS: PassOperator,
}  # fmt: skip


class _Calls(NamedTuple):
    """The calls for microbatches of one shape, and their outputs on the first device."""

    images: List[CopyInto]
    labels: List[CopyInto]
    forward: List[Tuple[List[CompiledGraph], List[BoundGraph], List[Call]]]
    backward: List[Tuple[bool, Call]]  # (whether the call is a collective, call)
    heads: List[HeadGradients]
    outputs: List[nd.NDArray]
    traffic: "MicrobatchTraffic"


class MicrobatchTraffic(NamedTuple):
    """Numbers of bytes that are sent between devices for one microbatch.

    ``inputs``: the bytes of the images and labels that are sent to all devices except the first.
    ``sums``: the size of each allreduce's array, in forward and in backward.
    """

    inputs: int
    sums: List[int]


class TensorReplica:
    """A replica of the network on ``ctxs``. Device i has the parameters ``params[i]``.

    ``scoring``: the layout for evaluation, with labels of shape (n,). ``schedule``: the allreduce
    for activations and their gradients.
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
        self.segments = self.scoring_segments = Segments(layout, params, ctxs, convert)
        if scoring is not layout:
            self.scoring_segments = Segments(scoring, params, ctxs, convert)
        self._gradients = [ArrayMemory(ctx) for ctx in ctxs]
        self._calls: Dict[Any, _Calls] = {}
        self._last: "_Calls | None" = None

    def forward(
        self,
        images: nd.NDArray,
        labels: nd.NDArray,
        train: bool = True,
        accumulate: bool = False,
        hook: Optional[PhaseHook] = None,
    ) -> Tuple[nd.NDArray, nd.NDArray]:
        """Queue a forward pass. Return the sum of losses (1,) and the scores (n, classes).

        The arguments are the same as for `GraphReplica.forward`. ``hook`` receives the collectives.
        """
        key = (images.shape, images.dtype, labels.shape, labels.dtype, accumulate)
        if key not in self._calls:
            self._calls[key] = self._bind(images, labels, accumulate)
        calls = self._last = self._calls[key]
        for copy in calls.images:
            copy.copy(images)
        for copy in calls.labels:
            copy.copy(labels)
        for graphs, bounds, collectives in calls.forward:
            for graph, bound in zip(graphs, bounds):
                graph.forward(bound, train)
            for call in collectives:
                _queue_collective(call, hook)
        loss, scores, *others = calls.outputs
        return (loss if train or not others else others[0]), scores

    def backward(self, scale: float = 1.0, hook: Optional[PhaseHook] = None) -> None:
        """Queue the backward pass of the last `forward`, for the loss times ``scale``."""
        assert self._last is not None, "call forward before backward"
        for heads in self._last.heads:
            heads.set_loss_scale(scale)
        for is_collective, call in self._last.backward:
            if is_collective:
                _queue_collective(call, hook)
            else:
                call()

    def traffic(self) -> MicrobatchTraffic:
        """Return the bytes that were sent between devices for the last microbatch."""
        assert self._last is not None, "call forward before backward"
        return self._last.traffic

    def _bind(self, images: nd.NDArray, labels: nd.NDArray, accumulate: bool) -> _Calls:
        """Bind all segments on all devices to inputs shaped like ``images`` and ``labels``.

        Return the calls to run.
        """
        segments = self.scoring_segments if len(labels.shape) == 1 else self.segments
        bounds: List[List[BoundGraph]] = []
        forward: List[Any] = []
        collectives: List[List[Any]] = []
        edge_inputs: List[Dict[str, nd.NDArray]] = [{} for _ in self._ctxs]
        for segment, graphs in enumerate(segments.graphs):
            inputs = {IMAGES: images, LABELS: labels}
            is_last = segment == len(segments.graphs) - 1
            bounds.append([])
            for graph, arrays, memory in zip(graphs, edge_inputs, self._gradients):
                # Two alternating memories suffice: backward of a segment reads gradients in one
                # memory, and writes the gradients for the previous segment into the other.
                gradients = memory.allocate_like({name: arrays[name] for name in graph.gradient_inputs}, segment % 2)
                bound = graph.bind(
                    _graph_inputs(graph, inputs),
                    accumulate,
                    bound_inputs=arrays,
                    gradient_arrays=gradients,
                    heads=is_last,
                )
                bounds[-1].append(bound)
            edges = segments.edges[segment] if segment < len(segments.edges) else []
            operators = [
                OPERATORS[edge.kind](self._schedule, [bound.outputs[i] for bound in bounds[-1]])
                for i, edge in enumerate(edges)
            ]
            collectives.append(operators)
            edge_inputs = [
                {edge.name: operator.results[device] for edge, operator in zip(edges, operators)}
                for device in range(len(self._ctxs))
            ]
            calls = [call for operator in operators for call in operator.forward()]
            forward.append((graphs, bounds[-1], calls))
        backward, heads = self._make_backward_calls(segments, bounds, collectives)
        all_bounds = [bound for of_segment in bounds for bound in of_segment]
        return _Calls(
            [bound.inputs[IMAGES] for bound in all_bounds if IMAGES in bound.inputs],
            [bound.inputs[LABELS] for bound in all_bounds if LABELS in bound.inputs],
            forward, backward, heads, bounds[-1][0].outputs, _microbatch_traffic(segments, bounds),
        )  # fmt: skip

    def _make_backward_calls(
        self, segments: "Segments", bounds: List[List[BoundGraph]], collectives: List[List[Any]]
    ) -> Tuple[List[Tuple[bool, Call]], List[HeadGradients]]:
        """Return the backward calls, and the head gradients of the losses.

        The calls run from the last segment to the first.
        """
        calls: List[Tuple[bool, Call]] = []
        losses: List[HeadGradients] = []
        for segment in range(len(bounds) - 1, -1, -1):
            for device, graph in enumerate(segments.graphs[segment]):
                bound = bounds[segment][device]
                if segment == len(bounds) - 1:
                    losses.append(bound.heads)
                else:
                    gradients = bounds[segment + 1][device].gradients
                    head_gradients = {
                        i: gradients[edge.name] for i, edge in enumerate(segments.edges[segment]) if edge.needs_gradient
                    }
                    bound = bound._replace(heads=HeadGradients(bound.outputs, (), head_gradients))
                if graph.needs_backward:
                    calls.append((False, partial(graph.backward, bound)))
            if segment:
                for edge, operator in zip(segments.edges[segment - 1], collectives[segment - 1]):
                    if edge.needs_gradient:
                        arrays = [bound.gradients[edge.name] for bound in bounds[segment]]
                        calls += [(True, call) for call in operator.backward(arrays)]
        return calls, losses


def _queue_collective(call: Call, hook: Optional[PhaseHook]) -> None:
    """Queue a collective: call ``call``, or pass ``call`` to ``hook``, which then calls it."""
    if hook is None:
        call()
    else:
        hook("allreduce", call)


class Segments:
    """The compiled graphs ``graphs[segment][device]``, and the ``edges`` between segments."""

    def __init__(
        self, layout: Layout, params: Sequence[Params], ctxs: Sequence[mx.Context], convert: Conversion
    ) -> None:
        self.edges: List[List[SegmentEdge]] = segment_edges(layout)
        by_device = [segment_graphs(layout, device) for device in range(len(ctxs))]
        segments = [[graph[segment] for graph in by_device] for segment in range(layout.segment_count)]
        self.graphs = [
            [
                CompiledGraph(
                    convert(graph), params[device], ctxs[device],
                    [0] if segment == layout.segment_count - 1 else [],
                    gradient_inputs(self.edges[segment - 1]) if segment else [],
                )
                for device, graph in enumerate(of_segment)
            ]
            for segment, of_segment in enumerate(segments)
        ]  # fmt: skip


def _microbatch_traffic(segments: Segments, bounds: Sequence[Sequence[BoundGraph]]) -> MicrobatchTraffic:
    """Return how many bytes are sent between devices for a microbatch's inputs and allreduces."""
    inputs = [array for segment in bounds for bound in segment[1:] for array in bound.arrays.values()]
    sums = [
        value
        for edges, (bound, *_) in zip(segments.edges, bounds)
        for value, edge in zip(bound.outputs, edges)
        if edge.kind == SUM or (edge.kind == COPY and edge.needs_gradient)
    ]
    return MicrobatchTraffic(sum(map(_array_bytes, inputs)), list(map(_array_bytes, sums)))


def _array_bytes(array: nd.NDArray) -> int:
    return array_bytes((array.shape, array.dtype))


def _graph_inputs(graph: CompiledGraph, inputs: Mapping[str, nd.NDArray]) -> Dict[str, nd.NDArray]:
    names = set(graph.graph.list_arguments())
    return {name: array for name, array in inputs.items() if name in names}
