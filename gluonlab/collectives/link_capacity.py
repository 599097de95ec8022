"""The capacity of a topology's links, which bounds the bytes and messages of all schedules."""

from __future__ import annotations

import math
import operator
from collections import Counter
from functools import reduce
from itertools import chain, combinations
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from gluonlab.collectives.topology import Link, Pair, Topology, all_pairs

MAX_RANKS_FOR_ALL_CUTS = 8  # 2^p cuts are tried; each cut is a bound, and a few are enough

RankSet = Tuple[int, ...]


class FanCost(NamedTuple):
    """The least cost of moving every chunk from all ranks to one rank, or back, in one step.

    ``messages``: the number of messages on a rank's busiest link, minimized over ranks.
    ``messages_with_bytes``: the number of messages on the link that limits a rank's bandwidth,
    minimized over ranks. ``s_per_byte``: the least seconds per byte of the whole buffer, for any
    distribution of the chunks over ranks.
    """

    messages: int
    messages_with_bytes: int
    s_per_byte: float


class Distances(NamedTuple):
    """The sums of latencies along the fastest paths between ranks, in seconds.

    ``longest``: the longest distance. ``inward_radius``: the distance to the most central rank from
    the rank farthest from it. ``outward_radius``: the same in the other direction.
    """

    longest: float
    inward_radius: float
    outward_radius: float


RouteLinks = Tuple[int, ...]  # the numbers of the links of a route, each once


class LinkCapacity:
    """The links on the routes of a topology with at least two devices."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        numbers: Dict[Link, int] = {}
        self._routes: Dict[Pair, RouteLinks] = {}
        self._latency_s: Dict[Pair, float] = {}
        for pair in all_pairs(topology.world_size):
            route = topology.routes[pair]
            self._routes[pair] = tuple(dict.fromkeys(numbers.setdefault(link, len(numbers)) for link in route.links))
            self._latency_s[pair] = float(route.latency_s)
        self._speeds = [float(link.bytes_per_s) for link in numbers]

    @property
    def lowest_latency_s(self) -> float:
        """The lowest latency of a route."""
        return min(self._latency_s.values())

    def shortest_latencies(self) -> Distances:
        """Return the distances between ranks, by Floyd's algorithm."""
        ranks = range(self.topology.world_size)
        rows = [[self._latency_s.get((src, dst), 0.0) for dst in ranks] for src in ranks]
        for via in ranks:
            rows = [[min(direct, row[via] + rest) for direct, rest in zip(row, rows[via])] for row in rows]
        inward, outward = (min(map(max, sides)) for sides in (zip(*rows), rows))
        return Distances(max(map(max, rows)), inward, outward)

    def min_fan_cost(self, inward: bool) -> FanCost:
        """Return the least cost of a step between each owner of chunks and all other ranks.

        ``inward``: whether the owners receive chunks from the other ranks instead of sending chunks
        to them.

        If a fraction x of the bytes fans into rank v, v's link l is busy for x c / bandwidth
        seconds per byte, where c of v's p - 1 routes pass the link. Let s be the largest c /
        bandwidth of a rank. The fractions of all ranks add up to 1. So for at least one rank, x s
        is at least 1 / S, where S is the sum of 1 / s over all ranks.
        """
        limits, max_messages = [], []
        for routes in self._routes_by_rank(inward):
            use_counts = _count_uses(routes)
            busy_times = {link: count / self._speeds[link] for link, count in use_counts.items()}
            longest = max(busy_times.values())
            busiest = [link for link in sorted(use_counts) if busy_times[link] == longest]
            limiting_link = max(busiest, key=use_counts.__getitem__)
            uses = use_counts[limiting_link]
            limits.append((uses, self._speeds[limiting_link] / uses))
            max_messages.append(max(use_counts.values()))
        messages, speeds = zip(*limits)
        # not `sum`, which rounds differently since Python 3.12
        return FanCost(min(max_messages), min(messages), 1 / reduce(operator.add, speeds))

    def max_partners(self, inward: bool) -> Callable[[int], int]:
        """Return f: with m messages per link, a rank can receive from at most f(m) ranks.

        If ``inward`` is false, a rank can send to at most f(m) ranks. Each route is counted on one
        of its links: the link that most of the rank's routes pass.
        """
        groups = set()
        for routes in self._routes_by_rank(inward):
            route_counts = Counter(_most_used_links(routes, _count_uses(routes)))
            groups.add(tuple(sorted(route_counts.values())))
        return lambda m: max(sum(min(m, size) for size in sizes) for sizes in groups)

    def min_busy_seconds_per_byte(self, both_ways: bool) -> float:
        """Return a lower bound on how long the busiest link is busy, in seconds per buffer byte.

        ``both_ways``: true for an allreduce, false for a reduce_scatter or all_gather.

        Consider a division of the ranks into k parts. Every chunk needs at least 2 (k-1) transfers
        between parts. Until one part has all contributions, every other part sends at least once.
        Afterwards every other part receives at least once. A reduce_scatter or all_gather needs
        half of these transfers. For any cover of the routes between parts, every such transfer
        passes one of the cover's links. So 2 (k-1) n bytes pass these links, and one of them is
        busy for at least these bytes divided by the sum of the links' speeds. An allreduce also
        sends every chunk out of every part and into every part, which gives further bounds.
        """
        ways = 2 if both_ways else 1
        return max(self._partition_seconds_per_byte(parts, ways) for parts in partitions(self.topology))

    def _partition_seconds_per_byte(self, parts: Sequence[RankSet], ways: int) -> float:
        """Return the bound of `min_busy_seconds_per_byte` for one division into ``parts``.

        ``parts``: sets of ranks. ``ways``: 2 for an allreduce, 1 for a reduce_scatter or
        all_gather.
        """
        part_of_rank = {rank: number for number, part in enumerate(parts) for rank in part}
        crossing = {
            pair: links for pair, links in self._routes.items() if part_of_rank[pair[0]] != part_of_rank[pair[1]]
        }
        bounds = [ways * (len(parts) - 1) / self._min_cover_speed(list(crossing.values()))]
        for side in (0, 1) if ways == 2 else ():
            routes_by_part: List[List[RouteLinks]] = [[] for _ in parts]
            for pair, links in crossing.items():
                routes_by_part[part_of_rank[pair[side]]].append(links)
            bounds += [1 / self._min_cover_speed(routes) for routes in routes_by_part]
        return max(bounds)

    def _min_cover_speed(self, routes: Sequence[RouteLinks]) -> float:
        """Return the lowest total bytes/s among four covers of the routes.

        A cover is a set of links such that every route passes at least one of them. Every cover
        gives a bound. Four covers are tried: the first links of all routes, the last links, the
        links that most routes pass, and the slowest links.
        """
        use_counts, speed_of = _count_uses(routes), self._speeds.__getitem__
        slowest = [[link for link in links if speed_of(link) == min(map(speed_of, links))] for links in routes]
        covers = (
            {links[0] for links in routes},
            {links[-1] for links in routes},
            set(_most_used_links(routes, use_counts)),
            set(_most_used_links(slowest, use_counts)),
        )
        return min(math.fsum(map(speed_of, cover)) for cover in covers)

    def _routes_by_rank(self, inward: bool) -> Iterator[List[RouteLinks]]:
        """Yield the routes into each rank if ``inward``, else the routes out of each rank."""
        side = 1 if inward else 0
        for rank in range(self.topology.world_size):
            yield [links for pair, links in self._routes.items() if pair[side] == rank]


def _count_uses(routes: Iterable[RouteLinks]) -> Mapping[int, int]:
    """Return the number of routes that pass each link."""
    return Counter(chain.from_iterable(routes))


def _most_used_links(routes: Iterable[Sequence[int]], use_counts: Mapping[int, int]) -> List[int]:
    """Return the most used link of each route: the number of the link that most routes pass."""
    return [max(links, key=use_counts.__getitem__) for links in routes]


def partitions(topology: Topology) -> Iterator[Sequence[RankSet]]:
    """Yield ways to divide the ranks: one by one, by group, by host, and into any two sets.

    All pairs of sets are tried only for up to MAX_RANKS_FOR_ALL_CUTS ranks.
    """
    p = topology.world_size
    yield [(rank,) for rank in range(p)]
    given_partitions = [topology.groups, topology.hosts]
    for parts in given_partitions[: 1 + (topology.groups != topology.hosts)]:
        if len(parts) > 1 and sorted(rank for part in parts for rank in part) == [*range(p)]:
            yield parts
    if p <= MAX_RANKS_FOR_ALL_CUTS:
        for size in range(1, p // 2 + 1):
            for part in combinations(range(p), size):
                yield [part, tuple(rank for rank in range(p) if rank not in part)]
