"""The schedules that a bench runs or prices; rings also in the topology's order.

Does not import MXNet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.topology import Topology
from gluonlab.errors import ScheduleError, unknown

# only neighbours talk, so it matters who is whose neighbour
RING_LIKE = ("ring", "bidirectional_ring")
MOST_RANKS = 4096

Groups = Tuple[Tuple[int, ...], ...]


@dataclass(frozen=True)
class Plan:
    """A schedule with the name of its row.

    ``order``: which device plays which rank, where that is not 0, 1, 2, ...
    """

    label: str
    schedule: Schedule
    order: Optional[Tuple[int, ...]] = None


def parse_algorithms(text: str, choices: Sequence[str]) -> Optional[List[str]]:
    """The names in ``text``, separated by commas, or None for ``all``.

    Raises ScheduleError, with the choices, for others.
    """
    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        return None
    for name in names:
        if name not in choices:
            raise ScheduleError(unknown("algorithm", name, ["all", *choices]))
    return list(dict.fromkeys(names))


def parse_groups(text: str) -> Groups:
    """``0-3/4-7`` or ``0,1/2,3``: groups of ranks. Raises ScheduleError."""
    groups = []
    for group in text.split("/"):
        ranks: List[int] = []
        for part in group.split(","):
            match = re.fullmatch(r"\s*([0-9]{1,4})\s*(?:-\s*([0-9]{1,4})\s*)?", part)
            if not match or int(match[2] or match[1]) >= MOST_RANKS:
                raise ScheduleError(
                    f"--groups {text if text.strip() else repr(text)}: "
                    "give groups of ranks, 0-3/4-7 or 0,1/2,3"
                )
            ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
        groups.append(tuple(ranks))
    return tuple(groups)


def make_plans(
    names: Optional[Sequence[str]],
    world_size: int,
    chunks: Optional[int] = None,
    groups: Optional[Groups] = None,
    topology: Optional[Topology] = None,
) -> List[Plan]:
    """The schedules of the algorithms ``names``, or of all (None).

    ``chunks`` and ``groups`` go to the algorithms that take them; one that does not, and was asked
    for by name, is refused. Groups are the topology's own by default. Where its ring order is
    another than 0, 1, 2, ..., ring-like schedules come in both orders. Raises ScheduleError.
    """
    order = tuple(topology.ring_order()) if topology else tuple(range(world_size))
    own = topology.groups if topology is not None and len(topology.groups) > 1 else None
    named, plans = names is not None, []
    for name in ALGORITHMS if names is None else names:
        # what was named refuses what it does not take
        into = chunks if named or _takes(name, chunks=2) else None
        takes_groups = _takes(name, groups=((0,), (1,)))
        within = (groups if named or takes_groups else None) or (own if takes_groups else None)
        schedule = make_schedule(name, world_size, chunks=into, groups=within)
        plans.append(Plan(name, schedule))
        if name in RING_LIKE and order != tuple(range(world_size)):
            plans.append(Plan(f"{name} placed", schedule.placed(order), order))
    return plans


def _takes(name: str, chunks: Optional[int] = None, groups: Optional[Groups] = None) -> bool:
    try:
        make_schedule(name, 2, chunks=chunks, groups=groups)
    except ScheduleError:
        return False
    return True


def orders_in_words(plans: Sequence[Plan], topology: Optional[Topology]) -> List[str]:
    """What "placed" means, when there is such a row."""
    orders = {plan.order for plan in plans if plan.order}
    where = topology.name if topology else ""
    return [
        f"placed: the devices in the order {'-'.join(map(str, order))}, the best ring of {where}."
        for order in sorted(orders)
    ]
