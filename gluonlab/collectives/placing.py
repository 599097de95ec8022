"""Which device should play which rank of a schedule, by its price on a topology."""

from __future__ import annotations

import math
import operator
from itertools import combinations
from typing import Callable, List, Sequence

from gluonlab.collectives.cost import price, prices
from gluonlab.collectives.links import Topology
from gluonlab.collectives.routes import Ways
from gluonlab.collectives.schedule import Schedule

JUDGED_BYTES = 25 * 2**20  # what an order is judged by: a bucket of gradients on GPUs
MOST_EXCHANGED = 32  # devices, which have some 500 exchanges; known machines have up to 16
MOST_PRICED = 600  # orders from each side: a second; known machines need up to 241
EQUAL = 1e-9  # relative: prices that differ by less are the same number, rounded otherwise
# An order must not cost more for any of these, from 1 KiB to 1 GiB.
SIZES = tuple(4**power * 2**10 for power in range(11))
ALL_SIZES = (*SIZES, JUDGED_BYTES)


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
    best, lowest, limits = unplaced, math.inf, [math.inf] * len(SIZES)
    for order in [*starts, *exchanged] if exchangeable or len(starts) > 1 else []:
        at_sizes = [each.seconds for each in prices(schedule.placed(order), topology, ALL_SIZES)]
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
