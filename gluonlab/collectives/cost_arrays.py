"""Compute the cost of schedules and the table of routes with NumPy, for millions of transfers.

The results are bit-identical to the results of `gluonlab.collectives.cost_model`, which is faster
for small schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import numpy as np

from gluonlab.collectives.schedule import ADD, Schedule
from gluonlab.collectives.topology import INFINITE, Link, Pair, PortRoutes, Route, Topology

# Steps are computed in batches, whose arrays have at most so many entries (about 100 MB). Entries
# are links times steps, or transfers.
MAX_BATCH_ENTRIES = 2**20

# --- schedules as arrays

Column = Any  # an array of one dimension


@dataclass(frozen=True)
class ScheduleArrays:
    """A schedule as arrays with one entry for each transfer, in the order of the schedule.

    ``step``, ``src``, ``dst``, ``chunk``: integers, shape (transfers,). ``adds``: whether the
    transfer is an addition, shape (transfers,). ``starts``: the index of the first transfer of each
    step, followed by the number of transfers, shape (steps + 1,).
    """

    step: Column
    src: Column
    dst: Column
    chunk: Column
    adds: Column
    starts: Column


def schedule_to_arrays(schedule: Schedule) -> ScheduleArrays:
    """Convert a schedule to arrays.

    Raises TypeError for ranks or chunks that int64 cannot represent.
    """

    def to_column(values: List[int]) -> Column:
        """Return ranks or chunks as an int64 array. Raises TypeError for other values."""
        column = np.array(values) if values else np.zeros(0, np.int64)
        if column.ndim != 1 or not np.can_cast(column.dtype, np.int64):
            raise TypeError("ranks and chunks must be whole numbers")
        return column.astype(np.int64, copy=False)

    transfers = [transfer for step in schedule.steps for transfer in step]
    lengths = [len(step) for step in schedule.steps]
    src, dst, chunk = (to_column(list(map(itemgetter(field), transfers))) for field in range(3))
    adds = np.array([op == ADD for op in map(itemgetter(3), transfers)], bool)
    step = np.repeat(np.arange(len(lengths)), lengths)
    return ScheduleArrays(step, src, dst, chunk, adds, np.cumsum([0, *lengths]))


# --- the routes between devices

NO_LINK = -1  # fills the rows of routes with fewer links than others


@dataclass(frozen=True)
class RouteTable:
    """The routes between some pairs of devices, as a table of link numbers.

    ``links``: each link once. ``bytes_per_s``: the speed of each link, shape (links,).
    ``link_numbers``: for each pair, the indices of its route's links, padded with NO_LINK, shape
    (pairs, length of the longest route). ``latency_s``: the latency of each route, shape (pairs,).
    """

    links: Tuple[Link, ...]
    bytes_per_s: Any
    link_numbers: Any
    latency_s: Any


def make_route_table(routes: Mapping[Pair, Route], src: Any, dst: Any) -> RouteTable:
    """Return a table of the routes from ``src[i]`` to ``dst[i]`` for all i.

    ``src`` and ``dst`` are arrays of shape (pairs,).

    Raises KeyError for pairs without a route.
    """
    numbers: Dict[Link, int] = {}

    def number_links(link_sequences: Iterable[Sequence[Link]]) -> Any:
        """Return the links as rows of numbers, padded with NO_LINK to the longest sequence."""
        rows = [[numbers.setdefault(link, len(numbers)) for link in sequence] for sequence in link_sequences]
        longest = max(map(len, rows), default=0)
        padded = [row + [NO_LINK] * (longest - len(row)) for row in rows]
        return np.array(padded, np.int64).reshape(len(rows), longest)

    pairs = list(zip(src.tolist(), dst.tolist()))
    if isinstance(routes, PortRoutes):
        out, into = number_links(routes.out_links), number_links(routes.in_links)
        link_numbers, latency_s = np.hstack([out[src], into[dst]]), np.full(len(src), routes.latency_s)
        special_rows = [row for row, pair in enumerate(pairs) if pair in routes.special_routes]
    else:
        link_numbers, latency_s = np.zeros((len(src), 0), np.int64), np.zeros(len(src))
        special_rows = [*range(len(pairs))]
    special_routes = [routes[pairs[row]] for row in special_rows]
    special_links = number_links(route.links for route in special_routes)
    missing = max(0, special_links.shape[1] - link_numbers.shape[1])
    link_numbers = np.pad(link_numbers, ((0, 0), (0, missing)), constant_values=NO_LINK)
    link_numbers[special_rows] = NO_LINK
    link_numbers[special_rows, : special_links.shape[1]] = special_links
    latency_s[special_rows] = [route.latency_s for route in special_routes]
    bytes_per_s = np.array([link.bytes_per_s for link in numbers], float)
    return RouteTable(tuple(numbers), bytes_per_s, link_numbers, latency_s)


# --- the load of links and devices in each step


StepValues = Tuple[float, float, str]  # the fields of `cost_model.StepCost`


def compute_step_costs(schedule: Schedule, topology: Topology, sizes: Sequence[float]) -> List[List[StepValues]]:
    """Return the cost of each step, for each of ``sizes``."""
    steps: List[List[StepValues]] = [[] for _ in sizes]
    for step_loads in _count_loads(schedule, topology):
        for steps_of_size, size in zip(steps, sizes):
            steps_of_size += step_loads.step_costs(topology, size / schedule.chunks)
    return steps


@dataclass(frozen=True)
class _BatchLoads:
    """The messages and additions in ``steps`` consecutive steps.

    A message is everything that one device sends to another in a step.

    Attributes:
        steps: the number of steps.
        route_table: the table of routes.
        step: the step of each message, counted from the first of these steps; shape (messages,).
        pair: the row of each message's route in the table; shape (messages,).
        chunks: the number of chunks in each message; shape (messages,).
        max_additions: the number of chunks that the busiest device adds in each step; shape
            (steps,).
        total_additions: the number of chunks that all devices add in each step; shape (steps,). If
            devices share a memory, several additions into one chunk in a step count as one.
    """

    steps: int
    route_table: RouteTable
    step: Any
    pair: Any
    chunks: Any
    max_additions: Any
    total_additions: Any

    def step_costs(self, topology: Topology, chunk_bytes: float) -> Iterator[StepValues]:
        """Return the predicted time of each step for chunks of ``chunk_bytes``."""
        table, links = self.route_table, len(self.route_table.links)
        link_numbers = table.link_numbers[self.pair]  # (messages, longest)
        is_link = link_numbers != NO_LINK
        message_bytes = (self.chunks * chunk_bytes)[:, None]
        link_s = table.latency_s[self.pair][:, None] + message_bytes / table.bytes_per_s[link_numbers]
        cell = ((self.step * links)[:, None] + link_numbers)[is_link]  # (step, link) as a number
        busy_s = np.bincount(cell, link_s[is_link], self.steps * links)
        longest_s = busy_s.reshape(self.steps, links).max(axis=1, initial=0.0)
        busiest = cell[busy_s[cell] == longest_s[cell // links]] if links else cell
        names = [""] * self.steps
        for step, first in zip(*np.unique(busiest // max(1, links), return_index=True)):
            names[step] = table.links[busiest[first] % links].name  # the first of equal ones
        reduce_s = np.maximum(
            self.max_additions * chunk_bytes / topology.reduce_bytes_per_s,
            self.total_additions * chunk_bytes / topology.shared_reduce_bytes_per_s,
        )
        return zip(longest_s.tolist(), reduce_s.tolist(), names)


def _count_loads(schedule: Schedule, topology: Topology) -> Iterator[_BatchLoads]:
    """Yield the messages and additions of all steps, in order, one batch of steps at a time."""
    arrays, devices = schedule_to_arrays(schedule), schedule.world_size
    pairs = np.zeros(devices * devices, bool)
    pairs[arrays.src * devices + arrays.dst] = True
    used_pairs = np.flatnonzero(pairs)
    table = make_route_table(topology.routes, *np.divmod(used_pairs, devices))
    busiest_step = int(np.diff(arrays.starts).max(initial=1))
    batch_steps = max(1, MAX_BATCH_ENTRIES // max(busiest_step, len(table.links), devices))
    for first_step in range(0, len(schedule.steps), batch_steps):
        steps = min(batch_steps, len(schedule.steps) - first_step)
        rows = slice(arrays.starts[first_step], arrays.starts[first_step + steps])
        step = arrays.step[rows] - first_step
        transfer_pair = np.searchsorted(used_pairs, arrays.src[rows] * devices + arrays.dst[rows])
        messages, chunks = _count_in_order(step * len(used_pairs) + transfer_pair)
        adds = np.flatnonzero(arrays.adds[rows]) + rows.start
        if topology.shared_reduce_bytes_per_s < INFINITE:
            adds = _first_writes(arrays, adds, schedule.chunks)
        cell = (arrays.step[adds] - first_step) * devices + arrays.dst[adds]
        added = np.bincount(cell, minlength=steps * devices).reshape(-1, devices)
        max_additions, total_additions = added.max(axis=1), added.sum(axis=1)
        message_step, pair_row = np.divmod(messages, len(used_pairs))
        yield _BatchLoads(steps, table, message_step, pair_row, chunks, max_additions, total_additions)


def _count_in_order(values: Any) -> Tuple[Any, Any]:
    """Return the distinct values in order of first occurrence, and their counts."""
    distinct, first, counts = np.unique(values, return_index=True, return_counts=True)
    order = np.argsort(first)
    return distinct[order], counts[order]


def _first_writes(arrays: ScheduleArrays, rows: Any, chunks: int) -> Any:
    """Keep the first of the ``rows`` that write to the same chunk of a rank in the same step."""
    cells = np.stack([arrays.step[rows], arrays.dst[rows] * chunks + arrays.chunk[rows]])
    return rows[np.unique(cells, axis=1, return_index=True)[1]]
