"""Lower bounds on the predicted time (`cost_model`) of any valid schedule on a topology.

`find_lower_bound` returns the bound, in predicted seconds. A schedule of T steps on a buffer of n bytes
takes at least T alpha + B n + G n. Here alpha is the lowest latency, B is the result of
`LinkCapacity.min_busy_seconds_per_byte`, and G is the result of `addition_seconds_per_byte`. A
schedule of few steps must send many messages at once, which implies further bounds. The bound for T
steps is the largest of these bounds. The lower bound for any schedule is the smallest bound over
all T.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from itertools import chain, combinations, count
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from gluonlab.collectives.cost_model import is_numpy_installed
from gluonlab.collectives.schedule import ALL_GATHER, ALLREDUCE, COLLECTIVES, REDUCE_SCATTER
from gluonlab.collectives.topology import INFINITE, Link, Pair, Topology, all_pairs
from gluonlab.errors import ScheduleError, unknown


class LinearCost(NamedTuple):
    """A cost of ``fixed_s`` + size * ``s_per_byte`` seconds."""

    fixed_s: float
    s_per_byte: float

    def plus(self, other: LinearCost) -> LinearCost:
        """Return the sum of both costs."""
        return LinearCost(self.fixed_s + other.fixed_s, self.s_per_byte + other.s_per_byte)


@dataclass(frozen=True)
class LowerBound:
    """The lower bound on a collective's predicted time on a topology, as a function of the size.

    ``cases``: for each number of steps, several linear costs. The cost of a schedule with this
    number of steps is at least the largest of these costs.
    """

    collective: str
    topology: str
    cases: Tuple[Tuple[LinearCost, ...], ...]

    def seconds(self, size_bytes: float) -> float:
        """Return the lower bound for a buffer of ``size_bytes`` on every device."""
        return min(max(line.fixed_s + line.s_per_byte * size_bytes for line in lines) for lines in self.cases)


def find_lower_bound(topology: Topology, collective: str = ALLREDUCE) -> LowerBound:
    """Return the lower bound on the predicted time of any valid schedule, for any chunk owners.

    Args:
        topology: the topology.
        collective: "allreduce", "reduce_scatter" or "all_gather".

    Returns:
        The bound; ``find_lower_bound(topology).seconds(size_bytes)`` is in seconds.

    Raises:
        ScheduleError: for any other collective.
    """
    if collective not in COLLECTIVES:
        raise ScheduleError(unknown("collective", collective, COLLECTIVES))
    if topology.world_size == 1:
        return LowerBound(collective, topology.name, ((LinearCost(0.0, 0.0),),))
    capacity = _make_capacity(topology)
    cases = _bounds_of_allreduces(capacity) if collective == ALLREDUCE else _bounds_of_halves(capacity, collective)
    addition_cost = LinearCost(0.0, 0.0 if collective == ALL_GATHER else addition_seconds_per_byte(topology))
    return LowerBound(
        collective, topology.name, tuple(tuple(line.plus(addition_cost) for line in lines) for lines in cases)
    )


def addition_seconds_per_byte(topology: Topology) -> float:
    """Return the least time that additions take in a sum over all ranks, in seconds per byte.

    A sum of p contributions is a tree with p - 1 inner nodes, each computed by some rank, so (p -
    1) n bytes are added. In each step the busiest device adds at least 1/p of the bytes added in
    that step. If devices share a memory, the additions of a step into one chunk count once. Each
    chunk still needs at least one step with additions, so at least n bytes are added at the speed
    of the memory.
    """
    p, shared = topology.world_size, topology.shared_reduce_bytes_per_s
    added_copies = 1 if shared < INFINITE else p - 1
    return added_copies * max(1 / (p * topology.reduce_bytes_per_s), 1 / shared)


# Proofs of the bounds by number of steps, for p ranks. A cell is a chunk of a rank.
#
# **Two steps.** Consider one chunk. Ranks read in the last step are not written in it, so one of
# them held the sum before: some rank v was complete after the first step, in which every cell held
# a single contribution. So v received from all other ranks at once: a fan in. It was written, and
# hence not read; only its own cell contained its contribution. So the last step fans out from v to
# all.
#
# **Three steps.** Let rank v be the first complete rank. If it is complete after its chunk's first
# step, that step is a fan in. Otherwise it is complete after the second step. In the first step no
# rank is overwritten by a copy: its contribution would be lost. Nor is v read in it: a rank q that
# adds v's chunk would hold both contributions together, and q's contribution would be nowhere else.
# Then v could not receive it without counting its own contribution twice. In the second step v is
# written. So v's contribution has not left its cell, and the third step fans out from v to all.
#
# **Four steps or more.** Each rank's knowledge is a row of 0 and 1: 1 for each contribution of
# which it holds a part. The matrix is the identity at first, and all ones at the end, with spectral
# norm p. A cell is either read or written in a step. So knowledge grows by a factor I + A, where A
# maps ranks that are read to others. The norm grows by at most (s + sqrt(s s + 4)) / 2, where s is
# the norm of A: at most the root of (messages that one rank can receive) x (messages that it can
# send). Ranks not written in the last step know all before it, and contributions not read in the
# first step had to travel later. Between these two steps the matrix contains a block of ones of
# that size, whose norm is the root of its area. m messages on a link cost m alpha. (For one message
# per step and rank this is the bound for gossip by telegraph of Even, Monien, "On the number of
# rounds necessary to disseminate information", 1989.)
#
# **Tightness.** The bound is exact for two devices with separate links in each direction, for every
# size, and for four devices behind a switch, where latency dominates. Bytes and additions are those
# of the ring on a switch, and of bidirectional_ring on a ring of links. On the hybrid cube mesh the
# bound is four messages and the bytes of all its links. It is unknown whether eight ranks behind a
# switch can do with 5 consecutive messages; the algorithms here take 6. Between hosts latency is a
# weak bound: it counts one message of the network, not one for every step with bytes on it.


def _bounds_of_allreduces(capacity: LinkCapacity) -> List[List[LinearCost]]:
    """Return the lower bounds for allreduces with 2 steps, 3 steps, and 4 or more steps."""
    alpha = capacity.lowest_latency_s
    s_per_byte = capacity.min_busy_seconds_per_byte(both_ways=True)
    inward, outward = capacity.min_fan_cost(True), capacity.min_fan_cost(False)
    # A contribution needs one step for each hop to its farthest reader. Also, the first complete
    # rank has received all other contributions, and the rank of the last one needs one more step.
    distances = capacity.shortest_latencies()
    farthest = max(distances.longest, distances.inward_radius + alpha)
    distance_bound = LinearCost(farthest, 0.0)
    two_steps = [a.plus(b) for a in _fan_lines(inward, alpha) for b in _fan_lines(outward, alpha)]
    # Each chunk fans in or out, so at least half of the bytes fan in, or half of them fan out.
    either = LinearCost(
        alpha * (2 + min(inward.messages_with_bytes, outward.messages_with_bytes)),
        min(inward.s_per_byte, outward.s_per_byte) / 2,
    )
    three_steps = [either, LinearCost(alpha * (2 + min(inward.messages, outward.messages)), 0.0)]
    more_steps = [LinearCost(alpha * _min_gossip_messages(capacity), 0.0)]
    cases = zip((2, 3, 4), (two_steps, three_steps, more_steps))
    return [[*lines, LinearCost(steps * alpha, s_per_byte), distance_bound] for steps, lines in cases]


def _bounds_of_halves(capacity: LinkCapacity, collective: str) -> List[List[LinearCost]]:
    """Return the lower bounds for half an allreduce with 1 step, and with more steps.

    ``collective``: reduce_scatter or all_gather. In a single step, owners receive chunks from all
    other ranks, or send chunks to them. Each further step multiplies the number of contributions
    that a rank holds, or the number of ranks that hold a chunk.
    """
    inward = collective == REDUCE_SCATTER
    alpha = capacity.lowest_latency_s
    s_per_byte = capacity.min_busy_seconds_per_byte(both_ways=False)
    distances = capacity.shortest_latencies()
    distance_bound = LinearCost(distances.inward_radius if inward else distances.outward_radius, 0.0)
    messages = _min_growth_messages(capacity.topology.world_size, capacity.max_partners(inward))
    cases = ((1, _fan_lines(capacity.min_fan_cost(inward), alpha)), (2, [LinearCost(alpha * messages, 0.0)]))
    return [[*lines, LinearCost(steps * alpha, s_per_byte), distance_bound] for steps, lines in cases]


def _fan_lines(fan: FanCost, alpha: float) -> List[LinearCost]:
    return [LinearCost(fan.messages * alpha, 0.0), LinearCost(fan.messages_with_bytes * alpha, fan.s_per_byte)]


# --- latency by the growth of knowledge


def _min_gossip_messages(capacity: LinkCapacity) -> int:
    """Return the least number of consecutive messages after which each rank can have all data.

    The proof is in the comment "Four steps or more" above `_bounds_of_allreduces`. The first and
    the last step have at least one message each. The other messages are distributed so that the
    norm grows the most.
    """
    p = capacity.topology.world_size
    receives, sends = capacity.max_partners(True), capacity.max_partners(False)
    max_log_growth: List[float] = [0.0]  # by the number of messages: logarithm of the norm's growth

    def is_enough(first: int, last: int, between: int) -> bool:
        rows, columns = math.ceil(p / (1 + sends(last))), math.ceil(p / (1 + receives(first)))
        return max_log_growth[between] >= math.log(rows * columns) / 2 - 1e-9

    for total in count(2):
        splits = [(first, last) for first in range(1, total) for last in range(1, total - first + 1)]
        if any(is_enough(first, last, total - first - last) for first, last in splits):
            return total
        last_step_messages = range(1, len(max_log_growth) + 1)
        max_log_growth.append(
            max(math.log(_max_norm_growth(receives(m), sends(m))) + max_log_growth[-m] for m in last_step_messages)
        )
    raise AssertionError("the norm of the flow diverges")


def _max_norm_growth(received: int, sent: int) -> float:
    """Return the largest norm of I + A for a matrix A of zeros and ones.

    A has ``received`` ones in each row, and ``sent`` ones in each column.
    """
    return (math.sqrt(received * sent) + math.sqrt(received * sent + 4)) / 2


def _min_growth_messages(world_size: int, max_partners: Callable[[int], int]) -> int:
    """Return the least number of consecutive messages until one rank holds all contributions.

    A step with m messages on a link multiplies the contributions by up to 1 + ``max_partners(m)``.
    The number of ranks that hold a chunk grows in the same way.
    """
    holds = [1]
    while holds[-1] < world_size:
        holds.append(max(holds[-m] * (1 + max_partners(m)) for m in range(1, len(holds) + 1)))
    return len(holds) - 1


# --- capacity of links, which bounds bytes and messages of all schedules

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

# `capacity_arrays` computes the same bounds with NumPy, which is faster for more devices. Both give
# bit-identical results. Without NumPy, as in a browser, this module computes all bounds.
MAX_PLAIN_RANKS = 16


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


def _make_capacity(topology: Topology) -> LinkCapacity:
    """Return the capacity of a topology's links, computed in the faster way."""
    if topology.world_size <= MAX_PLAIN_RANKS or not is_numpy_installed():
        return LinkCapacity(topology)
    from gluonlab.collectives.capacity_arrays import ArrayLinkCapacity

    return ArrayLinkCapacity(topology)


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
