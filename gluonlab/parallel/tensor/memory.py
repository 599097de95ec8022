"""Memory estimate of tensor parallelism, for each device of a replica of the network.

Every segment has its own graphs and activations. The gradients between segments are in two buffers,
which the segments use alternately. In addition, MXNet copies the head gradients.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Sequence, Set

from gluonlab.parallel.compiled_graph import ArraySpecs, array_bytes
from gluonlab.parallel.memory_estimate import MemoryEstimate, ShardSizes, UnboundGraph, input_specs, parameter_bytes
from gluonlab.parallel.strategy import StrategyPlan
from gluonlab.parallel.tensor.layout import gradient_inputs
from gluonlab.parallel.tensor.replica import Params, Segments


class _SegmentBinding(NamedTuple):
    """The shape with which all segments are bound, and whether gradients are added."""

    images: int
    columns: int
    accumulate: bool


class _Segment(NamedTuple):
    """A segment on a device.

    Attributes:
        graph: The segment's graph.
        inputs: Shapes and types of the images and labels that the segment reads.
        edge_inputs: Shapes and types of the values from the previous segment.
        bytes_per_binding: Bytes of each bound graph other than inputs and activations.
        slot: Number of the buffer for the gradients of ``edge_inputs``, 0 or 1.
        gradient_bytes: Bytes of the gradients of ``edge_inputs``.
    """

    graph: UnboundGraph
    inputs: ArraySpecs
    edge_inputs: ArraySpecs
    bytes_per_binding: int
    slot: int
    gradient_bytes: int


class TensorMemory:
    """Estimates the memory of a replica. Device i has the parameters ``params[i]``."""

    def __init__(
        self, segments: Segments, scoring: Segments, params: Sequence[Params], plan: StrategyPlan, columns: int = 0
    ) -> None:
        """Store the segments.

        ``segments`` are for training, with ``columns`` label columns. ``scoring``: the segments for
        evaluation, with labels (n,).
        """
        self._segments_by_columns = {columns: segments, 0: scoring}
        self._columns = columns
        self._params, self._plan = params, plan

    def estimate_memory(self, shards: ShardSizes) -> List[MemoryEstimate]:
        """Return a memory estimate for each device of the replica."""
        bound = self._segment_bindings(shards)
        return [self._estimate_device(device, bound) for device in range(len(self._params))]

    def _segment_bindings(self, shards: ShardSizes) -> Set[_SegmentBinding]:
        """Return the graphs that `TensorReplica` binds, one for each microbatch size."""
        kinds = (shards.train_sizes, self._columns, True), (shards.score_sizes, 0, False)
        return {
            _SegmentBinding(end - begin, columns, number > 0 and trains)
            for shares, columns, trains in kinds
            for share in filter(None, shares)
            for number, (begin, end) in enumerate(self._plan.microbatches.bounds(share))
        }

    def _estimate_device(self, device: int, bound: Set[_SegmentBinding]) -> MemoryEstimate:
        """Estimate the memory that a device needs if the graphs ``bound`` are bound."""
        plan = self._plan
        bound_bytes = inputs = activations = 0
        gradients: Dict[int, int] = {}
        for images, columns, _ in bound:
            for segment in self._iterate_segments(device, images, columns):
                bound_bytes += segment.bytes_per_binding
                inputs += sum(map(array_bytes, segment.inputs.values()))
                gradients[segment.slot] = max(segment.gradient_bytes, gradients.get(segment.slot, 0))
        # The graphs of a segment share one memory, as large as the largest graph needs.
        largest = {columns: images for images, columns, _ in sorted(bound)}
        for columns, images in largest.items():
            for segment in self._iterate_segments(device, images, columns):
                activations += segment.graph.activation_bytes({**segment.inputs, **segment.edge_inputs})
        params = self._params[device].values()
        copies = len(plan.parallelism.copies)
        fixed = parameter_bytes(params, plan.make_optimizer(), plan.kvstore, copies)
        return MemoryEstimate(*fixed, bound_bytes + activations + sum(gradients.values()), inputs)

    def _iterate_segments(self, device: int, images: int, columns: int) -> Iterator[_Segment]:
        """Yield the segments on a device, for given numbers of images and label columns."""
        segments = self._segments_by_columns[columns]
        edge_inputs: ArraySpecs = {}
        split = self._plan.parallelism
        network_inputs = input_specs(images, split.image_shape, columns, split.image_dtype)
        for number, graphs in enumerate(segments.graphs):
            symbol = graphs[device].graph
            gradient_names = gradient_inputs(segments.edges[number - 1]) if number else []
            graph = UnboundGraph(symbol, self._params[device], gradient_names)
            names = set(symbol.list_arguments())
            inputs = {name: spec for name, spec in network_inputs.items() if name in names}
            outputs = graph.output_specs({**inputs, **edge_inputs})
            edges = segments.edges[number] if number < len(segments.edges) else []
            heads = [spec for edge, spec in zip(edges, outputs) if not edge.needs_gradient]
            per_binding = sum(map(array_bytes, heads if edges else outputs))
            per_binding += graph.needs_backward * sum(map(array_bytes, outputs))
            gradients = sum(array_bytes(edge_inputs[name]) for name in gradient_names)
            yield _Segment(graph, inputs, edge_inputs, per_binding, number % 2, gradients)
            edge_inputs = {edge.name: spec for edge, spec in zip(edges, outputs)}
