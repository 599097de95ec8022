"""FOR_LINKS: the allreduces that are made for the links of a machine, by name.

Those of `algorithms` are made for a number of devices, and placed on links afterwards.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional

from gluonlab.collectives import auto, multi_ring
from gluonlab.collectives.cheapest import SIZES, first_of_lowest
from gluonlab.collectives.cost import price
from gluonlab.collectives.links import Topology
from gluonlab.collectives.names import AUTO, MULTI_RING, SYNTHESISED
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis import stored
from gluonlab.errors import ScheduleError, unknown
from gluonlab.plain import in_words

# the schedules for a topology, of which each is the cheapest for some sizes; rank r is device r
FOR_LINKS: Dict[str, Callable[[Topology], List[Schedule]]] = {
    MULTI_RING: lambda topology: [multi_ring.multi_ring(topology)],
    SYNTHESISED: stored.choices,
    AUTO: auto.choices,
}


class From(NamedTuple):
    """``schedule`` sums buffers of this size and larger ones, up to where another does."""

    size_bytes: int
    schedule: Schedule

    def __str__(self) -> str:
        schedule = self.schedule
        return f"from {in_words(self.size_bytes)} {schedule.name} ({_cut(schedule)})"


def _cut(schedule: Schedule) -> str:
    steps, chunks = len(schedule.steps), schedule.chunks
    return f"{steps} step{'s' * (steps != 1)}, {chunks} chunk{'s' * (chunks != 1)}"


class ForLinks(NamedTuple):
    """The schedules of one name for ``topology``."""

    topology: Topology
    schedules: List[Schedule]

    def cheapest(self, size_bytes: float) -> Schedule:
        """The one with the lowest price for a buffer of ``size_bytes`` on every device."""
        if len(self.schedules) == 1:
            return self.schedules[0]
        costs = [price(each, self.topology, size_bytes).seconds for each in self.schedules]
        return self.schedules[first_of_lowest(costs)]

    def table(self) -> List[From]:
        """Which one `cheapest` gives from how many bytes on, by doubling sizes."""
        rows: List[From] = []
        for size in SIZES:
            cheapest = self.cheapest(size)
            if not rows or rows[-1].schedule is not cheapest:
                rows.append(From(size, cheapest))
        return rows


def make_for_links(name: str, topology: Optional[Topology], world_size: int) -> ForLinks:
    """The schedules of this name; devices of unknown links, None, are taken for behind a switch.

    Raises ScheduleError, with the choices, for an unknown name, and where there is none for these
    links.
    """
    if name not in FOR_LINKS:
        raise ScheduleError(unknown("allreduce for links", name, FOR_LINKS))
    links = topology or stored.uniform(world_size)
    return ForLinks(links, FOR_LINKS[name](links))
