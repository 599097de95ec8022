"""Predicts how long schedules take on topologies, using the alpha-beta model with contention.

`estimate_cost` predicts the time of a schedule. `find_best_order` compares predicted times to choose a
device for each rank, and `select_cheapest` compares predicted times to choose schedules. `traffic`
counts bytes.

Sources: Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2" (1994), for
latency and bandwidth; Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005), section 3, for reductions.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.collectives.schedule import ALLREDUCE, IS_ADD, Schedule, ScheduleArrays, schedule_to_arrays
from gluonlab.collectives.topology import INFINITE, Link, Pair, PortRoutes, Route, Topology
from gluonlab.errors import ScheduleError

# The model: all transfers from one device to another in a step are one message. A message occupies
# each link of its route for the route's latency plus bytes / bandwidth. Messages on one link follow
# each other. A step takes the time of its busiest link, plus the time of the device with the most
# additions. Transfers and additions of a step do not overlap. If devices share a memory, several
# additions into one chunk in a step count as one, as in the executor on CPU devices.
#
# The model has a barrier between steps, but the executor has none. So a price is an upper bound of
# the time that the topology allows. A chunk counts as size / chunks bytes, although real chunks may
# be one element longer or shorter.

# Steps are computed in batches, whose arrays have at most so many entries (about 100 MB). Entries
# are links times steps, or transfers.
MAX_BATCH_ENTRIES = 2**20
COST_TOLERANCE = 1e-9  # relative: prices that differ by less are equal up to rounding
# the sizes at which schedules are compared: 1 B to 4 GiB
SIZES = tuple(2**power for power in range(33))


@dataclass(frozen=True)
class StepCost:
    """The predicted time of a step: how long its busiest link is busy, and its additions take.

    ``bottleneck``: the name of the busiest link; empty for an empty step.
    """

    transfer_s: float
    reduce_s: float
    bottleneck: str

    @property
    def seconds(self) -> float:
        """Return the time of the step: the transfers, followed by the additions."""
        return self.transfer_s + self.reduce_s


@dataclass(frozen=True)
class ScheduleCost:
    """The predicted time of a schedule for a buffer of ``size_bytes`` on each device."""

    schedule: str
    topology: str
    collective: str
    world_size: int
    size_bytes: float
    steps: Tuple[StepCost, ...]

    @property
    def seconds(self) -> float:
        """Return how many seconds all steps take together."""
        return math.fsum(step.seconds for step in self.steps)

    @property
    def algbw(self) -> float:
        """Return size / time in bytes/s, as nccl-tests defines it; infinite for a time of 0."""
        return algbw(self.size_bytes, self.seconds)

    @property
    def busbw(self) -> float:
        """Return `algbw` times `bus_factor`, in bytes/s.

        The result is comparable with the speed of the links.
        """
        factor = bus_factor(self.collective, self.world_size)
        return self.algbw * factor if factor else 0.0


def estimate_cost(schedule: Schedule, topology: Topology, size_bytes: float) -> ScheduleCost:
    """Return the predicted time of ``schedule`` on ``topology``.

    Args:
        schedule: the schedule; its rank r is device r.
        topology: the topology, which must have as many devices as the schedule has ranks.
        size_bytes: the size of each rank's buffer, in bytes.

    Returns:
        The predicted time, for each step and in total.

    Raises:
        ScheduleError: for a topology with a different number of devices, and for sizes below 0.
    """
    return estimate_costs(schedule, topology, [size_bytes])[0]


def estimate_costs(schedule: Schedule, topology: Topology, sizes: Sequence[float]) -> List[ScheduleCost]:
    """Return a `ScheduleCost` for each of ``sizes``.

    This is faster than calling `estimate_cost` for each size.
    """
    if schedule.world_size != topology.world_size:
        raise ScheduleError(
            f"{schedule.name} has {schedule.world_size} ranks, but {topology.name} has "
            f"{topology.world_size} devices: choose equal numbers, for example with topology.subset(n)"
        )
    for size in sizes:
        if not 0 <= size < math.inf:
            raise ScheduleError(f"size={size}: must be a finite number of bytes, 0 or more")
    steps: List[List[StepCost]] = [[] for _ in sizes]
    for step_loads in _count_loads(schedule, topology):
        for steps_of_size, size in zip(steps, sizes):
            steps_of_size += step_loads.step_costs(topology, size / schedule.chunks)
    identity = schedule.name, topology.name, schedule.collective, schedule.world_size
    return [ScheduleCost(*identity, size, tuple(steps_of_size)) for size, steps_of_size in zip(sizes, steps)]


class Traffic(NamedTuple):
    """The bytes that a device sends and receives, for additions and copies."""

    sent: float
    received: float


def traffic(schedule: Schedule, size_bytes: float) -> List[Traffic]:
    """Return how many bytes each device sends and receives in all steps together.

    ``size_bytes``: the size of each device's buffer.
    """
    sent = Counter(transfer.src for step in schedule.steps for transfer in step)
    received = Counter(transfer.dst for step in schedule.steps for transfer in step)
    chunk_bytes = size_bytes / schedule.chunks
    return [Traffic(sent[rank] * chunk_bytes, received[rank] * chunk_bytes) for rank in range(schedule.world_size)]


def algbw(size_bytes: float, seconds: float) -> float:
    """Return buffer size / time in bytes/s, as nccl-tests defines it (doc/PERFORMANCE.md)."""
    if size_bytes == 0:
        return 0.0
    return size_bytes / seconds if seconds else math.inf


def bus_factor(collective: str, world_size: int) -> float:
    """Return busbw / algbw. This factor makes algbw comparable with the speed of the links.

    The factor is 2 (n-1) / n for an allreduce over n ranks, and (n-1) / n for reduce_scatter and
    all_gather (nccl-tests, doc/PERFORMANCE.md). The size in algbw is the size of the whole buffer.
    """
    return (2 if collective == ALLREDUCE else 1) * (world_size - 1) / world_size


# --- the load of links and devices in each step, computed with NumPy for millions of transfers

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


@dataclass(frozen=True)
class _StepLoads:
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

    def step_costs(self, topology: Topology, chunk_bytes: float) -> Iterator[StepCost]:
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
        return map(StepCost, longest_s.tolist(), reduce_s.tolist(), names)


def _count_loads(schedule: Schedule, topology: Topology) -> Iterator[_StepLoads]:
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
        adds = np.flatnonzero(arrays.op[rows] == IS_ADD) + rows.start
        if topology.shared_reduce_bytes_per_s < INFINITE:
            adds = _first_writes(arrays, adds, schedule.chunks)
        cell = (arrays.step[adds] - first_step) * devices + arrays.dst[adds]
        added = np.bincount(cell, minlength=steps * devices).reshape(-1, devices)
        max_additions, total_additions = added.max(axis=1), added.sum(axis=1)
        message_step, pair_row = np.divmod(messages, len(used_pairs))
        yield _StepLoads(steps, table, message_step, pair_row, chunks, max_additions, total_additions)


def _count_in_order(values: Any) -> Tuple[Any, Any]:
    """Return the distinct values in order of first occurrence, and their counts."""
    distinct, first, counts = np.unique(values, return_index=True, return_counts=True)
    order = np.argsort(first)
    return distinct[order], counts[order]


def _first_writes(arrays: ScheduleArrays, rows: Any, chunks: int) -> Any:
    """Keep the first of the ``rows`` that write to the same chunk of a rank in the same step."""
    cells = np.stack([arrays.step[rows], arrays.dst[rows] * chunks + arrays.chunk[rows]])
    return rows[np.unique(cells, axis=1, return_index=True)[1]]


# --- the cheapest of several schedules


def select_cheapest(schedules: Sequence[Schedule], topology: Topology) -> List[Schedule]:
    """Return the schedules that are the cheapest for at least one of `SIZES`, in the given order.

    If several schedules have the same predicted time, the first schedule is chosen, so the choice
    is reproducible.
    """
    seconds_by_schedule = [
        [cost.seconds for cost in estimate_costs(schedule, topology, SIZES)] for schedule in schedules
    ]
    best = {lowest_cost_index(costs) for costs in zip(*seconds_by_schedule)}
    return [schedules[number] for number in sorted(best)]


def lowest_cost_index(costs: Sequence[float]) -> int:
    """Return the index of the lowest cost.

    If several costs are equal up to rounding, return the first index.
    """
    lowest = min(costs)
    return next(number for number, cost in enumerate(costs) if cost <= lowest * (1 + COST_TOLERANCE))


# --- the assignment of devices to ranks

ORDER_BYTES = 25 * 2**20  # the size at which orders are compared: a bucket of gradients on GPUs
# An order must not cost more than the given order at any of these sizes, from 1 KiB to 1 GiB.
ORDER_SIZES = tuple(4**power * 2**10 for power in range(11))
MAX_EXCHANGED_DEVICES = 32  # about 500 possible exchanges; known machines have up to 16 devices
MAX_PRICED_ORDERS = 600  # for each start, about a second; known machines need up to 241


def find_best_order(schedule: Schedule, topology: Topology) -> List[int]:
    """Return the device order for `Schedule.placed` with the lowest predicted time found.

    The predicted times are for buffers of ORDER_BYTES.

    The order stays 0, 1, ... unless a cheaper order is found that does not cost more at any of
    ORDER_SIZES.

    The search starts from the given order and from the topology's best ring. From each start, it
    repeatedly swaps the two devices whose exchange saves the most time. The search stops when no
    exchange saves time, or after about `MAX_PRICED_ORDERS` predictions. For eight devices, the
    search makes a few hundred predictions in a few hundredths of a second. If there are several
    hosts, or more than `MAX_EXCHANGED_DEVICES` devices, no devices are exchanged, because there are
    too many pairs. The best ring already keeps hosts together.
    """
    identity = list(range(schedule.world_size))
    if isinstance(topology.routes, PortRoutes) and topology.routes.is_symmetric:
        return identity

    def cost(order: Sequence[int]) -> float:
        return estimate_cost(schedule.placed(order), topology, ORDER_BYTES).seconds

    ring = topology.ring_order()
    starts = [identity] if ring == identity else [identity, ring]
    exchangeable = len(topology.hosts) == 1 and topology.world_size <= MAX_EXCHANGED_DEVICES
    improved = [_improve_order(start, cost) for start in starts] if exchangeable else []
    best, lowest, limits = identity, math.inf, [math.inf] * len(ORDER_SIZES)
    sizes = (*ORDER_SIZES, ORDER_BYTES)
    for order in [*starts, *improved] if exchangeable or len(starts) > 1 else []:
        *costs, cost_at_order_bytes = [cost.seconds for cost in estimate_costs(schedule.placed(order), topology, sizes)]
        if order == identity:
            limits = [cost * (1 + COST_TOLERANCE) for cost in costs]
        if cost_at_order_bytes < lowest * (1 - COST_TOLERANCE) and all(map(operator.le, costs, limits)):
            best, lowest = order, cost_at_order_bytes
    return best


def _improve_order(start: Sequence[int], cost: Callable[[Sequence[int]], float]) -> List[int]:
    """Improve the order ``start`` by repeatedly exchanging two ranks.

    Each time, the two ranks whose exchange lowers ``cost`` the most are exchanged.

    The exchanges stop when no exchange lowers the cost, or after about MAX_PRICED_ORDERS
    predictions.
    """
    order, lowest = list(start), cost(start)
    exchanges = list(combinations(range(len(order)), 2))
    for _ in range(max(1, MAX_PRICED_ORDERS // max(1, len(exchanges)))):
        candidates = [_swap_ranks(order, *pair) for pair in exchanges]
        costs = [cost(other) for other in candidates]
        lowest_candidate = min(costs, default=lowest)
        if lowest_candidate >= lowest * (1 - COST_TOLERANCE):
            break
        order, lowest = candidates[costs.index(lowest_candidate)], lowest_candidate
    return order


def _swap_ranks(order: Sequence[int], one: int, other: int) -> List[int]:
    changed = list(order)
    changed[one], changed[other] = order[other], order[one]
    return changed
