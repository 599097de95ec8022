"""Decides for each operator of a graph how its channels are split: makes a `Layout`."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Optional, Sequence, Set, Tuple

import mxnet as mx

from gluonlab.errors import ModelError
from gluonlab.models.graphs import Node
from gluonlab.parallel.channels.facts import LAYERS, Facts
from gluonlab.parallel.channels.items import Items
from gluonlab.parallel.channels.layout import (
    BOTH,
    COLUMN,
    COPY,
    NODE,
    ROW,
    SUM,
    Bounds,
    Layout,
    Shape,
    Slice,
    Value,
)  # fmt: skip
from gluonlab.shares import split_evenly

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
        self.facts = Facts(graph, inputs)
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
