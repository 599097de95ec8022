"""Topologies by name.

A known machine, ``p3.16xlarge``; several hosts, ``p3.16xlarge*8``; or a file, ``m.json``.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from gluonlab.collectives.hosts import MOST_HOSTS, NETWORKS, several_hosts
from gluonlab.collectives.links import Link as Link
from gluonlab.collectives.links import Route as Route
from gluonlab.collectives.links import Topology as Topology
from gluonlab.collectives.machines import TOPOLOGIES as TOPOLOGIES
from gluonlab.collectives.topology_file import is_file_name, read_topology
from gluonlab.collectives.wiring import fully_connected as fully_connected
from gluonlab.collectives.wiring import switch as switch
from gluonlab.collectives.wiring import this_machine as this_machine
from gluonlab.errors import ScheduleError, unknown

FILES = "a machine of your own, or one that bench links --save has measured, is a file, m.json"
NAMES = (
    f"{', '.join(TOPOLOGIES)}; NAME*HOSTS, such as p3.16xlarge*8, is several of Amazon's; {FILES}"
)


def make_topology(name: str, world_size: Optional[int] = None) -> Topology:
    """The first ``world_size`` devices (all) of the machine of this name, or of several hosts.

    ``p3.16xlarge*8`` is eight such hosts and their network; whatever ends in ``.json`` is a file
    (`topology_file`). Raises ScheduleError, with the choices, for other names, for more hosts than
    128, for hosts whose network is not known, and for files with a mistake.
    """
    if is_file_name(name):
        written = read_topology(name)
        return written if world_size is None else written.subset(world_size)
    machine, hosts = _parsed(name)
    if is_file_name(machine):
        raise ScheduleError(
            f"topology {name!r}: a file says itself how many hosts there are, under hosts: "
            f"give {machine} alone"
        )
    if machine not in TOPOLOGIES:
        hint = f"; several hosts are NAME*HOSTS, up to {MOST_HOSTS}; {FILES}"
        raise ScheduleError(unknown("topology", machine, TOPOLOGIES) + hint)
    if hosts is None:
        return TOPOLOGIES[machine](world_size)
    if machine not in NETWORKS:
        raise ScheduleError(
            f"topology {name!r}: {machine} is no particular machine, and has no network to other "
            f"hosts: choose several of {', '.join(NETWORKS)}"
        )
    whole = several_hosts(TOPOLOGIES[machine](None), hosts, NETWORKS[machine])
    return whole if world_size is None else whole.subset(world_size)


def _parsed(name: str) -> Tuple[str, Optional[int]]:
    """The machine, and how many hosts are asked for, if any are."""
    machine, star, hosts = name.partition("*") if isinstance(name, str) else (name, "", "")
    if not star:
        return machine, None
    number = int(hosts) if re.fullmatch(r" *[0-9]{1,9} *", hosts) else 0
    if not 1 <= number <= MOST_HOSTS:
        raise ScheduleError(
            f"topology {name!r}: {hosts.strip()!r} is no number of hosts: give 1 to {MOST_HOSTS}, "
            "as in p3.16xlarge*8"
        )
    return machine.strip(), number
