"""Floors: what no valid schedule can undercut on a topology, in the price of `cost`.

Three things cost time: latency, bytes on links, additions. A step in which something is sent takes
at least the lowest latency alpha, and in addition the bytes of its busiest link by that link's
speed, because a link with bytes carries a message; then come its additions. So T steps cost T alpha
+ B n + G n at least, for the B of `Capacity.seconds_per_byte` and the G of `additions`. Schedules
of few steps are bounded apart, since they need many messages at once: the floor is the minimum over
the number of steps of the maximum over all that is proved for it.

**Two steps.** Take one chunk. Ranks read in the last step are not written in it, so they, or one of
them, held the sum before: some rank v was complete after the first step, in which every cell held
one contribution alone. So v received from all others at once: a fan in. It was written, and hence
not read; its contribution lay in its own cell only, and the last step fans out from v to all.

**Three steps.** Let rank v be the first that is complete. If that is after its chunk's first step,
this is a fan in. Otherwise it is after the second. In the first step no rank is overwritten by a
copy: its contribution would be lost. Nor is v read in it: a rank q that adds what it reads of v
would hold its own contribution together with v's, nowhere else, and v could not have one without
counting its own twice. In the second step v is written. So v's contribution has not left its cell,
and the third step fans out from v to all.

**Four steps or more.** Each rank's knowledge is a row of 0 and 1, for whose contributions it holds
a part of: the identity at first, all ones at the end, of spectral norm p. In a step a cell is read
or written. So knowledge grows by a factor I + A, where A leads from ranks that are read to others,
and the norm by (s + sqrt(s s + 4)) / 2 at most, s the norm of A: at most the root of the messages
that one rank can receive times those that it can send. Ranks not written in the last step know all
before it, and what was not read in the first had to travel afterwards: between these two steps the
matrix holds a block of ones that large, whose norm is the root of its area. m messages on a link
cost m alpha. (For one message a step and rank this is the bound for gossip by telegraph of Even,
Monien, "On the number of rounds necessary to disseminate information", 1989.)

**Tight.** Two devices with links of their own each way: exactly, for every size. Four behind a
switch: exactly, where latency rules. Bytes and additions are those of the ring on a switch, and of
bidirectional_ring on a ring of links. On the hybrid cube mesh the floor is four messages and all
its links' bytes. It is not known whether eight ranks behind a switch can do
with 5 messages one after the other; the algorithms here take 6. Between hosts latency is a weak
bound: it counts one message of the network, not one for every step with bytes on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, combinations, count
from typing import Any, Callable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.collectives.cost_model import NO_LINK, route_table
from gluonlab.collectives.schedule import ALL_GATHER, ALLREDUCE, COLLECTIVES, REDUCE_SCATTER
from gluonlab.collectives.topology import INFINITE, Topology
from gluonlab.errors import ScheduleError, unknown


class LinearCost(NamedTuple):
    """``fixed_s`` + size * ``s_per_byte`` seconds."""

    fixed_s: float
    s_per_byte: float

    def then(self, other: LinearCost) -> LinearCost:
        """Both, one after the other."""
        return LinearCost(self.fixed_s + other.fixed_s, self.s_per_byte + other.s_per_byte)


@dataclass(frozen=True)
class Floor:
    """The least that a collective can be priced at, by its size.

    ``cases``: for each number of steps the lines below which it cannot fall; a schedule belongs to
    one case, and is above all of its lines.
    """

    collective: str
    topology: str
    cases: Tuple[Tuple[LinearCost, ...], ...]

    def seconds(self, size_bytes: float) -> float:
        """For a buffer of ``size_bytes`` on every device."""
        return min(
            max(line.fixed_s + line.s_per_byte * size_bytes for line in lines)
            for lines in self.cases
        )


def floor_of(topology: Topology, collective: str = ALLREDUCE) -> Floor:
    """The floor under every schedule of ``collective`` that `check` accepts, whoever owns chunks.

    Raises ScheduleError for another collective.
    """
    if collective not in COLLECTIVES:
        raise ScheduleError(unknown("collective", collective, COLLECTIVES))
    if topology.world_size == 1:
        return Floor(collective, topology.name, ((LinearCost(0.0, 0.0),),))
    capacity = Capacity(topology)
    cases = _allreduce(capacity) if collective == ALLREDUCE else _half(capacity, collective)
    adding = LinearCost(0.0, 0.0 if collective == ALL_GATHER else additions(topology))
    return Floor(
        collective,
        topology.name,
        tuple(tuple(line.then(adding) for line in lines) for lines in cases),
    )


def additions(topology: Topology) -> float:
    """Seconds a byte of a sum over all ranks.

    A sum of p contributions is a tree with p - 1 inner nodes, each of which some rank computes, so
    (p - 1) n bytes are added. Where devices share a memory, the additions of a step into one chunk
    are one, but each chunk is added to in one step at least: n bytes. In each step the busiest
    device adds at least the p-th part, and all together are not faster than that memory.
    """
    p, shared = topology.world_size, topology.shared_reduce_bytes_per_s
    times = 1 if shared < INFINITE else p - 1
    return times * max(1 / (p * topology.reduce_bytes_per_s), 1 / shared)


def _allreduce(capacity: Capacity) -> List[List[LinearCost]]:
    alpha = _lowest_latency(capacity)
    n_bytes = capacity.seconds_per_byte(both_ways=True)
    inward, outward = capacity.fans(True), capacity.fans(False)
    # A contribution needs one step for each hop to its farthest reader. Also: the first complete
    # rank has heard of all others, and one that it heard of in its last step is not complete
    # before one more.
    distances = _distances(capacity)
    farthest = max(float(distances.max()), _radius(distances, inward=True) + alpha)
    apart = LinearCost(farthest, 0.0)
    two = [a.then(b) for a in _lines(inward, alpha) for b in _lines(outward, alpha)]
    # A chunk fans in or out: of the bytes at least half in one of the two ways, in each step.
    either = LinearCost(
        alpha * (2 + min(inward.messages_with_bytes, outward.messages_with_bytes)),
        min(inward.s_per_byte, outward.s_per_byte) / 2,
    )
    three = [either, LinearCost(alpha * (2 + min(inward.messages, outward.messages)), 0.0)]
    more = [LinearCost(alpha * _gossip(capacity), 0.0)]
    cases = zip((2, 3, 4), (two, three, more))
    return [[*lines, LinearCost(steps * alpha, n_bytes), apart] for steps, lines in cases]


def _half(capacity: Capacity, collective: str) -> List[List[LinearCost]]:
    """One step is a fan; each further one multiplies what a rank can hold, or who can hold it."""
    inward = collective == REDUCE_SCATTER
    alpha = _lowest_latency(capacity)
    n_bytes = capacity.seconds_per_byte(both_ways=False)
    apart = LinearCost(_radius(_distances(capacity), inward), 0.0)
    messages = _growth(capacity.topology.world_size, capacity.most_messages(inward))
    cases = (1, _lines(capacity.fans(inward), alpha)), (2, [LinearCost(alpha * messages, 0.0)])
    return [[*lines, LinearCost(steps * alpha, n_bytes), apart] for steps, lines in cases]


def _lines(fan: Fan, alpha: float) -> List[LinearCost]:
    return [
        LinearCost(fan.messages * alpha, 0.0),
        LinearCost(fan.messages_with_bytes * alpha, fan.s_per_byte),
    ]


def _lowest_latency(capacity: Capacity) -> float:
    return float(_between(capacity).min())


def _between(capacity: Capacity) -> Any:
    """The latencies from each rank to each other one."""
    return capacity.latency_s[~np.eye(len(capacity.latency_s), dtype=bool)]


# --- latency by distance


def _radius(distances: Any, inward: bool) -> float:
    """The distance to (inward), or from, the rank that is nearest to all."""
    return float(distances.max(axis=0 if inward else 1).min())


def _distances(capacity: Capacity) -> Any:
    """[src, dst]: the least sum of latencies over any ranks in between, by Floyd's algorithm."""
    distances = capacity.latency_s.copy()
    if np.ptp(_between(capacity)) > 0:
        for via in range(len(distances)):
            np.minimum(distances, distances[:, via, None] + distances[via], out=distances)
    return distances


# --- latency by the growth of knowledge


def _gossip(capacity: Capacity) -> int:
    """The least number of messages, one after the other, in which all ranks can know all.

    See above. The first step has at least one message, the last another; the rest is shared out so
    that the norm grows most.
    """
    p = capacity.topology.world_size
    receives, sends = capacity.most_messages(True), capacity.most_messages(False)
    most: List[float] = [0.0]  # the logarithm of the norm's growth with so many messages

    def enough(first: int, last: int, between: int) -> bool:
        rows, columns = math.ceil(p / (1 + sends(last))), math.ceil(p / (1 + receives(first)))
        return most[between] >= math.log(rows * columns) / 2 - 1e-9

    for total in count(2):
        splits = [
            (first, last) for first in range(1, total) for last in range(1, total - first + 1)
        ]
        if any(enough(first, last, total - first - last) for first, last in splits):
            return total
        grown = range(1, len(most) + 1)  # with so many messages in its last step
        most.append(max(math.log(_norm(receives(m), sends(m))) + most[-m] for m in grown))
    raise AssertionError("the norm grows without end")


def _norm(received: int, sent: int) -> float:
    """The largest norm of I + A, A with so many ones in rows and columns, in disjoint places."""
    return (math.sqrt(received * sent) + math.sqrt(received * sent + 4)) / 2


def _growth(world_size: int, most: Callable[[int], int]) -> int:
    """The least messages one after the other until one holds what all ``world_size`` ranks sent.

    A step with m on a link multiplies what one can hold by 1 + ``most(m)``. Outwards, the same.
    """
    holds = [1]
    while holds[-1] < world_size:
        holds.append(max(holds[-m] * (1 + most(m)) for m in range(1, len(holds) + 1)))
    return len(holds) - 1


# --- what the links can carry: the bytes and the messages that bound all schedules

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


class Capacity:
    """The links of all routes of a topology of two devices or more.

    ``latency_s``: [src, dst], 0 from a rank to itself.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology, p = topology, topology.world_size
        self._src, self._dst = np.nonzero(~np.eye(p, dtype=bool))
        table = route_table(topology.routes, self._src, self._dst)
        self._speeds, self._passed = table.bytes_per_s, _each_once(table.passed)
        self.latency_s = np.zeros((p, p))
        self.latency_s[self._src, self._dst] = table.latency_s

    def fans(self, inward: bool) -> Fan:
        """The cheapest fans into, or out of, ranks that share all chunks in the best way.

        With the share x of the bytes, rank v's link l is busy for x c / bandwidth a byte, if c of
        v's p - 1 routes pass it. Shares add up to 1, so for some rank that takes part, x times the
        largest c / bandwidth is at least 1 / the sum of all inverses.
        """
        limits, most = [], []
        for routes in self._spokes(inward):
            uses = self._uses(routes)
            busy = uses / self._speeds
            limit = np.where(busy == busy.max(), uses, 0).argmax()
            limits.append((int(uses[limit]), self._speeds[limit] / uses[limit]))
            most.append(int(uses.max()))
        messages, speeds = zip(*limits)
        return Fan(min(most), min(messages), float(1 / sum(speeds)))

    def most_messages(self, inward: bool) -> Callable[[int], int]:
        """f(m): the most ranks that one rank can receive from (send to) with m messages on a link.

        Each route is counted on one of its links, the one that most of the rank's routes pass.
        """
        groups = set()
        for routes in self._spokes(inward):
            counted = np.bincount(self._most_used(routes, self._uses(routes)))
            groups.add(tuple(np.sort(counted[counted > 0]).tolist()))
        return lambda m: max(sum(min(m, size) for size in sizes) for sizes in groups)

    def seconds_per_byte(self, both_ways: bool) -> float:
        """Seconds a byte of the buffer that some link is busy, of any allreduce or of a half of it.

        Share the ranks out into k parts. Of every chunk at least 2 (k-1) transfers go from part to
        part: until the first part knows of all others, each of those has sent once; afterwards each
        of them must receive once (a half needs one of the two). Every such transfer passes one of
        any links that cover the routes between parts. So 2 (k-1) n bytes pass links that carry
        their sum of bytes/s, and one of these links is busy at least for the quotient. An allreduce
        also sends every chunk out of every part, and into it.
        """
        ways = 2 if both_ways else 1
        return max(self._of_parts(parts, ways) for parts in _partitions(self.topology))

    def _of_parts(self, parts: Sequence[Part], ways: int) -> float:
        home = np.zeros(self.topology.world_size, np.int64)
        for number, part in enumerate(parts):
            home[list(part)] = number
        out, into = home[self._src], home[self._dst]
        between = out != into
        routes = self._passed[between]
        together = ways * (len(parts) - 1) / self._narrowest(routes)
        if ways == 1:
            return together
        sides = (_by_value(side[between], len(parts)) for side in (out, into))
        return max(together, *(1 / self._narrowest(routes[rows]) for rows in chain(*sides)))

    def _narrowest(self, routes: Any) -> float:
        """Bytes/s of links of which every route passes one: the least of some covers.

        Any cover gives a bound. The first links of all routes, their last ones, the ones that most
        routes pass, and the slowest ones are tried.
        """
        uses = self._uses(routes)
        there = routes != NO_LINK
        rows, last = np.arange(len(routes)), routes.shape[1] - 1 - there[:, ::-1].argmax(axis=1)
        speeds = np.where(there, self._speeds[routes], np.inf)
        slowest = there & (speeds == speeds.min(axis=1, keepdims=True))
        covers = (
            routes[rows, there.argmax(axis=1)],
            routes[rows, last],
            self._most_used(routes, uses),
            routes[rows, np.where(slowest, uses[routes], -1).argmax(axis=1)],
        )
        return min(float(self._speeds[np.unique(cover)].sum()) for cover in covers)

    def _most_used(self, routes: Any, uses: Any) -> Any:
        """For each route the link of its that most routes pass, (routes,)."""
        most = np.where(routes != NO_LINK, uses[routes], -1).argmax(axis=1)
        return routes[np.arange(len(routes)), most]

    def _uses(self, routes: Any) -> Any:
        """How many of the routes pass each link, (links,)."""
        return np.bincount(routes[routes != NO_LINK], minlength=len(self._speeds))

    def _spokes(self, inward: bool) -> Iterator[Any]:
        """The routes into (out of) each rank."""
        side = self._dst if inward else self._src
        return (self._passed[rows] for rows in _by_value(side, self.topology.world_size))


def _each_once(passed: Any) -> Any:
    """The same table without links that a route has passed before."""
    for later in range(1, passed.shape[1]):
        again = (passed[:, :later] == passed[:, later : later + 1]).any(axis=1)
        passed[again, later] = NO_LINK
    return passed


def _by_value(column: Any, count: int) -> Sequence[Any]:
    """The rows in which a column of numbers below ``count`` is 0, 1, ..."""
    ends = np.cumsum(np.bincount(column, minlength=count))
    return np.split(np.argsort(column, kind="stable"), ends[:-1])


def _partitions(topology: Topology) -> Iterator[Sequence[Part]]:
    """Single ranks, the topology's own groups and hosts, ranks that share links, and small cuts."""
    p = topology.world_size
    yield [(rank,) for rank in range(p)]
    several = [topology.groups, topology.hosts]
    for parts in several[: 1 + (topology.groups != topology.hosts)]:
        if len(parts) > 1 and sorted(rank for part in parts for rank in part) == [*range(p)]:
            yield parts
    if p <= MOST_SUBSETS_OF:
        for size in range(1, p // 2 + 1):
            for part in combinations(range(p), size):
                yield [part, tuple(rank for rank in range(p) if rank not in part)]
