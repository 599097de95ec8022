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
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gluonlab.models.graphs import Node

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
