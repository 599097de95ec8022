"""Which channels of which values a device has, and where devices must meet: a graph, split.

A value is *whole*, the same on all devices, or in *parts* along its channels, axis 1. A layer that
can be split is

======  =========================  =============================  ==================
way     takes                      has of its weight              gives
======  =========================  =============================  ==================
column  a whole value              the rows of some outputs       parts
row     parts                      the columns of some inputs     sums, to be added
local   parts, in as many groups   the rows of its groups         parts
======  =========================  =============================  ==================

What works on each channel alone (ReLU, pooling, BatchNorm, Dropout) takes parts as they come. So
column and row in turns need one sum for two layers (Shoeybi et al., "Megatron-LM", 2019, section
3). The rest of a network takes whole values, on every device.

Between the meetings each device has graphs of its own (`graphs`). Level 0 ends where values first
meet those of other devices; what comes of it is an input of level 1, and so on. A value that a
later level takes goes through those in between."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx

from gluonlab.models.symbol_graph import Entry, Node, make_node, to_symbol

BOTH, COLUMN, ROW = CHANNELS = ("both", "column", "row")
NODE, SLICE, PAD, COPY, SUM = "node", "slice", "pad", "copy", "sum"

Bounds = Tuple[Tuple[int, int], ...]  # the (begin, end) of each device's channels
Shape = Tuple[int, ...]


class Value(NamedTuple):
    """What an `Item` makes: ``bounds`` of its channels on each device, or None where it is whole.

    ``level``: how many meetings come before it. ``learns``: whether its gradient is wanted.
    """

    item: int
    output: int
    level: int
    bounds: Optional[Bounds]
    learns: bool


class Item(NamedTuple):
    """An operation, the same on all devices but for its channels.

    ``inputs``: values, or names of parameters and of images and labels. ``attrs``: those that
    differ, a value for each device.
    """

    kind: str
    level: int
    inputs: Tuple[Any, ...]
    node: Optional[Node] = None
    attrs: Tuple[Dict[str, str], ...] = ()
    bounds: Optional[Bounds] = None
    channels: int = 0
    outputs: int = 1


class Slice(NamedTuple):
    """Which part of a parameter each device has: ``bounds`` along ``axis``."""

    axis: int
    bounds: Bounds


class Layout(NamedTuple):
    """A graph, split. ``slices``: of the parameters that are; ``heads``: its outputs, all whole."""

    items: List[Item]
    heads: List[Value]
    slices: Dict[str, Slice]
    levels: int
    layers: Dict[str, str]  # the split layers, by name: column, row or local
    attrs: Dict[str, Any]  # the graph's own

    @property
    def sums(self) -> int:
        """How many meetings there are, forward."""
        return sum(item.kind == SUM for item in self.items)


PASS = "pass"
Key = Tuple[int, int]  # an item, and which of its outputs


class Crossing(NamedTuple):
    """What goes from a level to the next: the value ``source``, which is ``result`` there.

    ``kind``: SUM, COPY or PASS. ``learns``: whether its gradient comes back.
    """

    kind: str
    source: Key
    result: Key
    learns: bool

    @property
    def name(self) -> str:
        """The input that it is of the next level's graph."""
        return "value_{}_{}".format(*self.result)


def crossings(layout: Layout) -> List[List[Crossing]]:
    """What goes from each level but the last to the next."""
    learns, available, needed = _lives(layout)
    found: List[List[Crossing]] = []
    for level in range(layout.levels - 1):
        meet = [
            Crossing(item.kind, _key(item.inputs[0]), (number, 0), item.inputs[0].learns)
            for number, item in enumerate(layout.items)
            if item.kind in (SUM, COPY) and item.level == level
        ]
        passing = [
            Crossing(PASS, key, key, learns[key])
            for key in sorted(available)
            if available[key] <= level < needed.get(key, -1)
        ]
        found.append(meet + passing)
    return found


def _key(value: Value) -> Key:
    return value.item, value.output


def _lives(layout: Layout) -> "Tuple[Dict[Key, bool], Dict[Key, int], Dict[Key, int]]":
    """Of each value: whether it learns, the level that makes it, and the last one that takes it."""
    learns: Dict[Key, bool] = {}
    available: Dict[Key, int] = {}
    needed: Dict[Key, int] = {}
    taken = [(value, item.level) for item in layout.items for value in item.inputs]
    taken += [(head, layout.levels - 1) for head in layout.heads]
    for value, level in taken:
        if isinstance(value, Value):
            key = _key(value)
            learns[key], available[key] = value.learns, value.level
            needed[key] = max(level, needed.get(key, -1))
    return learns, available, needed


def graphs(layout: Layout, device: int) -> List[mx.sym.Symbol]:
    """The graph of each level on one device.

    Its outputs are what crosses to the next level, in order, and at last the layout's heads.
    """
    between = crossings(layout)
    made = []
    for level in range(layout.levels):
        builder = _LevelBuilder(device)
        for crossing in between[level - 1] if level else ():
            builder.input(crossing)
        for number, item in enumerate(layout.items):
            if item.level == level:
                builder.take(number, item)
        last = level == layout.levels - 1
        sources = map(_key, layout.heads) if last else (each.source for each in between[level])
        heads = [builder.output(source, own=not last) for source in sources]
        made.append(to_symbol(builder.nodes, heads, layout.attrs))
    return made


def flat_graph(layout: Layout, device: int) -> mx.sym.Symbol:
    """All levels up to the scores as one graph, in which nobody meets.

    Its shapes are those of the levels.
    """
    builder = _LevelBuilder(device)
    for number, item in enumerate(layout.items):
        if item.kind in (SUM, COPY):
            builder.alias(number, _key(item.inputs[0]))
        else:
            builder.take(number, item)
    scores = builder.output(_key(layout.heads[1]), own=False)
    return to_symbol(builder.nodes, [scores], layout.attrs)


class _LevelBuilder:
    """The nodes of one level on one device."""

    def __init__(self, device: int) -> None:
        self._device = device
        self.nodes: List[Node] = []
        self._entries: Dict[Key, Entry] = {}
        self._variables: Dict[str, Entry] = {}

    def input(self, crossing: Crossing) -> None:
        """A value of the level before."""
        self._entries[crossing.result] = self._variable(crossing.name)

    def alias(self, number: int, source: Key) -> None:
        """An item that gives what it takes."""
        self._entries[number, 0] = self._entries[source]

    def take(self, number: int, item: Item) -> None:
        """An item of this level."""
        inputs = [self._entry(each) for each in item.inputs]
        if item.kind == NODE:
            assert item.node is not None
            attrs = dict(item.node.get("attrs", {}))
            attrs.update(item.attrs[self._device] if item.attrs else {})
            made = self._append({**item.node, "inputs": inputs, "attrs": attrs})
        elif item.kind == SLICE:
            assert item.bounds is not None
            begin, end = item.bounds[self._device]
            made = self._slice(number, inputs[0], begin, end)
        elif item.kind == PAD:
            made = self._padded(number, item, inputs[0])
        else:
            return
        for output in range(item.outputs):
            self._entries[number, output] = [made[0], output, 0]

    def output(self, key: Key, own: bool) -> Entry:
        """A value that leaves; ``own``: as an output of its own, whatever else it is."""
        entry = self._entries[key]
        if own or self.nodes[entry[0]]["op"] == "null":
            name = "gives_{}_{}_{}".format(*key, len(self.nodes))
            return self._append(make_node("_copy", name, [entry]))
        return entry

    def _entry(self, given: "Value | str") -> Entry:
        return self._variable(given) if isinstance(given, str) else self._entries[_key(given)]

    def _variable(self, name: str) -> Entry:
        if name not in self._variables:
            self._variables[name] = self._append({"op": "null", "name": name, "inputs": []})
        return self._variables[name]

    def _slice(self, number: int, entry: Entry, begin: int, end: int) -> Entry:
        name = f"slice_{number}_{begin}_{len(self.nodes)}"
        return self._append(make_node("slice_axis", name, [entry], axis=1, begin=begin, end=end))

    def _padded(self, number: int, item: Item, entry: Entry) -> Entry:
        """The own channels between zeros, as many as the others have."""
        assert item.bounds is not None
        begin, end = item.bounds[self._device]
        parts = [*self._zeros(number, entry, end - begin, begin), entry,
                 *self._zeros(number, entry, end - begin, item.channels - end)]  # fmt: skip
        if len(parts) == 1:
            return entry
        name = f"pad_{number}"
        return self._append(make_node("Concat", name, parts, num_args=len(parts), dim=1))

    def _zeros(self, number: int, like: Entry, width: int, channels: int) -> List[Entry]:
        """Zeros of so many channels, made of an array that has ``width``."""
        made = []
        for begin in range(0, channels, width):
            part = self._slice(number, like, 0, min(width, channels - begin))
            name = f"zeros_{number}_{len(self.nodes)}"
            made.append(self._append(make_node("zeros_like", name, [part])))
        return made

    def _append(self, node: Node) -> Entry:
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0, 0]


def wanted(crossing: Sequence[Crossing]) -> List[str]:
    """The inputs of the next level whose gradients come back."""
    return [each.name for each in crossing if each.learns]
