"""What a schedule costs on a topology: the alpha-beta price, with contention.

All that one device sends another in a step is one message. A message keeps every link of its route
busy for the route's latency and for bytes / bandwidth; messages over one link come one after the
other. A step takes as long as its busiest link, and then as long as the device that has most to
add: transfers and additions of one step do not overlap in the price. Devices that share a memory
add all that a step brings to a chunk in one go, as the executor does on CPU devices where it can.

The price is that of steps with a barrier between them, and so an upper bound of what the topology
allows: the executor has no barriers, and a device that is ready early goes on. Chunks are counted
as size / chunks bytes each, not in whole elements; where the size does not divide, the real chunks
are up to one element longer or shorter.

Prices decide which device plays which rank (`best_order`), and which of several schedules are worth
having (`cheapest_for_some`).

Source of the model: Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2"
(1994), for latency and bandwidth; Thakur, Rabenseifner, Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005), section 3, with reductions.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
)

import numpy as np

from gluonlab.collectives.schedule import ALLREDUCE, IS_ADD, Schedule, ScheduleArrays, columns_of
from gluonlab.collectives.topology import INFINITE, Link, Pair, Route, Topology, Ways
from gluonlab.errors import ScheduleError

# of links in steps, and of transfers, looked at together: some 100 MB
MOST_AT_ONCE = 2**20
EQUAL = 1e-9  # relative: prices that differ by less are the same number, rounded otherwise
# what schedules are compared at, and tables are made of: 1 B to 4 GiB
SIZES = tuple(2**power for power in range(33))


@dataclass(frozen=True)
class StepPrice:
    """One step: the time of its busiest link and that link's name, and the time of its additions.

    An empty step has no link.
    """

    transfer_s: float
    reduce_s: float
    bottleneck: str

    @property
    def seconds(self) -> float:
        """Transfers, then additions."""
        return self.transfer_s + self.reduce_s


@dataclass(frozen=True)
class Price:
    """What a schedule costs for a buffer of ``size_bytes`` on each device of a topology."""

    schedule: str
    topology: str
    collective: str
    world_size: int
    size_bytes: float
    steps: Tuple[StepPrice, ...]

    @property
    def seconds(self) -> float:
        """Of all steps, one after the other."""
        return math.fsum(step.seconds for step in self.steps)

    @property
    def algbw(self) -> float:
        """bytes/s: size by time, as nccl-tests defines it; infinite if nothing was to be done."""
        return algbw(self.size_bytes, self.seconds)

    @property
    def busbw(self) -> float:
        """bytes/s: `algbw` times `bus_factor`, to be compared with the speed of the links."""
        factor = bus_factor(self.collective, self.world_size)
        return self.algbw * factor if factor else 0.0


def price(schedule: Schedule, topology: Topology, size_bytes: float) -> Price:
    """Price ``schedule`` for a buffer of ``size_bytes`` on every rank; rank r is device r.

    Raises ScheduleError for a topology of another world size, and for sizes below 0.
    """
    return prices(schedule, topology, [size_bytes])[0]


def prices(schedule: Schedule, topology: Topology, sizes: Sequence[float]) -> List[Price]:
    """`price` for each of several sizes, in less time."""
    if schedule.world_size != topology.world_size:
        raise ScheduleError(
            f"{schedule.name} has {schedule.world_size} ranks, "
            f"and {topology.name} {topology.world_size} devices: "
            "choose as many ranks as devices; topology.subset(n) has fewer devices"
        )
    for size in sizes:
        if not 0 <= size < math.inf:
            raise ScheduleError(f"a buffer of {size} bytes has no price: choose 0 or more")
    steps: List[List[StepPrice]] = [[] for _ in sizes]
    for loads in _loads_of(schedule, topology):
        for of_size, size in zip(steps, sizes):
            of_size += loads.priced(topology, size / schedule.chunks)
    what = schedule.name, topology.name, schedule.collective, schedule.world_size
    return [Price(*what, size, tuple(of_size)) for size, of_size in zip(sizes, steps)]


class Traffic(NamedTuple):
    """Bytes that a device sends and receives, additions and copies alike."""

    sent: float
    received: float


def traffic(schedule: Schedule, size_bytes: float) -> List[Traffic]:
    """The bytes that every device sends and receives in all steps, for such a buffer.

    ``size_bytes``: of the whole buffer. The busiest port has the largest figure.
    """
    sent = Counter(transfer.src for step in schedule.steps for transfer in step)
    received = Counter(transfer.dst for step in schedule.steps for transfer in step)
    chunk_bytes = size_bytes / schedule.chunks
    return [
        Traffic(sent[rank] * chunk_bytes, received[rank] * chunk_bytes)
        for rank in range(schedule.world_size)
    ]


def algbw(size_bytes: float, seconds: float) -> float:
    """bytes/s: the buffer's size by the time (nccl-tests, doc/PERFORMANCE.md)."""
    if size_bytes == 0:
        return 0.0
    return size_bytes / seconds if seconds else math.inf


def bus_factor(collective: str, world_size: int) -> float:
    """The factor from algbw to the speed of the links (nccl-tests, doc/PERFORMANCE.md).

    allreduce: 2 (n-1) / n. reduce_scatter and all_gather: (n-1) / n, of the whole buffer's size.
    """
    return (2 if collective == ALLREDUCE else 1) * (world_size - 1) / world_size


# --- how busy the steps make links and devices, counted for millions of transfers

NO_LINK = -1  # in a table of routes, where a route has fewer links than others


@dataclass(frozen=True)
class RouteTable:
    """The routes between some pairs of devices, as a table of numbered links.

    ``links``: each once. ``bytes_per_s``: theirs, (links,). ``passed``: the numbers of the links of
    every pair's route, in order, NO_LINK among them, (pairs, longest). ``latency_s``: (pairs,).
    """

    links: Tuple[Link, ...]
    bytes_per_s: Any
    passed: Any
    latency_s: Any


def route_table(routes: Mapping[Pair, Route], src: Any, dst: Any) -> RouteTable:
    """The routes from ``src`` to ``dst``, (pairs,) each. Raises KeyError for pairs without one."""
    numbers: Dict[Link, int] = {}

    def numbered(ways: Iterable[Sequence[Link]]) -> Any:
        """The numbers of the links of every way, (ways, longest); what has none gets the next."""
        rows = [[numbers.setdefault(at, len(numbers)) for at in way] for way in ways]
        longest = max(map(len, rows), default=0)
        padded = [row + [NO_LINK] * (longest - len(row)) for row in rows]
        return np.array(padded, np.int64).reshape(len(rows), longest)

    pairs = list(zip(src.tolist(), dst.tolist()))
    if isinstance(routes, Ways):
        out, into = numbered(routes.out), numbered(routes.into)
        passed, latency_s = np.hstack([out[src], into[dst]]), np.full(len(src), routes.latency_s)
        alone = [place for place, pair in enumerate(pairs) if pair in routes.near]
    else:
        passed, latency_s = np.zeros((len(src), 0), np.int64), np.zeros(len(src))
        alone = [*range(len(pairs))]
    own = [routes[pairs[place]] for place in alone]
    links = numbered(route.links for route in own)
    missing = max(0, links.shape[1] - passed.shape[1])
    passed = np.pad(passed, ((0, 0), (0, missing)), constant_values=NO_LINK)
    passed[alone] = NO_LINK
    passed[alone, : links.shape[1]] = links
    latency_s[alone] = [route.latency_s for route in own]
    speeds = np.array([link.bytes_per_s for link in numbers], float)
    return RouteTable(tuple(numbers), speeds, passed, latency_s)


@dataclass(frozen=True)
class _Loads:
    """The messages of neighbouring steps, in order, and the additions of these ``steps``.

    A message is all that one device sends another in a step. ``step``, counted from the first of
    ``steps``, ``pair``, the row of its devices in ``table``, and ``chunks``: (messages,). ``most``:
    how many chunks the device with most to add adds in each step, ``together``: how many all do,
    (steps,). Where devices share a memory, what comes to a chunk from several of them counts once.
    """

    steps: int
    table: RouteTable
    step: Any
    pair: Any
    chunks: Any
    most: Any
    together: Any

    def priced(self, topology: Topology, chunk_bytes: float) -> Iterator[StepPrice]:
        """What each step costs, for chunks of so many bytes."""
        table, links = self.table, len(self.table.links)
        passed = table.passed[self.pair]  # (messages, longest)
        there = passed != NO_LINK
        message_bytes = (self.chunks * chunk_bytes)[:, None]
        link_s = table.latency_s[self.pair][:, None] + message_bytes / table.bytes_per_s[passed]
        cell = ((self.step * links)[:, None] + passed)[there]  # a link in a step
        busy_s = np.bincount(cell, link_s[there], self.steps * links)
        longest_s = busy_s.reshape(self.steps, links).max(axis=1, initial=0.0)
        busiest = cell[busy_s[cell] == longest_s[cell // links]] if links else cell
        names = [""] * self.steps
        for step, first in zip(*np.unique(busiest // max(1, links), return_index=True)):
            names[step] = table.links[busiest[first] % links].name  # of equal ones the first
        reduce_s = np.maximum(
            self.most * chunk_bytes / topology.reduce_bytes_per_s,
            self.together * chunk_bytes / topology.shared_reduce_bytes_per_s,
        )
        return map(StepPrice, longest_s.tolist(), reduce_s.tolist(), names)


def _loads_of(schedule: Schedule, topology: Topology) -> Iterator[_Loads]:
    """Those of all steps, in order, some steps at a time."""
    columns, devices = columns_of(schedule), schedule.world_size
    pairs = np.zeros(devices * devices, bool)
    pairs[columns.src * devices + columns.dst] = True
    used = np.flatnonzero(pairs)
    table = route_table(topology.routes, *np.divmod(used, devices))
    busiest_step = int(np.diff(columns.starts).max(initial=1))
    at_once = max(1, MOST_AT_ONCE // max(busiest_step, len(table.links), devices))
    for first in range(0, len(schedule.steps), at_once):
        steps = min(at_once, len(schedule.steps) - first)
        rows = slice(columns.starts[first], columns.starts[first + steps])
        step = columns.step[rows] - first
        pair = np.searchsorted(used, columns.src[rows] * devices + columns.dst[rows])
        messages, chunks = _counted(step * len(used) + pair)
        adds = np.flatnonzero(columns.op[rows] == IS_ADD) + rows.start
        if topology.shared_reduce_bytes_per_s < INFINITE:
            adds = _first_of_each(columns, adds, schedule.chunks)
        cell = (columns.step[adds] - first) * devices + columns.dst[adds]
        added = np.bincount(cell, minlength=steps * devices).reshape(-1, devices)
        most, together = added.max(axis=1), added.sum(axis=1)
        number, place = np.divmod(messages, len(used))
        yield _Loads(steps, table, number, place, chunks, most, together)


def _counted(values: Any) -> Tuple[Any, Any]:
    """The different values in the order in which they come, and how often each does."""
    different, first, often = np.unique(values, return_index=True, return_counts=True)
    order = np.argsort(first)
    return different[order], often[order]


def _first_of_each(columns: ScheduleArrays, rows: Any, chunks: int) -> Any:
    """Of the rows that write to the same chunk of a rank in the same step, the first."""
    cells = np.stack([columns.step[rows], columns.dst[rows] * chunks + columns.chunk[rows]])
    return rows[np.unique(cells, axis=1, return_index=True)[1]]


# --- which of several schedules are the cheapest


def cheapest_for_some(known: Sequence[Schedule], topology: Topology) -> List[Schedule]:
    """Those of which each has the lowest price for some of `SIZES`, in their order.

    The first one of those with the same price counts: the same links always give the same choice.
    """
    priced = [[each.seconds for each in prices(schedule, topology, SIZES)] for schedule in known]
    best = {first_of_lowest(at_size) for at_size in zip(*priced)}
    return [known[number] for number in sorted(best)]


def first_of_lowest(costs: Sequence[float]) -> int:
    """The number of the first cost that is the lowest, but for rounding."""
    lowest = min(costs)
    return next(number for number, cost in enumerate(costs) if cost <= lowest * (1 + EQUAL))


# --- which device should play which rank

JUDGED_BYTES = 25 * 2**20  # what an order is judged by: a bucket of gradients on GPUs
# An order must not cost more for any of these, from 1 KiB to 1 GiB.
ORDER_SIZES = tuple(4**power * 2**10 for power in range(11))
MOST_EXCHANGED = 32  # devices, which have some 500 exchanges; known machines have up to 16
MOST_PRICED = 600  # orders from each side: a second; known machines need up to 241


def best_order(schedule: Schedule, topology: Topology) -> List[int]:
    """The cheapest ``order`` found for `Schedule.placed`; the identity if none is cheaper.

    Orders are looked at from two sides: the one as it is, and the topology's best ring. From each,
    the two devices whose exchange saves most change places, until no exchange saves anything, or
    `MOST_PRICED` is reached: some hundred prices on eight devices, some hundredths of a second.
    Devices of several hosts, and more than `MOST_EXCHANGED`, are not exchanged: there are too many,
    and the best ring goes from host to host already.
    """
    unplaced = list(range(schedule.world_size))
    if isinstance(topology.routes, Ways) and topology.routes.alike:
        return unplaced

    def cost(order: Sequence[int]) -> float:
        return price(schedule.placed(order), topology, JUDGED_BYTES).seconds

    ring = topology.ring_order()
    starts = [unplaced] if ring == unplaced else [unplaced, ring]
    exchangeable = len(topology.hosts) == 1 and topology.world_size <= MOST_EXCHANGED
    exchanged = [_improved(start, cost) for start in starts] if exchangeable else []
    best, lowest, limits = unplaced, math.inf, [math.inf] * len(ORDER_SIZES)
    sizes = (*ORDER_SIZES, JUDGED_BYTES)
    for order in [*starts, *exchanged] if exchangeable or len(starts) > 1 else []:
        at_sizes = [each.seconds for each in prices(schedule.placed(order), topology, sizes)]
        *costs, judged = at_sizes
        if order == unplaced:
            limits = [each * (1 + EQUAL) for each in costs]
        if judged < lowest * (1 - EQUAL) and all(map(operator.le, costs, limits)):
            best, lowest = order, judged
    return best


def _improved(start: Sequence[int], cost: Callable[[Sequence[int]], float]) -> List[int]:
    order, lowest = list(start), cost(start)
    exchanges = list(combinations(range(len(order)), 2))
    for _ in range(max(1, MOST_PRICED // max(1, len(exchanges)))):
        others = [_exchanged(order, *places) for places in exchanges]
        costs = [cost(other) for other in others]
        least = min(costs, default=lowest)
        if least >= lowest * (1 - EQUAL):
            break
        order, lowest = others[costs.index(least)], least
    return order


def _exchanged(order: Sequence[int], one: int, other: int) -> List[int]:
    changed = list(order)
    changed[one], changed[other] = order[other], order[one]
    return changed
