"""What the links of a topology can carry: the bytes and the messages that bound all schedules."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any, Callable, Iterator, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.collectives.links import Topology
from gluonlab.collectives.wires import NONE, wires_of

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
        wires = wires_of(topology.routes, self._src, self._dst)
        self._speeds, self._passed = wires.bytes_per_s, _each_once(wires.passed)
        self.latency_s = np.zeros((p, p))
        self.latency_s[self._src, self._dst] = wires.latency_s

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
        there = routes != NONE
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
        most = np.where(routes != NONE, uses[routes], -1).argmax(axis=1)
        return routes[np.arange(len(routes)), most]

    def _uses(self, routes: Any) -> Any:
        """How many of the routes pass each link, (links,)."""
        return np.bincount(routes[routes != NONE], minlength=len(self._speeds))

    def _spokes(self, inward: bool) -> Iterator[Any]:
        """The routes into (out of) each rank."""
        side = self._dst if inward else self._src
        return (self._passed[rows] for rows in _by_value(side, self.topology.world_size))


def _each_once(passed: Any) -> Any:
    """The same table without links that a route has passed before."""
    for later in range(1, passed.shape[1]):
        again = (passed[:, :later] == passed[:, later : later + 1]).any(axis=1)
        passed[again, later] = NONE
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
