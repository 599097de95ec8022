"""The operations of a split graph, as they are put together: those that several take once only."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from gluonlab.models.graphs import Node
from gluonlab.parallel.channels.layout import COPY, NODE, PAD, SLICE, SUM, Bounds, Item, Value


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
