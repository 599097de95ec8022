"""Compute lower bounds on the predicted time with NumPy, for topologies with many devices.

The results are bit-identical to the results of `gluonlab.collectives.link_capacity`, which is
faster for few devices and explains the bounds.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from gluonlab.collectives.cost_arrays import NO_LINK, make_route_table
from gluonlab.collectives.link_capacity import Distances, FanCost, LinkCapacity, RankSet
from gluonlab.collectives.topology import Topology


class ArrayLinkCapacity(LinkCapacity):
    """The links on the routes of a topology with many devices. Its methods use NumPy."""

    def __init__(self, topology: Topology) -> None:
        self.topology, p = topology, topology.world_size
        self._src, self._dst = np.nonzero(~np.eye(p, dtype=bool))
        table = make_route_table(topology.routes, self._src, self._dst)
        self._speeds: Any = table.bytes_per_s
        self._link_numbers: Any = _drop_repeated_links(table.link_numbers)
        self._latencies: Any = np.zeros((p, p))  # [src, dst], 0 from a rank to itself
        self._latencies[self._src, self._dst] = table.latency_s

    @property
    def lowest_latency_s(self) -> float:
        return float(self._latencies_between_ranks().min())

    def _latencies_between_ranks(self) -> Any:
        """Return the latency from each rank to every other rank."""
        return self._latencies[~np.eye(len(self._latencies), dtype=bool)]

    def shortest_latencies(self) -> Distances:
        distances = self._latencies.copy()
        if np.ptp(self._latencies_between_ranks()) > 0:
            for via in range(len(distances)):
                np.minimum(distances, distances[:, via, None] + distances[via], out=distances)
        inward, outward = (float(distances.max(axis=axis).min()) for axis in (0, 1))
        return Distances(float(distances.max()), inward, outward)

    def min_fan_cost(self, inward: bool) -> FanCost:
        byte_limits, max_messages = [], []
        for routes in self._routes_by_rank(inward):
            use_counts = self._count_uses(routes)
            busy_times = use_counts / self._speeds
            limiting_link = np.where(busy_times == busy_times.max(), use_counts, 0).argmax()
            byte_limits.append(
                (int(use_counts[limiting_link]), self._speeds[limiting_link] / use_counts[limiting_link])
            )
            max_messages.append(int(use_counts.max()))
        messages, speeds = zip(*byte_limits)
        return FanCost(min(max_messages), min(messages), float(1 / sum(speeds)))

    def max_partners(self, inward: bool) -> Callable[[int], int]:
        groups = set()
        for routes in self._routes_by_rank(inward):
            route_counts = np.bincount(self._most_used_links(routes, self._count_uses(routes)))
            groups.add(tuple(np.sort(route_counts[route_counts > 0]).tolist()))
        return lambda m: max(sum(min(m, size) for size in sizes) for sizes in groups)

    def _partition_seconds_per_byte(self, parts: Sequence[RankSet], ways: int) -> float:
        part_of_rank = np.zeros(self.topology.world_size, np.int64)
        for number, part in enumerate(parts):
            part_of_rank[list(part)] = number
        src_part, dst_part = part_of_rank[self._src], part_of_rank[self._dst]
        crosses = src_part != dst_part
        routes = self._link_numbers[crosses]
        all_parts_bound = ways * (len(parts) - 1) / self._min_cover_speed(routes)
        if ways == 1:
            return all_parts_bound
        sides = (_group_rows(side[crosses], len(parts)) for side in (src_part, dst_part))
        return max(all_parts_bound, *(1 / self._min_cover_speed(routes[rows]) for rows in chain(*sides)))

    def _min_cover_speed(self, routes: Any) -> float:
        use_counts = self._count_uses(routes)
        is_link = routes != NO_LINK
        rows, last = np.arange(len(routes)), routes.shape[1] - 1 - is_link[:, ::-1].argmax(axis=1)
        speeds = np.where(is_link, self._speeds[routes], np.inf)
        slowest = is_link & (speeds == speeds.min(axis=1, keepdims=True))
        covers = (
            routes[rows, is_link.argmax(axis=1)],
            routes[rows, last],
            self._most_used_links(routes, use_counts),
            routes[rows, np.where(slowest, use_counts[routes], -1).argmax(axis=1)],
        )
        return min(math.fsum(self._speeds[np.unique(cover)].tolist()) for cover in covers)

    def _most_used_links(self, routes: Any, use_counts: Any) -> Any:
        """Return the most used link of each route: the number of the link that most routes pass."""
        columns = np.where(routes != NO_LINK, use_counts[routes], -1).argmax(axis=1)
        return routes[np.arange(len(routes)), columns]

    def _count_uses(self, routes: Any) -> Any:
        """Return the number of routes that pass each link, as an array of shape (links,)."""
        return np.bincount(routes[routes != NO_LINK], minlength=len(self._speeds))

    def _routes_by_rank(self, inward: bool) -> Iterator[Any]:
        """Return the routes into each rank if ``inward``, else the routes out of each rank."""
        side = self._dst if inward else self._src
        return (self._link_numbers[rows] for rows in _group_rows(side, self.topology.world_size))


def _drop_repeated_links(link_numbers: Any) -> Any:
    """Write NO_LINK in place of links that a route has passed before, and return the table."""
    for column in range(1, link_numbers.shape[1]):
        is_repeated = (link_numbers[:, :column] == link_numbers[:, column : column + 1]).any(axis=1)
        link_numbers[is_repeated, column] = NO_LINK
    return link_numbers


def _group_rows(column: Any, count: int) -> Sequence[Any]:
    """Return, for each value from 0 to ``count`` - 1, the rows with this value in ``column``."""
    ends = np.cumsum(np.bincount(column, minlength=count))
    return np.split(np.argsort(column, kind="stable"), ends[:-1])
