"""The schedules that a bench runs or prices; rings also in the topology's order.

Does not import MXNet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS, accepts_options, make_schedule
from gluonlab.collectives.named_topologies import Topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis.precomputed_schedules import SYNTHESIZED
from gluonlab.collectives.topology_aware import (
    AUTO,
    TOPOLOGY_AWARE,
    SchedulesBySize,
    make_for_links,
    schedules_over_hosts,
)
from gluonlab.errors import ScheduleError, unknown

# only neighbours talk, so it matters who is whose neighbour
RING_LIKE = ("ring", "bidirectional_ring")
HIERARCHICAL = "hierarchical"
MOST_RANKS = 4096
_SIZES = tuple(64**power * 2**10 for power in range(5))  # bytes, of which each has its schedule

Groups = Tuple[Tuple[int, ...], ...]


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule with the name of its row.

    ``order``: which device plays which rank, where that is not 0, 1, 2, ... ``by_size``: the
    schedules of which the cheapest is run for each size, instead of this one for all.
    """

    label: str
    schedule: Schedule
    order: Optional[Tuple[int, ...]] = None
    by_size: Optional[SchedulesBySize] = None

    def schedule_for(self, size_bytes: float) -> Schedule:
        """What a buffer of so many bytes on each device is summed by."""
        return self.by_size.cheapest(size_bytes) if self.by_size else self.schedule


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
) -> List[NamedSchedule]:
    """The schedules of the algorithms ``names``, or of all (None).

    ``chunks`` and ``groups`` go to the algorithms that take them; one that does not, and was asked
    for by name, is refused. Groups are the topology's own by default. Where its ring order is
    another than 0, 1, 2, ..., ring-like schedules come in both orders; where it has several hosts,
    hierarchical comes also with a ring and with trees across them. Those made for links come where
    the topology is known, synthesised ones where some are stored for it; auto is `auto_plan`.
    Raises ScheduleError.
    """
    order = tuple(topology.ring_order()) if topology else tuple(range(world_size))
    own = topology.groups if topology is not None and len(topology.groups) > 1 else None
    named = names is not None
    plans: List[NamedSchedule] = []
    for name in (*TOPOLOGY_AWARE, *ALGORITHMS) if names is None else names:
        if name == AUTO:
            if named and (chunks or groups):
                raise ScheduleError("auto cuts buffers itself: leave out --chunks and --groups")
            continue
        if name in TOPOLOGY_AWARE:
            plans += _for_links(name, world_size, topology, named)
            continue
        # what was named refuses what it does not take
        into = chunks if named or accepts_options(ALGORITHMS[name], chunks=2) else None
        takes_groups = accepts_options(ALGORITHMS[name], groups=((0,), (1,)))
        within = (groups if named or takes_groups else None) or (own if takes_groups else None)
        schedule = make_schedule(name, world_size, chunks=into, groups=within)
        plans.append(NamedSchedule(name, schedule))
        if name in RING_LIKE and order != tuple(range(world_size)):
            plans.append(NamedSchedule(f"{name} placed", schedule.placed(order), order))
        if name == HIERARCHICAL and groups is None:
            over_hosts = schedules_over_hosts(topology, [chunks]) if topology else ()
            plans += [NamedSchedule(schedule.name, schedule) for schedule in over_hosts]
    return plans


def auto_plan(made: SchedulesBySize) -> NamedSchedule:
    """The row of auto, whose schedules these are."""
    return NamedSchedule(AUTO, made.cheapest(0), by_size=made)


def synthesised_label(schedule: Schedule) -> str:
    """What its row is called: ``synthesised, 4 steps``; of several its chunks are told, too."""
    return f"{SYNTHESIZED}, {len(schedule.steps)} steps"


def _for_links(
    name: str, world_size: int, topology: Optional[Topology], named: bool
) -> List[NamedSchedule]:
    """Schedules made for the topology's links; those for a switch where they are asked for."""
    if not (topology or named):
        return []
    try:
        made = make_for_links(name, topology, world_size)
    except ScheduleError:
        if named:
            raise
        return []
    cheapest = {id(each): each for each in map(made.cheapest, _SIZES)}
    distinct = sorted(cheapest.values(), key=lambda each: (len(each.steps), each.chunks))
    if name != SYNTHESIZED:
        return [NamedSchedule(name, schedule) for schedule in distinct]
    labels = [synthesised_label(schedule) for schedule in distinct]
    return [
        NamedSchedule(label if labels.count(label) == 1 else f"{label}/{schedule.chunks}", schedule)
        for label, schedule in zip(labels, distinct)
    ]


def orders_in_words(plans: Sequence[NamedSchedule], topology: Optional[Topology]) -> List[str]:
    """What "placed" means, when there is such a row."""
    orders = sorted({plan.order for plan in plans if plan.order})
    return [
        f"placed: the devices in the order {'-'.join(map(str, _shown(order, topology)))}, "
        f"the best ring of {_whose(topology)}."
        for order in orders
    ]


def _whose(topology: Optional[Topology]) -> str:
    if topology is not None and len(topology.hosts) > 1:
        return f"the first host of {topology.name}, then of the next"
    return topology.name if topology else ""


def _shown(order: Sequence[int], topology: Optional[Topology]) -> Sequence[int]:
    """The first host's devices, which are enough to know the order of all."""
    return order if topology is None else order[: len(topology.hosts[0])]
