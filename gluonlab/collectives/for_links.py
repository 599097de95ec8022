"""FOR_LINKS: the allreduces that are made for the links of a machine, by name.

Those of `algorithms` are made for a number of devices, and placed on links afterwards.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional

from gluonlab.collectives import multi_ring
from gluonlab.collectives.cost import price
from gluonlab.collectives.links import Topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis import stored
from gluonlab.errors import ScheduleError, unknown

# the schedules for a topology, of which each is the cheapest for some sizes; rank r is device r
FOR_LINKS: Dict[str, Callable[[Topology], List[Schedule]]] = {
    multi_ring.NAME: lambda topology: [multi_ring.multi_ring(topology)],
    stored.NAME: stored.choices,
}
SUMMARIES = {
    multi_ring.NAME: "from scratch: as many rings as the links carry at once",
    stored.NAME: "from scratch: schedules that a solver has found for the links, by size",
}


class ForLinks(NamedTuple):
    """The schedules of one name for ``topology``."""

    topology: Topology
    schedules: List[Schedule]

    def cheapest(self, size_bytes: float) -> Schedule:
        """The one with the lowest price for a buffer of ``size_bytes`` on every device."""
        if len(self.schedules) == 1:
            return self.schedules[0]
        return min(
            self.schedules,
            key=lambda schedule: price(schedule, self.topology, size_bytes).seconds,
        )


def make_for_links(name: str, topology: Optional[Topology], world_size: int) -> ForLinks:
    """The schedules of this name; devices of unknown links, None, are taken for behind a switch.

    Raises ScheduleError, with the choices, for an unknown name, and where there is none for these
    links.
    """
    if name not in FOR_LINKS:
        raise ScheduleError(unknown("allreduce for links", name, FOR_LINKS))
    links = topology or stored.uniform(world_size)
    return ForLinks(links, FOR_LINKS[name](links))
