"""What the links of a topology can carry: the bytes and the messages that bound all schedules."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Callable, Iterator, List, NamedTuple, Sequence, Tuple

from gluonlab.collectives.links import Link, Route, Topology

MOST_SUBSETS_OF = 8  # ranks whose 2^p cuts are all looked at; each cut is a bound, few are enough

Part = Tuple[int, ...]


class Fan(NamedTuple):
    """What it costs at least that every chunk goes from all ranks to one, or back, in one step.

    ``messages``: on the busiest link of the best rank. ``messages_with_bytes``: on the link that
    limits bytes, which takes ``s_per_byte`` of the whole buffer at the same time.
    """

    messages: int
    messages_with_bytes: int
    s_per_byte: float


def fans(topology: Topology, inward: bool) -> Fan:
    """The cheapest fans into, or out of, ranks that share all chunks in the best way.

    With the share x of the bytes, rank v's link l is busy for x c / bandwidth a byte, if c of v's
    p - 1 routes pass it. Shares add up to 1, so for some rank that takes part, x times the largest
    c / bandwidth is at least 1 / the sum of all inverses.
    """
    counts = [_uses(routes) for routes in _spokes(topology, inward)]
    limits = [max(of.items(), key=lambda use: use[1] / use[0].bytes_per_s) for of in counts]
    together = sum(link.bytes_per_s / messages for link, messages in limits)
    return Fan(
        min(max(of.values()) for of in counts),
        min(messages for _, messages in limits),
        1 / together,
    )


def most_messages(topology: Topology, inward: bool) -> Callable[[int], int]:
    """f(m): the most ranks that one rank can receive from (send to) with m messages on a link.

    Each route is counted on one of its links, the one that most of the rank's routes pass.
    """
    groups: List[List[int]] = []
    for routes in _spokes(topology, inward):
        uses = _uses(routes)
        counted = Counter(max(route.links, key=lambda link: uses[link]) for route in routes)
        groups.append(list(counted.values()))
    return lambda m: max(sum(min(m, size) for size in sizes) for sizes in groups)


def seconds_per_byte(topology: Topology, both_ways: bool) -> float:
    """Seconds a byte of the buffer that some link is busy, of any allreduce or of a half of it.

    Share the ranks out into k parts. Of every chunk at least 2 (k-1) transfers go from part to
    part: until the first part knows of all others, each of those has sent once; afterwards each of
    them must receive once (a half needs one of the two). Every such transfer passes one of any
    links that cover the routes between parts. So 2 (k-1) n bytes pass links that carry their sum of
    bytes/s, and one of these links is busy at least for the quotient. An allreduce also sends every
    chunk out of every part, and into it.
    """
    ways = 2 if both_ways else 1
    return max(_of_parts(topology, parts, ways) for parts in _partitions(topology))


def _of_parts(topology: Topology, parts: Sequence[Part], ways: int) -> float:
    home = {rank: number for number, part in enumerate(parts) for rank in part}
    between = [
        (home[src], home[dst], route)
        for (src, dst), route in topology.routes.items()
        if home[src] != home[dst]
    ]
    together = ways * (len(parts) - 1) / _narrowest([route for *_, route in between])
    if ways == 1:
        return together
    out: List[List[Route]] = [[] for _ in parts]
    into: List[List[Route]] = [[] for _ in parts]
    for src, dst, route in between:
        out[src].append(route)
        into[dst].append(route)
    return max(together, *(1 / _narrowest(routes) for routes in [*out, *into]))


def _partitions(topology: Topology) -> Iterator[Sequence[Part]]:
    """Single ranks, the topology's own groups and hosts, ranks that share links, and small cuts."""
    p = topology.world_size
    yield [(rank,) for rank in range(p)]
    for parts in (topology.groups, topology.hosts):
        if len(parts) > 1 and sorted(rank for part in parts for rank in part) == [*range(p)]:
            yield parts
    if p <= MOST_SUBSETS_OF:
        for size in range(1, p // 2 + 1):
            for part in combinations(range(p), size):
                yield [part, tuple(rank for rank in range(p) if rank not in part)]


def _narrowest(routes: Sequence[Route]) -> float:
    """Bytes/s of links of which every route passes one: the least of some covers.

    Any cover gives a bound. The first links of all routes, their last ones, the ones that most
    routes pass, and the slowest ones are tried.
    """
    uses = _uses(routes)
    covers = (
        {route.links[0] for route in routes},
        {route.links[-1] for route in routes},
        {max(route.links, key=lambda link: uses[link]) for route in routes},
        {min(route.links, key=lambda link: (link.bytes_per_s, -uses[link])) for route in routes},
    )
    return min(sum(link.bytes_per_s for link in cover) for cover in covers)


def _spokes(topology: Topology, inward: bool) -> List[List[Route]]:
    """The routes into (out of) each rank."""
    spokes: List[List[Route]] = [[] for _ in range(topology.world_size)]
    for (src, dst), route in topology.routes.items():
        spokes[dst if inward else src].append(route)
    return spokes


def _uses(routes: Sequence[Route]) -> "Counter[Link]":
    return Counter(link for route in routes for link in set(route.links))
