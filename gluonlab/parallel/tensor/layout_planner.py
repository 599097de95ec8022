"""Plans tensor parallelism: decides how each operator's channels are split over devices."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import mxnet as mx

from gluonlab.collectives.chunk_layout import split_evenly
from gluonlab.errors import ModelError
from gluonlab.models.symbol_graph import Node, parse_graph
from gluonlab.parallel.tensor.layout import (
    BOTH,
    COLUMN,
    COPY,
    NODE,
    PAD,
    ROW,
    SLICE,
    SUM,
    Bounds,
    Layout,
    Operation,
    Shape,
    Slice,
    SplitValue,
)

# Operators without parameters that process each channel separately.
CHANNELWISE = {
    "Activation", "BlockGrad", "Cast", "Dropout", "Flatten", "Pooling", "_copy", "_div_scalar",
    "_maximum_scalar", "_minus_scalar", "_mul_scalar", "_plus_scalar", "_power_scalar", "abs",
    "amp_cast", "clip", "erf", "exp", "flatten", "hard_sigmoid", "identity", "log", "negative",
    "relu", "sigmoid", "softsign", "sqrt", "square", "tanh",
}  # fmt: skip
# Modes of LeakyReLU that have neither weights nor random numbers.
CHANNELWISE_LEAKY = {"leaky", "elu", "selu", "gelu"}
SIZE_ATTRIBUTES = {"Convolution": "num_filter", "FullyConnected": "num_hidden"}
ELEMENTWISE = {"elemwise_add", "elemwise_sub", "elemwise_mul", "_plus", "_Plus", "broadcast_add",
            "add_n", "broadcast_mul", "broadcast_sub"}  # fmt: skip


def plan_layout(
    graph: mx.sym.Symbol, inputs: Dict[str, Shape], trained: Set[str], device_count: int, mode: str = BOTH
) -> Layout:
    """Plan the layout of a graph over ``device_count`` devices.

    Args:
        graph: Graph that computes losses and scores from images and labels.
        inputs: Shapes of images and labels, for any number of images.
        trained: Names of the parameters with gradients.
        device_count: Number of devices of a replica.
        mode: COLUMN or ROW for all layers, or BOTH to alternate between them.

    Raises:
        ModelError: No layer can be split, or an operator would need the same random numbers on all
            devices.
    """
    planner = _Planner(graph, inputs, trained, device_count, mode)
    for index in range(len(planner.nodes)):
        planner.plan_node(index)
    if not planner.slices:
        raise ModelError(
            f"--strategy tensor: no layer has enough channels for {device_count} devices: choose "
            "another model, or another --strategy"
        )
    graph_info, operations = planner.graph_info, planner.operations
    heads = [operations.gather(planner.values[index, output]) for index, output, _ in graph_info.heads]
    planned = operations.operations
    segment_count = 1 + max(operation.segment + (operation.kind in (SUM, COPY)) for operation in planned)
    return Layout(planned, heads, planner.slices, segment_count, planner.layers, graph_info.attrs)


class _Planner:
    """Decides how to split each node of a graph, one node after the other."""

    def __init__(
        self, graph: mx.sym.Symbol, inputs: Dict[str, Shape], trained: Set[str], device_count: int, mode: str
    ) -> None:
        self.graph_info = GraphInfo(graph, inputs)
        self.nodes = self.graph_info.nodes
        self._trained, self._device_count, self._mode = trained, device_count, mode
        self.operations = OperationList(self.nodes, trained)
        self.values: Dict[Tuple[int, int], SplitValue] = {}
        self.slices: Dict[str, Slice] = {}
        self.layers: Dict[str, str] = {}

    def plan_node(self, index: int) -> None:
        """Decide how to split one node."""
        node = self.nodes[index]
        op = node["op"]
        if op == "null":
            return
        if op in SIZE_ATTRIBUTES and self.graph_info.is_splittable_layer(node):
            value = self._split_layer(index, node)
        elif op == "BatchNorm" and node.get("attrs", {}).get("axis", "1") == "1":
            value = self._split_batch_norm(index, node)
        elif op == "Dropout":
            value = self._split_dropout(index, node)
        elif self.graph_info.is_channelwise(node):
            value = self._split_channelwise(index, node)
        elif op in ELEMENTWISE:
            value = self._split_elementwise(index, node)
        else:
            value = self._replicate_node(index, node)
        outputs = self.graph_info.output_count(index)
        if outputs > 1:
            self.operations.set_output_count(value.operation, outputs)
        for output in range(outputs):
            self.values[index, output] = value._replace(output=output)

    # Layers with weights

    def _split_layer(self, index: int, node: Node) -> SplitValue:
        """Split a convolution or dense layer by groups, rows or columns, or replicate it."""
        data, width = self._input_as_value(node["inputs"][0]), self.graph_info.channel_count(*node["inputs"][0][:2])
        if node["op"] == "FullyConnected":
            data, width = self._flatten_dense_input(node, data)
        groups = int(node.get("attrs", {}).get("num_group", 1))
        outputs = self.graph_info.channel_count(index, 0)
        if groups > 1:
            bounds = self._split_bounds(groups, outputs)
            if bounds is None:
                return self._replicate_node(index, node)
            return self._split_groups(index, node, data, groups, width, bounds)
        column = self._split_bounds(outputs, outputs)
        row = self._split_bounds(width, width) if data.bounds is None else _scale_bounds(data.bounds, width)
        by_row = self._mode == ROW or (
            self._mode == BOTH and (data.bounds is not None or index in self.graph_info.last_layers or column is None)
        )
        if by_row and row is not None:
            return self._split_rows(index, node, data, row)
        if column is None or self._mode == ROW:
            return self._replicate_node(index, node)
        return self._split_columns(index, node, data, column)

    def _flatten_dense_input(self, node: Node, data: SplitValue) -> Tuple[SplitValue, int]:
        """Flatten the images that a dense layer reads. Return the vectors and their length.

        (Normally, MXNet's dense layer flattens the images itself.)
        """
        index, output = node["inputs"][0][:2]
        shape = self.graph_info.shapes[index, output]
        width = math.prod(shape[1:])
        if len(shape) == 2:
            return data, width
        bounds = None if data.bounds is None else _scale_bounds(data.bounds, width)
        flatten = {"op": "Flatten", "name": f"{node['name']}_flattened", "attrs": {}}
        return self.operations.add_node(flatten, (data,), bounds, complete=True), width

    def _split_columns(self, index: int, node: Node, data: SplitValue, bounds: Bounds) -> SplitValue:
        """Split a layer by outputs: every device computes some outputs from the entire input."""
        copied = self.operations.add_copy(self.operations.gather(data))
        self._record_slices(node, bounds, bias=True)
        self.layers[node["name"]] = COLUMN
        return self.operations.add_node(node, (copied,), bounds, _size_attributes(node, bounds))

    def _split_groups(
        self, index: int, node: Node, data: SplitValue, groups: int, width: int, bounds: Bounds
    ) -> SplitValue:
        """Split a convolution with groups: every device computes some of the groups."""
        input_bounds = self._split_bounds(groups, width)
        assert input_bounds is not None
        self._record_slices(node, bounds, bias=True)
        self.layers[node["name"]] = "local"
        outputs = bounds[-1][1]
        attrs = tuple(
            {**size, "num_group": str((end - begin) * groups // outputs)}
            for size, (begin, end) in zip(_size_attributes(node, bounds), bounds)
        )
        return self.operations.add_node(node, (self.operations.scatter(data, input_bounds),), bounds, attrs)

    def _split_rows(self, index: int, node: Node, data: SplitValue, bounds: Bounds) -> SplitValue:
        """Split a layer by inputs: every device computes partial sums of all outputs.

        An allreduce adds the partial sums. The bias is added once, after the allreduce.
        """
        data = data if data.bounds is not None else self.operations.scatter(data, bounds)
        weight, bias = self.graph_info.parameter_names(node)
        self.slices[weight] = Slice(1, bounds)
        self.layers[node["name"]] = ROW
        without_bias = {**node, "attrs": {**node["attrs"], "no_bias": "True"}}
        summands = self.operations.add(NODE, data.segment, (data, weight), without_bias, needs_gradient=True)
        total = self.operations.add_sum(summands)
        if bias is None:
            return total
        axes = len(self.graph_info.shapes[index, 0])
        shape = (1, -1) + (1,) * (axes - 2)
        name = node["name"]
        reshape = {"op": "reshape", "name": f"{name}_bias_row", "attrs": {"shape": str(shape)}}
        add = {"op": "broadcast_add", "name": f"{name}_with_bias", "attrs": {}}
        bias_row = self.operations.add(NODE, total.segment, (bias,), reshape, needs_gradient=bias in self._trained)
        return self.operations.add(NODE, total.segment, (total, bias_row), add, needs_gradient=True)

    # Operators without weights, or with one weight for each channel

    def _split_batch_norm(self, index: int, node: Node) -> SplitValue:
        """Split a BatchNorm, if its input is split and no other layer uses its parameters."""
        data = self._input_as_value(node["inputs"][0])
        names = [self.nodes[entry[0]]["name"] for entry in node["inputs"][1:]]
        has_own_parameters = all(
            self.nodes[entry[0]]["op"] == "null" and self.graph_info.uses[entry[0]] == 1 for entry in node["inputs"][1:]
        )
        if data.bounds is None or not has_own_parameters:
            return self._replicate_node(index, node)
        for name in names:
            self.slices[name] = Slice(0, data.bounds)
        return self.operations.add_node(node, (data,), data.bounds)

    def _split_dropout(self, index: int, node: Node) -> SplitValue:
        """Split a Dropout by channels. If the input is whole, split it first.

        If the input stayed whole, all devices would need the same random numbers.
        """
        data, attrs = self._input_as_value(node["inputs"][0]), node.get("attrs", {})
        if float(attrs.get("p", 0.5)) == 0:
            return self._split_channelwise(index, node)
        if "1" in re.findall(r"\d+", attrs.get("axes", "")):
            raise ModelError(
                f"--strategy tensor: the Dropout {node['name']} drops all channels together, so all "
                "devices would need the same random numbers: choose another --strategy"
            )
        if data.bounds is None:
            width = self.graph_info.channel_count(index, 0)
            bounds = self._split_bounds(width, width)
            if bounds is None:
                raise ModelError(
                    f"--strategy tensor: the {width} channels of the Dropout {node['name']} cannot be divided among "
                    f"{self._device_count} devices: choose a smaller --tensor-parallel, or another model"
                )
            data = self.operations.scatter(data, bounds)
        return self.operations.add_node(node, (data,), data.bounds)

    def _split_channelwise(self, index: int, node: Node) -> SplitValue:
        """Plan an operator that treats channels separately: its output is split like its input."""
        data = self._input_as_value(node["inputs"][0])
        bounds = data.bounds
        if bounds is not None:
            bounds = _scale_bounds(bounds, self.graph_info.channel_count(index, 0))
            if bounds is None:
                return self._replicate_node(index, node)
        return self.operations.add_node(node, (data,), bounds)

    def _split_elementwise(self, index: int, node: Node) -> SplitValue:
        """Split an operator such as + if its inputs have equal shapes and at least one is split."""
        values = [self._input_value(entry) for entry in node["inputs"]]
        all_bounds = [value.bounds for value in values if isinstance(value, SplitValue) and value.bounds]
        same = len({self.graph_info.shapes[entry[0], entry[1]] for entry in node["inputs"]}) == 1
        if not all_bounds or not same or not all(isinstance(value, SplitValue) for value in values):
            return self._replicate_node(index, node)
        return self.operations.add_node(
            node, tuple(self.operations.scatter(value, all_bounds[0]) for value in values), all_bounds[0]
        )

    def _replicate_node(self, index: int, node: Node) -> SplitValue:
        """Run a node on whole values, on every device."""
        _check_not_random(node)
        inputs = tuple(
            self.operations.gather(value) if isinstance(value, SplitValue) else value
            for value in map(self._input_value, node["inputs"])
        )
        for entry in node["inputs"]:
            source = self.nodes[entry[0]]
            if source["op"] == "null" and source["name"] in self._trained and self.graph_info.uses[entry[0]] > 1:
                raise ModelError(
                    f"--strategy tensor: several layers share the parameter {source['name']}: choose another --strategy"
                )
        return self.operations.add_node({**node}, inputs, None, complete=True)

    # The graph

    def _input_value(self, entry: Sequence[int]) -> Any:
        """Return a node's input: the name of a variable, or the `SplitValue` of another node."""
        index, output = entry[:2]
        if self.nodes[index]["op"] == "null":
            return self.nodes[index]["name"]
        return self.values[index, output]

    def _input_as_value(self, entry: Sequence[int]) -> SplitValue:
        """Return a node's input as a `SplitValue`. For a variable, add an identity operation."""
        value = self._input_value(entry)
        if isinstance(value, SplitValue):
            return value
        copy = {"op": "identity", "name": f"{value}_taken", "attrs": {}}
        return self.operations.add(NODE, 0, (value,), copy, needs_gradient=value in self._trained)

    def _record_slices(self, node: Node, bounds: Bounds, bias: bool) -> None:
        """Record that a layer's weight and bias are cut at ``bounds`` along the output channels."""
        weight, own_bias = self.graph_info.parameter_names(node)
        self.slices[weight] = Slice(0, bounds)
        if own_bias is not None:
            self.slices[own_bias] = Slice(0, bounds)

    def _split_bounds(self, units: int, channels: int) -> Optional[Bounds]:
        """Divide ``channels`` between the devices, without cutting any of the equal ``units``.

        For example, the units of a grouped convolution are its groups. Returns None if there are
        fewer units than devices.
        """
        if units < self._device_count:
            return None
        return _scale_bounds(tuple(split_evenly(units, self._device_count)), channels)


def _scale_bounds(bounds: Bounds, channels: int) -> Optional[Bounds]:
    """Scale the devices' bounds to ``channels``.

    Return None if ``channels`` is not a multiple of the current number of channels.

    For example, Flatten turns each channel into several channels.
    """
    times, rest = divmod(channels, bounds[-1][1])
    return None if rest else tuple((begin * times, end * times) for begin, end in bounds)


def _size_attributes(node: Node, bounds: Bounds) -> Tuple[Dict[str, str], ...]:
    return tuple({SIZE_ATTRIBUTES[node["op"]]: str(end - begin)} for begin, end in bounds)


def _check_not_random(node: Node) -> None:
    """Raise ModelError if the node is an operator that draws random numbers."""
    attrs = node.get("attrs", {})
    if "random" in node["op"] or "sample" in node["op"] or attrs.get("act_type") == "rrelu":
        raise ModelError(
            f"--strategy tensor: {node['name']} ({node['op']}) draws random numbers, which would have to be "
            "the same on all devices: choose another --strategy"
        )


class GraphInfo:
    """Analysis of a graph: its nodes, shapes by (node, output), and how often each node is used.

    ``inputs``: shapes of images and labels. ``last_layers``: layers whose results no other layer
    uses.
    """

    def __init__(self, graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> None:
        json_graph = parse_graph(graph)
        self.nodes: List[Node] = json_graph["nodes"]
        self.heads, self.attrs = json_graph["heads"], json_graph["attrs"]
        self.shapes = _infer_shapes(graph, inputs)
        self.uses = _count_uses(self.nodes)
        self.last_layers = _last_layers(self.nodes)

    def is_splittable_layer(self, node: Node) -> bool:
        """Return True if a layer can be split.

        The layer's channels must be axis 1, and the layer must not share parameters with other
        layers.
        """
        attrs = node.get("attrs", {})
        parameters = [entry[0] for entry in node["inputs"][1:]]
        return (
            all(self.nodes[i]["op"] == "null" and self.uses[i] == 1 for i in parameters)
            and attrs.get("layout", "NCHW") in ("NCW", "NCHW", "NCDHW", "None")
            and attrs.get("flatten", "True") == "True"
        )

    def is_channelwise(self, node: Node) -> bool:
        """Return True for an operator without parameters that processes each channel separately."""
        attrs = node.get("attrs", {})
        if node["op"] == "LeakyReLU":
            return attrs.get("act_type", "leaky") in CHANNELWISE_LEAKY
        return node["op"] in CHANNELWISE and len(node["inputs"]) == 1

    def parameter_names(self, node: Node) -> Tuple[str, Optional[str]]:
        """Return the names of a layer's weight, and of its bias if it has one."""
        names = [self.nodes[entry[0]]["name"] for entry in node["inputs"][1:]]
        return names[0], names[1] if len(names) > 1 else None

    def channel_count(self, index: int, output: int) -> int:
        """Return the size of axis 1, or 0 if there is no axis 1."""
        shape = self.shapes[index, output]
        return shape[1] if len(shape) > 1 else 0

    def output_count(self, index: int) -> int:
        """Return the number of outputs of a node."""
        return max(output for source, output in self.shapes if source == index) + 1


def _count_uses(nodes: Sequence[Node]) -> List[int]:
    """Return, for each node, how many inputs of other nodes read its outputs."""
    uses = [0] * len(nodes)
    for node in nodes:
        for entry in node["inputs"]:
            uses[entry[0]] += 1
    return uses


def _last_layers(nodes: Sequence[Node]) -> Set[int]:
    """Return the indices of the convolutions and dense layers that no other such layer follows."""
    leads_to_layer = [False] * len(nodes)  # whether a layer comes after the node
    for index in range(len(nodes) - 1, -1, -1):
        for entry in nodes[index]["inputs"]:
            leads_to_layer[entry[0]] |= leads_to_layer[index] or nodes[index]["op"] in SIZE_ATTRIBUTES
    return {i for i, node in enumerate(nodes) if node["op"] in SIZE_ATTRIBUTES and not leads_to_layer[i]}


def _infer_shapes(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> Dict[Tuple[int, int], Shape]:
    """Return the shape of every output of every node."""
    internals = graph.get_internals()
    _, shapes, _ = internals.infer_shape(**inputs)
    shape_by_output: Dict[Tuple[int, int], Shape] = {}
    heads = parse_graph(internals)["heads"]
    for (index, output, *_), shape in zip(heads, shapes):
        shape_by_output[index, output] = tuple(shape)
    return shape_by_output


class OperationList:
    """The operations planned so far. ``trained``: names of the parameters with gradients."""

    def __init__(self, nodes: Sequence[Node], trained: Set[str]) -> None:
        self._nodes, self._trained = nodes, trained
        self.operations: List[Operation] = []
        self._known: Dict[Any, SplitValue] = {}  # copies, slices and sums that several nodes use

    def add_node(
        self,
        node: Node,
        inputs: Tuple[Any, ...],
        bounds: Optional[Bounds],
        attrs: Tuple[Dict[str, str], ...] = (),
        complete: bool = False,
    ) -> SplitValue:
        """Add the operator of ``node``, with the inputs ``inputs``.

        The parameters of ``node`` are added to the inputs, unless the inputs are ``complete``.
        """
        if not complete:
            params = node["inputs"][len(inputs) :]
            inputs += tuple(self._nodes[entry[0]]["name"] for entry in params)
        segment = max((value.segment for value in inputs if isinstance(value, SplitValue)), default=0)
        needs_gradient = any(
            value.needs_gradient if isinstance(value, SplitValue) else value in self._trained for value in inputs
        )
        return self.add(NODE, segment, inputs, node, attrs, bounds, needs_gradient=needs_gradient)

    def add_copy(self, value: SplitValue) -> SplitValue:
        """Add a copy of a whole value. The copy's backward sums the gradients of all devices."""
        if not value.needs_gradient:
            return value
        if ("copy", value) not in self._known:
            copy = self.add(COPY, value.segment, (value,), needs_gradient=True)
            self._known["copy", value] = copy._replace(segment=value.segment + 1)
        return self._known["copy", value]

    def add_sum(self, value: SplitValue) -> SplitValue:
        """Add an allreduce, after which all devices have the sum of the devices' values."""
        total = self.add(SUM, value.segment, (value,), needs_gradient=value.needs_gradient)
        return total._replace(segment=value.segment + 1)

    def scatter(self, value: SplitValue, bounds: Bounds) -> SplitValue:
        """Split ``value`` at ``bounds``. A value that is split differently is gathered first."""
        if value.bounds == bounds:
            return value
        if ("parts", value, bounds) not in self._known:
            copied = self.add_copy(self.gather(value))
            self._known["parts", value, bounds] = self.add(
                SLICE, copied.segment, (copied,), bounds=bounds, needs_gradient=value.needs_gradient
            )
        return self._known["parts", value, bounds]

    def add(
        self,
        kind: str,
        segment: int,
        inputs: Tuple[Any, ...],
        node: Optional[Node] = None,
        attrs: Tuple[Dict[str, str], ...] = (),
        bounds: Optional[Bounds] = None,
        channels: int = 0,
        needs_gradient: Optional[bool] = None,
    ) -> SplitValue:
        """Add an operation, and return its first output."""
        self.operations.append(Operation(kind, segment, inputs, node, attrs, bounds, channels))
        if needs_gradient is None:
            needs_gradient = any(value.needs_gradient for value in inputs if isinstance(value, SplitValue))
        return SplitValue(len(self.operations) - 1, 0, segment, bounds, needs_gradient)

    def gather(self, value: SplitValue) -> SplitValue:
        """Join the channels of all devices, and return the whole value.

        An allreduce sums the devices' channels, each padded with zeros for the other channels.
        """
        if value.bounds is None:
            return value
        key = ("whole", value)
        if key not in self._known:
            width = value.bounds[-1][1]
            padded = self.add(PAD, value.segment, (value,), bounds=value.bounds, channels=width)
            self._known[key] = self.add_sum(padded._replace(bounds=None))
        return self._known[key]

    def set_output_count(self, operation: int, outputs: int) -> None:
        """Set the number of outputs of an operation."""
        self.operations[operation] = self.operations[operation]._replace(outputs=outputs)
