"""Predicts how long schedules take on topologies, using the alpha-beta model with contention.

`estimate_cost` predicts the time of a schedule. `find_best_order` compares predicted times to choose a
device for each rank, and `select_cheapest` compares predicted times to choose schedules. `traffic`
counts bytes.

Sources: Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2" (1994), for
latency and bandwidth; Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005), section 3, for reductions.
"""

from __future__ import annotations

import importlib.util
import math
import operator
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from gluonlab.collectives.schedule import ADD, ALLREDUCE, Schedule
from gluonlab.collectives.topology import INFINITE, Link, PortRoutes, Route, Topology
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

COST_TOLERANCE = 1e-9  # relative: prices that differ by less are equal up to rounding
# the sizes at which schedules are compared: 1 B to 4 GiB
SIZES = tuple(2**power for power in range(33))


@lru_cache(maxsize=None)
def is_numpy_installed() -> bool:
    """Return whether computations on large schedules and topologies can use NumPy."""
    try:
        return importlib.util.find_spec("numpy") is not None
    except ImportError:
        return False


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
    if schedule.transfers > MAX_PLAIN_TRANSFERS and is_numpy_installed():
        from gluonlab.collectives.cost_arrays import compute_step_costs

        values = compute_step_costs(schedule, topology, sizes)
        steps = [[StepCost(*fields) for fields in of_size] for of_size in values]
    else:
        steps = _plain_step_costs(schedule, topology, sizes)
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


# --- the load of links and devices in each step

# `cost_arrays` computes the same costs with NumPy, which is faster for more transfers. Both give
# bit-identical results. Without NumPy, as in a browser, this module computes all costs.
MAX_PLAIN_TRANSFERS = 512


class _StepLoads(NamedTuple):
    """The messages and additions in a step.

    A message is everything that one device sends to another in a step.

    Attributes:
        messages: the route of each message, and the number of chunks in it.
        max_additions: the number of chunks that the busiest device adds.
        total_additions: the number of chunks that all devices add. If devices share a memory,
            several additions into one chunk count as one.
    """

    messages: List[Tuple[Route, int]]
    max_additions: int
    total_additions: int

    def step_cost(self, topology: Topology, chunk_bytes: float) -> StepCost:
        """Return the predicted time of the step for chunks of ``chunk_bytes``."""
        busy_s: Dict[Link, float] = {}
        for (links, latency_s), chunks in self.messages:
            message_bytes = chunks * chunk_bytes
            for link in links:
                busy_s[link] = busy_s.get(link, 0.0) + (latency_s + message_bytes / link.bytes_per_s)
        reduce_s = max(
            self.max_additions * chunk_bytes / topology.reduce_bytes_per_s,
            self.total_additions * chunk_bytes / topology.shared_reduce_bytes_per_s,
        )
        if not busy_s:
            return StepCost(0.0, reduce_s, "")
        busiest = max(busy_s, key=busy_s.__getitem__)  # the first of equal ones
        return StepCost(busy_s[busiest], reduce_s, busiest.name)


def _count_loads(schedule: Schedule, topology: Topology) -> Iterator[_StepLoads]:
    """Yield the messages and additions of each step, in order."""
    for step in schedule.steps:
        messages = Counter((src, dst) for src, dst, _, _ in step)
        if topology.shared_reduce_bytes_per_s < INFINITE:
            additions = Counter(dst for dst, _ in {(dst, chunk) for _, dst, chunk, op in step if op == ADD})
        else:
            additions = Counter(dst for _, dst, _, op in step if op == ADD)
        routes = [(topology.routes[pair], chunks) for pair, chunks in messages.items()]
        yield _StepLoads(routes, max(additions.values(), default=0), sum(additions.values()))


def _plain_step_costs(schedule: Schedule, topology: Topology, sizes: Sequence[float]) -> List[List[StepCost]]:
    """Return the cost of each step, for each of ``sizes``."""
    all_chunk_bytes = [float(size / schedule.chunks) for size in sizes]
    loads = list(_count_loads(schedule, topology))
    return [[step.step_cost(topology, chunk_bytes) for step in loads] for chunk_bytes in all_chunk_bytes]


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
