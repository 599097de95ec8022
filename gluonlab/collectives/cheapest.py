"""Of several schedules for some links those that are the cheapest for some size."""

from __future__ import annotations

from typing import List, Sequence

from gluonlab.collectives.cost import prices
from gluonlab.collectives.links import Topology
from gluonlab.collectives.placing import EQUAL
from gluonlab.collectives.schedule import Schedule

# what schedules are compared at, and tables are made of: 1 B to 4 GiB
SIZES = tuple(2**power for power in range(33))


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
