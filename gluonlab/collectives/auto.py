"""auto: for each size the schedule with the lowest price, of all that there are for some links."""

from __future__ import annotations

from typing import Iterator, List, Optional

from gluonlab.collectives import multi_ring
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.cheapest import cheapest_for_some
from gluonlab.collectives.definition import takes
from gluonlab.collectives.hierarchy import alternatives_over_hosts
from gluonlab.collectives.links import Topology
from gluonlab.collectives.names import AUTO
from gluonlab.collectives.placing import best_order
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis import stored
from gluonlab.errors import ScheduleError

NAME = AUTO
# how often more than by default an algorithm cuts its buffer, where it leaves the choice
FINER = (2, 4, 8, 16, 32)
MOST_DEVICES = 128  # of more, the prices of all candidates take minutes
MOST_TRANSFERS = 200_000  # of what is cut finer


def choices(topology: Topology) -> List[Schedule]:
    """The candidates of which each has the lowest price for some size; rank r is device r.

    Raises ScheduleError for more than MOST_DEVICES.
    """
    if topology.world_size > MOST_DEVICES:
        raise ScheduleError(
            f"{NAME} compares all schedules for up to {MOST_DEVICES} devices, not for the "
            f"{topology.world_size} of {topology.name}: choose an algorithm; bench allreduce "
            "--simulate prices all"
        )
    return cheapest_for_some(list(candidates(topology)), topology)


def candidates(topology: Topology) -> Iterator[Schedule]:
    """All that `choices` compares: algorithms placed by `best_order`, and those made for links."""
    for name in ALGORITHMS:
        yield from _placed(name, topology)
    yield from alternatives_over_hosts(topology, (None, *FINER))
    yield multi_ring.multi_ring(topology)
    try:
        yield from stored.choices(topology)
    except ScheduleError:  # there are none for so many devices or hosts
        return


def _placed(name: str, topology: Topology) -> Iterator[Schedule]:
    """The algorithm in its own number of chunks, and in more, where it leaves the choice."""
    groups = topology.groups if name == "hierarchical" and len(topology.groups) > 1 else None

    def cut(chunks: Optional[int] = None) -> Schedule:
        return make_schedule(name, topology.world_size, chunks=chunks, groups=groups)

    once = cut()
    order = best_order(once, topology)
    yield once.placed(order)
    for times in FINER if takes(ALGORITHMS[name], chunks=2) else ():
        if times * once.transfers <= MOST_TRANSFERS:
            yield cut(times * once.chunks).placed(order)
