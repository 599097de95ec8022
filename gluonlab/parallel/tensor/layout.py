"""Layout of tensor parallelism: the channels of each device, and the collectives between graphs.

A value is *whole* if all devices have the same value, or *split* if each device has some of the
channels (axis 1). A layer can be split in one of these modes:

======  =========================  =============================  ====================
mode    input                      weight on each device          output
======  =========================  =============================  ====================
column  whole                      rows of some outputs           split
row     split                      columns of some inputs         summands (allreduce)
local   split, by groups           rows of some groups            split
======  =========================  =============================  ====================

Operators that process each channel separately (ReLU, pooling, BatchNorm, Dropout) run on split
values. So if column and row layers alternate, each pair of layers needs only one allreduce (Shoeybi
et al., "Megatron-LM", 2019, section 3). All other operators run on whole values, on every device.

A *segment* is the part of the network between two collectives. Each device has its own graph for
each segment (`segment_graphs`). Segment 0 ends with the first collectives, whose results are inputs
of segment 1, and so on. If a later segment uses a value, the value is passed through all segments
in between.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx

from gluonlab.models.symbol_graph import Entry, Node, make_node, to_symbol

BOTH, COLUMN, ROW = TENSOR_MODES = ("both", "column", "row")
NODE, SLICE, PAD, COPY, SUM = "node", "slice", "pad", "copy", "sum"

Bounds = Tuple[Tuple[int, int], ...]  # the (begin, end) of each device's channels
Shape = Tuple[int, ...]


class SplitValue(NamedTuple):
    """A result of an `Operation`.

    Attributes:
        operation: Index of the operation.
        output: Index of the value among the outputs of the operation.
        segment: Number of the segment that computes the value.
        bounds: The value's channels on each device; None for a whole value.
        needs_gradient: Whether backward computes the value's gradient.
    """

    operation: int
    output: int
    segment: int
    bounds: Optional[Bounds]
    needs_gradient: bool


class Operation(NamedTuple):
    """An operation that all devices run, on the same or on different channels.

    Attributes:
        kind: NODE, SLICE, PAD, COPY or SUM.
        segment: Number of the segment.
        inputs: `SplitValue` objects, or names of parameters, images and labels.
        node: For NODE, the operator.
        attrs: For NODE, each device's values of the attributes that differ between devices.
        bounds: Channels of each device in the result of a NODE or SLICE, or in the input of a PAD.
        channels: For PAD, the number of channels of the result.
        outputs: Number of outputs.
    """

    kind: str
    segment: int
    inputs: Tuple[Any, ...]
    node: Optional[Node] = None
    attrs: Tuple[Dict[str, str], ...] = ()
    bounds: Optional[Bounds] = None
    channels: int = 0
    outputs: int = 1


class Slice(NamedTuple):
    """The shard of a parameter on each device: ``bounds`` along ``axis``."""

    axis: int
    bounds: Bounds


class Layout(NamedTuple):
    """A graph that is split over several devices.

    ``slices``: the sharded parameters. ``heads``: the outputs, which are all whole.
    """

    operations: List[Operation]
    heads: List[SplitValue]
    slices: Dict[str, Slice]
    segment_count: int
    layers: Dict[str, str]  # name of a split layer -> its mode: column, row or local
    attrs: Dict[str, Any]  # attributes of the graph

    @property
    def allreduce_count(self) -> int:
        """Number of allreduces in a forward pass."""
        return sum(operation.kind == SUM for operation in self.operations)


PASS = "pass"
Key = Tuple[int, int]  # (operation, output)


class SegmentEdge(NamedTuple):
    """A value that is passed from a segment to the next segment.

    ``source``: key of the value. ``result``: the key of the result in the next segment, after the
    collective ``kind`` (SUM or COPY, or PASS for none). ``needs_gradient``: whether backward passes
    the value's gradient back.
    """

    kind: str
    source: Key
    result: Key
    needs_gradient: bool

    @property
    def name(self) -> str:
        """Name of the input of the next segment's graph."""
        return "value_{}_{}".format(*self.result)


def segment_edges(layout: Layout) -> List[List[SegmentEdge]]:
    """Return, for each segment except the last, the values that are passed to the next segment."""
    needs_gradient, first, last = _value_lifetimes(layout)
    edges: List[List[SegmentEdge]] = []
    for segment in range(layout.segment_count - 1):
        collectives = [
            SegmentEdge(operation.kind, _key(operation.inputs[0]), (number, 0), operation.inputs[0].needs_gradient)
            for number, operation in enumerate(layout.operations)
            if operation.kind in (SUM, COPY) and operation.segment == segment
        ]
        passed = [
            SegmentEdge(PASS, key, key, needs_gradient[key])
            for key in sorted(first)
            if first[key] <= segment < last.get(key, -1)
        ]
        edges.append(collectives + passed)
    return edges


def _key(value: SplitValue) -> Key:
    return value.operation, value.output


def _value_lifetimes(layout: Layout) -> "Tuple[Dict[Key, bool], Dict[Key, int], Dict[Key, int]]":
    """Return, for each value, its first and last segment, and whether it needs a gradient."""
    needs_gradient: Dict[Key, bool] = {}
    first: Dict[Key, int] = {}
    last: Dict[Key, int] = {}
    uses = [(value, operation.segment) for operation in layout.operations for value in operation.inputs]
    uses += [(head, layout.segment_count - 1) for head in layout.heads]
    for value, segment in uses:
        if isinstance(value, SplitValue):
            key = _key(value)
            needs_gradient[key], first[key] = value.needs_gradient, value.segment
            last[key] = max(segment, last.get(key, -1))
    return needs_gradient, first, last


def segment_graphs(layout: Layout, device: int) -> List[mx.sym.Symbol]:
    """Return the graph of each segment on one device.

    The outputs of a graph are the values of the edges to the next segment, in order. The outputs of
    the last graph are the layout's heads.
    """
    edges = segment_edges(layout)
    graphs = []
    for segment in range(layout.segment_count):
        builder = _SegmentBuilder(device)
        for edge in edges[segment - 1] if segment else ():
            builder.add_input(edge)
        for number, operation in enumerate(layout.operations):
            if operation.segment == segment:
                builder.add_operation(number, operation)
        is_last = segment == layout.segment_count - 1
        sources = map(_key, layout.heads) if is_last else (edge.source for edge in edges[segment])
        heads = [builder.output_entry(source, separate=not is_last) for source in sources]
        graphs.append(to_symbol(builder.nodes, heads, layout.attrs))
    return graphs


def unsegmented_graph(layout: Layout, device: int) -> mx.sym.Symbol:
    """Return all segments up to the scores as one graph without collectives.

    The graph has the right shapes but computes wrong values, so it is only used to infer shapes.
    """
    builder = _SegmentBuilder(device)
    for number, operation in enumerate(layout.operations):
        if operation.kind in (SUM, COPY):
            builder.add_alias(number, _key(operation.inputs[0]))
        else:
            builder.add_operation(number, operation)
    scores = builder.output_entry(_key(layout.heads[1]), separate=False)
    return to_symbol(builder.nodes, [scores], layout.attrs)


class _SegmentBuilder:
    """Builder of the graph of one segment on one device."""

    def __init__(self, device: int) -> None:
        self._device = device
        self.nodes: List[Node] = []
        self._entries: Dict[Key, Entry] = {}
        self._variables: Dict[str, Entry] = {}

    def add_input(self, edge: SegmentEdge) -> None:
        """Add a value of the previous segment."""
        self._entries[edge.result] = self._get_variable(edge.name)

    def add_alias(self, number: int, source: Key) -> None:
        """Make the value ``source`` the result of operation ``number``."""
        self._entries[number, 0] = self._entries[source]

    def add_operation(self, number: int, operation: Operation) -> None:
        """Append the nodes of an operation of this segment."""
        inputs = [self._entry(source) for source in operation.inputs]
        if operation.kind == NODE:
            assert operation.node is not None
            attrs = dict(operation.node.get("attrs", {}))
            attrs.update(operation.attrs[self._device] if operation.attrs else {})
            entry = self._append({**operation.node, "inputs": inputs, "attrs": attrs})
        elif operation.kind == SLICE:
            assert operation.bounds is not None
            begin, end = operation.bounds[self._device]
            entry = self._slice(number, inputs[0], begin, end)
        elif operation.kind == PAD:
            entry = self._pad(number, operation, inputs[0])
        else:
            return
        for output in range(operation.outputs):
            self._entries[number, output] = [entry[0], output, 0]

    def output_entry(self, key: Key, separate: bool) -> Entry:
        """Return the graph entry that outputs the value ``key``.

        ``separate``: whether to return a new copy, so that no two outputs share an array.
        """
        entry = self._entries[key]
        if separate or self.nodes[entry[0]]["op"] == "null":
            name = "gives_{}_{}_{}".format(*key, len(self.nodes))
            return self._append(make_node("_copy", name, [entry]))
        return entry

    def _entry(self, source: "SplitValue | str") -> Entry:
        return self._get_variable(source) if isinstance(source, str) else self._entries[_key(source)]

    def _get_variable(self, name: str) -> Entry:
        if name not in self._variables:
            self._variables[name] = self._append({"op": "null", "name": name, "inputs": []})
        return self._variables[name]

    def _slice(self, number: int, entry: Entry, begin: int, end: int) -> Entry:
        name = f"slice_{number}_{begin}_{len(self.nodes)}"
        return self._append(make_node("slice_axis", name, [entry], axis=1, begin=begin, end=end))

    def _pad(self, number: int, operation: Operation, entry: Entry) -> Entry:
        """Concatenate the device's channels with zeros for the other devices' channels."""
        assert operation.bounds is not None
        begin, end = operation.bounds[self._device]
        width = end - begin
        before = self._append_zeros(number, entry, width, begin)
        after = self._append_zeros(number, entry, width, operation.channels - end)
        parts = [*before, entry, *after]
        if len(parts) == 1:
            return entry
        name = f"pad_{number}"
        return self._append(make_node("Concat", name, parts, num_args=len(parts), dim=1))

    def _append_zeros(self, number: int, like: Entry, width: int, channels: int) -> List[Entry]:
        """Append nodes for zeros with ``channels`` channels in total, and return their entries.

        ``like`` is an array with ``width`` channels. The zeros have the same sizes in all other
        dimensions.
        """
        zeros = []
        for begin in range(0, channels, width):
            part = self._slice(number, like, 0, min(width, channels - begin))
            name = f"zeros_{number}_{len(self.nodes)}"
            zeros.append(self._append(make_node("zeros_like", name, [part])))
        return zeros

    def _append(self, node: Node) -> Entry:
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0, 0]


def gradient_inputs(edges: Sequence[SegmentEdge]) -> List[str]:
    """Return the names of the next segment's inputs whose gradients are passed back."""
    return [edge.name for edge in edges if edge.needs_gradient]
