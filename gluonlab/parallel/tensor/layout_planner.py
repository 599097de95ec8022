"""Decides for each operator of a graph how its channels are split: makes a `Layout`."""

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
    Item,
    Layout,
    Shape,
    Slice,
    Value,
)

BY_CHANNEL = {
    "Activation", "BlockGrad", "Cast", "Dropout", "Flatten", "Pooling", "_copy", "_div_scalar",
    "_maximum_scalar", "_minus_scalar", "_mul_scalar", "_plus_scalar", "_power_scalar", "abs",
    "amp_cast", "clip", "erf", "exp", "flatten", "hard_sigmoid", "identity", "log", "negative",
    "relu", "sigmoid", "softsign", "sqrt", "square", "tanh",
}  # fmt: skip
PLAIN_LEAKY = {"leaky", "elu", "selu", "gelu"}  # of LeakyReLU: neither weights nor random numbers
LAYERS = {"Convolution": "num_filter", "FullyConnected": "num_hidden"}
TOGETHER = {"elemwise_add", "elemwise_sub", "elemwise_mul", "_plus", "_Plus", "broadcast_add",
            "add_n", "broadcast_mul", "broadcast_sub"}  # fmt: skip


def split(
    graph: mx.sym.Symbol,
    inputs: Dict[str, Shape],
    trained: Set[str],
    ways: int,
    channels: str = BOTH,
) -> Layout:
    """Split a graph over ``ways`` devices.

    ``inputs``: shapes from which all others follow, of a batch of any size. ``trained``: parameters
    with gradients. ``channels``: BOTH ways of splitting in turns, or one of them for all layers.
    Raises ModelError for a graph in which nothing can be split, or that draws random numbers where
    all devices need the same.
    """
    planner = _Planner(graph, inputs, trained, ways, channels)
    for place in range(len(planner.nodes)):
        planner.take(place)
    if not planner.slices:
        raise ModelError(
            f"--split channels: no layer has channels for {ways} devices: "
            "choose another network, or another --split"
        )
    facts, items = planner.facts, planner.items
    heads = [items.whole(planner.values[place, output]) for place, output, _ in facts.heads]
    levels = 1 + max(item.level + (item.kind in (SUM, COPY)) for item in items.made)
    return Layout(items.made, heads, planner.slices, levels, planner.layers, facts.attrs)


class _Planner:
    """Goes through the nodes of a graph in order."""

    def __init__(
        self,
        graph: mx.sym.Symbol,
        inputs: Dict[str, Shape],
        trained: Set[str],
        ways: int,
        channels: str,
    ) -> None:
        self.facts = GraphInfo(graph, inputs)
        self.nodes = self.facts.nodes
        self._trained, self._ways, self._channels = trained, ways, channels
        self.items = Items(self.nodes, trained)
        self.values: Dict[Tuple[int, int], Value] = {}
        self.slices: Dict[str, Slice] = {}
        self.layers: Dict[str, str] = {}

    def take(self, place: int) -> None:
        """Split one node."""
        node = self.nodes[place]
        op = node["op"]
        if op == "null":
            return
        if op in LAYERS and self.facts.is_plain(node):
            made = self._layer(place, node)
        elif op == "BatchNorm" and node.get("attrs", {}).get("axis", "1") == "1":
            made = self._batch_norm(place, node)
        elif op == "Dropout":
            made = self._dropout(place, node)
        elif self.facts.is_by_channel(node):
            made = self._by_channel(place, node)
        elif op in TOGETHER:
            made = self._together(place, node)
        else:
            made = self._whole(place, node)
        outputs = self.facts.outputs(place)
        if outputs > 1:
            self.items.give(made.item, outputs)
        for output in range(outputs):
            self.values[place, output] = made._replace(output=output)

    # Layers with weights

    def _layer(self, place: int, node: Node) -> Value:
        data, width = self._value(node["inputs"][0]), self.facts.channels_of(*node["inputs"][0][:2])
        if node["op"] == "FullyConnected":
            data, width = self._flattened(node, data)
        groups = int(node.get("attrs", {}).get("num_group", 1))
        outputs = self.facts.channels_of(place, 0)
        if groups > 1:
            bounds = self._bounds(groups, outputs)
            if bounds is None:
                return self._whole(place, node)
            return self._local(place, node, data, groups, width, bounds)
        column = self._bounds(outputs, outputs)
        row = self._bounds(width, width) if data.bounds is None else _scaled(data.bounds, width)
        by_row = self._channels == ROW or (
            self._channels == BOTH
            and (data.bounds is not None or place in self.facts.last_layers or column is None)
        )
        if by_row and row is not None:
            return self._row(place, node, data, row)
        if column is None or self._channels == ROW:
            return self._whole(place, node)
        return self._column(place, node, data, column)

    def _flattened(self, node: Node, data: Value) -> Tuple[Value, int]:
        """The vectors that a dense layer takes, which flattens images itself; and their width."""
        place, output = node["inputs"][0][:2]
        shape = self.facts.shapes[place, output]
        width = math.prod(shape[1:])
        if len(shape) == 2:
            return data, width
        bounds = None if data.bounds is None else _scaled(data.bounds, width)
        flatten = {"op": "Flatten", "name": f"{node['name']}_flattened", "attrs": {}}
        return self.items.node(flatten, (data,), bounds, complete=True), width

    def _column(self, place: int, node: Node, data: Value, bounds: Bounds) -> Value:
        copied = self.items.copy(self.items.whole(data))
        self._slice_params(node, bounds, bias=True)
        self.layers[node["name"]] = COLUMN
        return self.items.node(node, (copied,), bounds, _sizes(node, bounds))

    def _local(
        self, place: int, node: Node, data: Value, groups: int, width: int, bounds: Bounds
    ) -> Value:
        wanted = self._bounds(groups, width)
        assert wanted is not None
        self._slice_params(node, bounds, bias=True)
        self.layers[node["name"]] = "local"
        outputs = bounds[-1][1]
        attrs = tuple(
            {**size, "num_group": str((end - begin) * groups // outputs)}
            for size, (begin, end) in zip(_sizes(node, bounds), bounds)
        )
        return self.items.node(node, (self.items.parts(data, wanted),), bounds, attrs)

    def _row(self, place: int, node: Node, data: Value, bounds: Bounds) -> Value:
        data = data if data.bounds is not None else self.items.parts(data, bounds)
        weight, bias = self.facts.params(node)
        self.slices[weight] = Slice(1, bounds)
        self.layers[node["name"]] = ROW
        bare = {**node, "attrs": {**node["attrs"], "no_bias": "True"}}
        partial = self.items.add(NODE, data.level, (data, weight), bare, learns=True)
        summed = self.items.sum(partial)
        if bias is None:
            return summed
        axes = len(self.facts.shapes[place, 0])
        shape = (1, -1) + (1,) * (axes - 2)
        name = node["name"]
        row = {"op": "reshape", "name": f"{name}_bias_row", "attrs": {"shape": str(shape)}}
        add = {"op": "broadcast_add", "name": f"{name}_with_bias", "attrs": {}}
        shaped = self.items.add(NODE, summed.level, (bias,), row, learns=bias in self._trained)
        return self.items.add(NODE, summed.level, (summed, shaped), add, learns=True)

    # What has no weights, or one for each channel

    def _batch_norm(self, place: int, node: Node) -> Value:
        data = self._value(node["inputs"][0])
        names = [self.nodes[entry[0]]["name"] for entry in node["inputs"][1:]]
        plain = all(
            self.nodes[entry[0]]["op"] == "null" and self.facts.uses[entry[0]] == 1
            for entry in node["inputs"][1:]
        )
        if data.bounds is None or not plain:
            return self._whole(place, node)
        for name in names:
            self.slices[name] = Slice(0, data.bounds)
        return self.items.node(node, (data,), data.bounds)

    def _dropout(self, place: int, node: Node) -> Value:
        """On parts: of a whole value, all devices would need the same random numbers."""
        data, attrs = self._value(node["inputs"][0]), node.get("attrs", {})
        if float(attrs.get("p", 0.5)) == 0:
            return self._by_channel(place, node)
        if "1" in re.findall(r"\d+", attrs.get("axes", "")):
            raise ModelError(
                f"--split channels: {node['name']} is a Dropout of all channels at once, for which "
                "devices would need the same random numbers: choose another --split"
            )
        if data.bounds is None:
            width = self.facts.channels_of(place, 0)
            bounds = self._bounds(width, width)
            if bounds is None:
                raise ModelError(
                    f"--split channels: {node['name']} is a Dropout of {width} channels, which "
                    f"{self._ways} devices cannot share: choose fewer --ways, or another network"
                )
            data = self.items.parts(data, bounds)
        return self.items.node(node, (data,), data.bounds)

    def _by_channel(self, place: int, node: Node) -> Value:
        data = self._value(node["inputs"][0])
        bounds = data.bounds
        if bounds is not None:
            bounds = _scaled(bounds, self.facts.channels_of(place, 0))
            if bounds is None:
                return self._whole(place, node)
        return self.items.node(node, (data,), bounds)

    def _together(self, place: int, node: Node) -> Value:
        """Of values with the same channels: in parts, if one of them is."""
        values = [self._input(entry) for entry in node["inputs"]]
        found = [value.bounds for value in values if isinstance(value, Value) and value.bounds]
        same = len({self.facts.shapes[entry[0], entry[1]] for entry in node["inputs"]}) == 1
        if not found or not same or not all(isinstance(value, Value) for value in values):
            return self._whole(place, node)
        return self.items.node(
            node, tuple(self.items.parts(value, found[0]) for value in values), found[0]
        )

    def _whole(self, place: int, node: Node) -> Value:
        _refuse_random(node)
        inputs = tuple(
            self.items.whole(value) if isinstance(value, Value) else value
            for value in map(self._input, node["inputs"])
        )
        for entry in node["inputs"]:
            source = self.nodes[entry[0]]
            if (
                source["op"] == "null"
                and source["name"] in self._trained
                and (self.facts.uses[entry[0]] > 1)
            ):
                raise ModelError(
                    f"--split channels: {source['name']} is a parameter of several layers: "
                    "choose another --split"
                )
        return self.items.node({**node}, inputs, None, complete=True)

    # The graph

    def _input(self, entry: Sequence[int]) -> Any:
        place, output = entry[:2]
        if self.nodes[place]["op"] == "null":
            return self.nodes[place]["name"]
        return self.values[place, output]

    def _value(self, entry: Sequence[int]) -> Value:
        """The input as a value: images are one, which nobody has a gradient of."""
        found = self._input(entry)
        if isinstance(found, Value):
            return found
        copy = {"op": "identity", "name": f"{found}_taken", "attrs": {}}
        return self.items.add(NODE, 0, (found,), copy, learns=found in self._trained)

    def _slice_params(self, node: Node, bounds: Bounds, bias: bool) -> None:
        weight, own_bias = self.facts.params(node)
        self.slices[weight] = Slice(0, bounds)
        if own_bias is not None:
            self.slices[own_bias] = Slice(0, bounds)

    def _bounds(self, units: int, channels: int) -> Optional[Bounds]:
        """The channels of each device, cut between ``units``; None for too few of them."""
        if units < self._ways:
            return None
        return _scaled(tuple(split_evenly(units, self._ways)), channels)


def _scaled(bounds: Bounds, channels: int) -> Optional[Bounds]:
    """Bounds of as many channels as there are now: after Flatten each channel is many."""
    times, rest = divmod(channels, bounds[-1][1])
    return None if rest else tuple((begin * times, end * times) for begin, end in bounds)


def _sizes(node: Node, bounds: Bounds) -> Tuple[Dict[str, str], ...]:
    return tuple({LAYERS[node["op"]]: str(end - begin)} for begin, end in bounds)


def _refuse_random(node: Node) -> None:
    attrs = node.get("attrs", {})
    if "random" in node["op"] or "sample" in node["op"] or attrs.get("act_type") == "rrelu":
        raise ModelError(
            f"--split channels: {node['name']} draws random numbers ({node['op']}), "
            "of which all devices would need the same: choose another --split"
        )


class GraphInfo:
    """The ``nodes`` of a graph, their ``shapes`` by node and output, and how often each is used.

    ``inputs``: shapes from which all others follow. ``last_layers``: behind them comes no other.
    """

    def __init__(self, graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> None:
        whole = parse_graph(graph)
        self.nodes: List[Node] = whole["nodes"]
        self.heads, self.attrs = whole["heads"], whole["attrs"]
        self.shapes = _shapes(graph, inputs)
        self.uses = _uses(self.nodes)
        self.last_layers = _last_layers(self.nodes)

    def is_plain(self, node: Node) -> bool:
        """Whether a layer's weights are parameters of its own, and its channels in axis 1."""
        attrs = node.get("attrs", {})
        own = [entry[0] for entry in node["inputs"][1:]]
        return (
            all(self.nodes[i]["op"] == "null" and self.uses[i] == 1 for i in own)
            and attrs.get("layout", "NCHW") in ("NCW", "NCHW", "NCDHW", "None")
            and attrs.get("flatten", "True") == "True"
        )

    def is_by_channel(self, node: Node) -> bool:
        """Whether a node without parameters works on each channel by itself."""
        attrs = node.get("attrs", {})
        if node["op"] == "LeakyReLU":
            return attrs.get("act_type", "leaky") in PLAIN_LEAKY
        return node["op"] in BY_CHANNEL and len(node["inputs"]) == 1

    def params(self, node: Node) -> Tuple[str, Optional[str]]:
        """The names of a layer's weight, and of its bias if it has one."""
        names = [self.nodes[entry[0]]["name"] for entry in node["inputs"][1:]]
        return names[0], names[1] if len(names) > 1 else None

    def channels_of(self, place: int, output: int) -> int:
        """How many there are along axis 1."""
        shape = self.shapes[place, output]
        return shape[1] if len(shape) > 1 else 0

    def outputs(self, place: int) -> int:
        """How many outputs a node has."""
        return max(output for source, output in self.shapes if source == place) + 1


def _uses(nodes: Sequence[Node]) -> List[int]:
    uses = [0] * len(nodes)
    for node in nodes:
        for entry in node["inputs"]:
            uses[entry[0]] += 1
    return uses


def _last_layers(nodes: Sequence[Node]) -> Set[int]:
    """The layers behind which there is no other."""
    before = [False] * len(nodes)  # whether a layer comes after the node
    for place in range(len(nodes) - 1, -1, -1):
        for entry in nodes[place]["inputs"]:
            before[entry[0]] |= before[place] or nodes[place]["op"] in LAYERS
    return {i for i, node in enumerate(nodes) if node["op"] in LAYERS and not before[i]}


def _shapes(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> Dict[Tuple[int, int], Shape]:
    """The shape of every output of every node."""
    internals = graph.get_internals()
    _, shapes, _ = internals.infer_shape(**inputs)
    found: Dict[Tuple[int, int], Shape] = {}
    heads = parse_graph(internals)["heads"]
    for (place, output, *_), shape in zip(heads, shapes):
        found[place, output] = tuple(shape)
    return found


class Items:
    """The items ``made`` so far of a graph's ``nodes``; ``trained``: parameters with gradients."""

    def __init__(self, nodes: Sequence[Node], trained: Set[str]) -> None:
        self._nodes, self._trained = nodes, trained
        self.made: List[Item] = []
        self._known: Dict[Any, Value] = {}  # copies and slices that several nodes take

    def node(
        self,
        node: Node,
        inputs: Tuple[Any, ...],
        bounds: Optional[Bounds],
        attrs: Tuple[Dict[str, str], ...] = (),
        complete: bool = False,
    ) -> Value:
        """An operator on these values and, unless they are ``complete``, its own parameters."""
        if not complete:
            own = node["inputs"][len(inputs) :]
            inputs += tuple(self._nodes[entry[0]]["name"] for entry in own)
        level = max((each.level for each in inputs if isinstance(each, Value)), default=0)
        learns = any(
            each.learns if isinstance(each, Value) else each in self._trained for each in inputs
        )
        return self.add(NODE, level, inputs, node, attrs, bounds, learns=learns)

    def copy(self, value: Value) -> Value:
        """The same value; backward adds up the gradients of all devices."""
        if not value.learns:
            return value
        if ("copy", value) not in self._known:
            made = self.add(COPY, value.level, (value,), learns=True)
            self._known["copy", value] = made._replace(level=value.level + 1)
        return self._known["copy", value]

    def sum(self, value: Value) -> Value:
        """The sum of what the devices have, on all of them."""
        made = self.add(SUM, value.level, (value,), learns=value.learns)
        return made._replace(level=value.level + 1)

    def parts(self, value: Value, bounds: Bounds) -> Value:
        """The value in these parts, whatever it is."""
        if value.bounds == bounds:
            return value
        if ("parts", value, bounds) not in self._known:
            copied = self.copy(self.whole(value))
            self._known["parts", value, bounds] = self.add(
                SLICE, copied.level, (copied,), bounds=bounds, learns=value.learns
            )
        return self._known["parts", value, bounds]

    def add(
        self,
        kind: str,
        level: int,
        inputs: Tuple[Any, ...],
        node: Optional[Node] = None,
        attrs: Tuple[Dict[str, str], ...] = (),
        bounds: Optional[Bounds] = None,
        channels: int = 0,
        learns: Optional[bool] = None,
    ) -> Value:
        """A new item's first output."""
        self.made.append(Item(kind, level, inputs, node, attrs, bounds, channels))
        if learns is None:
            learns = any(each.learns for each in inputs if isinstance(each, Value))
        return Value(len(self.made) - 1, 0, level, bounds, learns)

    def whole(self, value: Value) -> Value:
        """The whole value: parts among zeros, summed."""
        if value.bounds is None:
            return value
        key = ("whole", value)
        if key not in self._known:
            width = value.bounds[-1][1]
            padded = self.add(PAD, value.level, (value,), bounds=value.bounds, channels=width)
            self._known[key] = self.sum(padded._replace(bounds=None))
        return self._known[key]

    def give(self, item: int, outputs: int) -> None:
        """Have the item give so many outputs."""
        self.made[item] = self.made[item]._replace(outputs=outputs)
