"""Routes over a machine's wires: of all ways the one with the fewest hops, then the widest.

Switches forward, and devices do not: a message from one device to another passes none in between.
"""

from __future__ import annotations

from collections import defaultdict
from typing import DefaultDict, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple, Union

from gluonlab.collectives.links import INFINITE, Link, Pair, Route

Node = Union[int, str]  # a device, by its number, or a switch


class Wire(NamedTuple):
    """One direction of a wire from node to node, and the latency of a message that passes it."""

    src: Node
    dst: Node
    link: Link
    latency_s: float


class _Way(NamedTuple):
    """Some wires one after the other."""

    links: Tuple[Link, ...] = ()
    latency_s: float = 0.0
    bytes_per_s: float = INFINITE

    def on(self, wire: Wire, buses: Mapping[Node, Link]) -> _Way:
        """The way that goes on along ``wire``, and through what it leads to."""
        links = [wire.link, *([buses[wire.dst]] if wire.dst in buses else [])]
        slowest = min(link.bytes_per_s for link in links)
        return _Way(
            (*self.links, *links),
            max(self.latency_s, wire.latency_s),
            min(self.bytes_per_s, slowest),
        )


def shortest_routes(
    world_size: int, wires: Sequence[Wire], buses: Mapping[Node, Link]
) -> Dict[Pair, Route]:
    """A route for every pair of devices that wires lead from and to; the others have none.

    ``buses``: the link that every message through a switch passes, of those that have one. A
    message's latency is the largest on its way: it is started once. Of ways that are alike, it is
    that whose wires come first.
    """
    leaving: DefaultDict[Node, List[Wire]] = defaultdict(list)
    for wire in wires:
        leaving[wire.src].append(wire)
    routes = {}
    for src in range(world_size):
        for dst, way in _ways(src, leaving, buses).items():
            routes[src, dst] = Route(way.links, way.latency_s)
    return routes


def _ways(
    src: int, leaving: Mapping[Node, Sequence[Wire]], buses: Mapping[Node, Link]
) -> Dict[int, _Way]:
    """The best way from ``src`` to every device that it reaches: breadth first."""
    found: Dict[int, _Way] = {}
    reached: Dict[Node, _Way] = {src: _Way()}
    ends: Set[Node] = {src}
    while reached:
        longer: Dict[Node, _Way] = {}
        for node, way in reached.items():
            for wire in leaving.get(node, ()):
                if wire.dst not in ends:
                    on = way.on(wire, buses)
                    if wire.dst not in longer or on.bytes_per_s > longer[wire.dst].bytes_per_s:
                        longer[wire.dst] = on
        ends.update(longer)
        found.update({node: way for node, way in longer.items() if isinstance(node, int)})
        reached = {node: way for node, way in longer.items() if isinstance(node, str)}
    return found
