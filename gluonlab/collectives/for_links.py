"""FOR_LINKS: the allreduces that are made for the links of a machine, by name.

Those of `algorithms` are made for a number of devices, and placed on links afterwards.
"""

from __future__ import annotations

from typing import Callable, Dict, Optional

from gluonlab.collectives import multi_ring
from gluonlab.collectives.links import Topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis import stored
from gluonlab.collectives.wiring import switch
from gluonlab.errors import ScheduleError, unknown

# of a topology, for a buffer of so many bytes; rank r is device r
FOR_LINKS: Dict[str, Callable[[Topology, float], Schedule]] = {
    multi_ring.NAME: multi_ring.multi_ring,
    stored.NAME: stored.cheapest,
}
SUMMARIES = {
    multi_ring.NAME: "from scratch: as many rings as the links carry at once",
    stored.NAME: "from scratch: schedules that a solver has found for the links, by size",
}


def make_for_links(
    name: str, topology: Optional[Topology], world_size: int, size_bytes: float
) -> Schedule:
    """The schedule of this name for ``topology``; devices of unknown links are behind one switch.

    Raises ScheduleError, with the choices, for an unknown name, and where there is none for these
    links.
    """
    if name not in FOR_LINKS:
        raise ScheduleError(unknown("allreduce for links", name, FOR_LINKS))
    return FOR_LINKS[name](topology or switch(world_size, 1e-5, 1e10, 1e11), size_bytes)
