"""Chooses the schedules that ``gluonlab allreduce`` measures or predicts.

Ring-like schedules may appear twice: in device order, and in the best order for the topology's
links ("placed"). This module does not import MXNet.
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

# only neighbors exchange messages, so the order of the devices matters
RING_LIKE = ("ring", "bidirectional_ring")
HIERARCHICAL = "hierarchical"
MAX_RANKS = 4096
_SAMPLED_SIZES = tuple(64**power * 2**10 for power in range(5))  # in bytes; the cheapest schedule of each is shown

RankGroups = Tuple[Tuple[int, ...], ...]


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule for the table row named ``label``.

    ``order``: the device of each rank; None for 0, 1, 2, ... ``by_size``: if set, the fastest of
    these schedules for each size is used instead of ``schedule``.
    """

    label: str
    schedule: Schedule
    order: Optional[Tuple[int, ...]] = None
    by_size: Optional[SchedulesBySize] = None

    def schedule_for(self, size_bytes: float) -> Schedule:
        """Return the schedule for an allreduce of ``size_bytes`` per device."""
        return self.by_size.cheapest(size_bytes) if self.by_size else self.schedule


def parse_algorithms(text: str, choices: Sequence[str]) -> Optional[List[str]]:
    """Return the comma-separated names in ``text``, or None for ``all``.

    If a name is unknown, raises a ScheduleError that lists the choices.
    """
    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        return None
    for name in names:
        if name not in choices:
            raise ScheduleError(unknown("algorithm", name, ["all", *choices]))
    return list(dict.fromkeys(names))


def parse_groups(text: str) -> RankGroups:
    """Parse groups of ranks, such as ``0-3/4-7`` or ``0,1/2,3``.

    Raises ScheduleError for other text.
    """
    groups = []
    for group in text.split("/"):
        ranks: List[int] = []
        for part in group.split(","):
            match = re.fullmatch(r"\s*([0-9]{1,4})\s*(?:-\s*([0-9]{1,4})\s*)?", part)
            if not match or int(match[2] or match[1]) >= MAX_RANKS:
                raise ScheduleError(
                    f"--groups {text if text.strip() else repr(text)}: must be groups of ranks, such as "
                    "0-3/4-7 or 0,1/2,3"
                )
            ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
        groups.append(tuple(ranks))
    return tuple(groups)


def make_plans(
    names: Optional[Sequence[str]],
    world_size: int,
    chunks: Optional[int] = None,
    groups: Optional[RankGroups] = None,
    topology: Optional[Topology] = None,
) -> List[NamedSchedule]:
    """Return schedules for the algorithms ``names``, or for all algorithms if ``names`` is None.

    Args:
        names: Algorithms, or None for all.
        world_size: Number of devices.
        chunks: Number of chunks per buffer, for algorithms that accept any number.
        groups: Groups of ranks for the algorithm "hierarchical". The default is the topology's
            groups.
        topology: The links, if they are known. Ring-like schedules are also made for the topology's
            best ring order. If there are several hosts, "hierarchical" is also combined with a ring
            and with trees across the hosts. Without a topology, topology-aware algorithms are
            included only if ``names`` contains them.

    Returns:
        The schedules, except auto, which `make_auto_plan` makes.

    Raises:
        ScheduleError: An algorithm requested by name does not accept the chunks or groups.
    """
    order = tuple(topology.ring_order()) if topology else tuple(range(world_size))
    topology_groups = topology.groups if topology is not None and len(topology.groups) > 1 else None
    are_named = names is not None
    plans: List[NamedSchedule] = []
    for name in (*TOPOLOGY_AWARE, *ALGORITHMS) if names is None else names:
        if name == AUTO:
            if are_named and (chunks or groups):
                raise ScheduleError("algorithm auto chooses its own chunks and groups: omit --chunks and --groups")
            continue
        if name in TOPOLOGY_AWARE:
            plans += _make_link_aware_plans(name, world_size, topology, are_named)
            continue
        # options that a requested algorithm does not accept raise an error; others ignore them
        schedule_chunks = chunks if are_named or accepts_options(ALGORITHMS[name], chunks=2) else None
        takes_groups = accepts_options(ALGORITHMS[name], groups=((0,), (1,)))
        schedule_groups = (groups if are_named or takes_groups else None) or (topology_groups if takes_groups else None)
        schedule = make_schedule(name, world_size, chunks=schedule_chunks, groups=schedule_groups)
        plans.append(NamedSchedule(name, schedule))
        if name in RING_LIKE and order != tuple(range(world_size)):
            plans.append(NamedSchedule(f"{name} placed", schedule.placed(order), order))
        if name == HIERARCHICAL and groups is None:
            over_hosts = schedules_over_hosts(topology, [chunks]) if topology else ()
            plans += [NamedSchedule(schedule.name, schedule) for schedule in over_hosts]
    return plans


def make_auto_plan(schedules: SchedulesBySize) -> NamedSchedule:
    """Return the plan ``auto``, which runs the fastest of ``schedules`` for each size."""
    return NamedSchedule(AUTO, schedules.cheapest(0), by_size=schedules)


def synthesized_label(schedule: Schedule) -> str:
    """Return the row name for a synthesized schedule, such as ``synthesized, 4 steps``."""
    return f"{SYNTHESIZED}, {len(schedule.steps)} steps"


def _make_link_aware_plans(
    name: str, world_size: int, topology: Optional[Topology], named: bool
) -> List[NamedSchedule]:
    """Return the schedules that a topology-aware algorithm makes for the topology's links.

    Without a topology, the schedules are made for a switch, and only if the user requested the
    algorithm by name (``named``).
    """
    if not (topology or named):
        return []
    try:
        schedules = make_for_links(name, topology, world_size)
    except ScheduleError:
        if named:
            raise
        return []
    cheapest = {id(schedule): schedule for schedule in map(schedules.cheapest, _SAMPLED_SIZES)}
    distinct = sorted(cheapest.values(), key=lambda schedule: (len(schedule.steps), schedule.chunks))
    if name != SYNTHESIZED:
        return [NamedSchedule(name, schedule) for schedule in distinct]
    labels = [synthesized_label(schedule) for schedule in distinct]
    return [
        NamedSchedule(label if labels.count(label) == 1 else f"{label}/{schedule.chunks}", schedule)
        for label, schedule in zip(labels, distinct)
    ]


def describe_orders(plans: Sequence[NamedSchedule], topology: Optional[Topology]) -> List[str]:
    """Return notes about the order of the devices in rows named "placed"."""
    orders = sorted({plan.order for plan in plans if plan.order})
    return [
        "placed: with the devices in the order "
        f"{'-'.join(map(str, _first_host_ranks(order, topology)))}, the fastest ring of "
        f"{_placement_scope(topology)}."
        for order in orders
    ]


def _placement_scope(topology: Optional[Topology]) -> str:
    if topology is not None and len(topology.hosts) > 1:
        return f"the first host of {topology.name}, then of the next"
    return topology.name if topology else ""


def _first_host_ranks(order: Sequence[int], topology: Optional[Topology]) -> Sequence[int]:
    """Return the order of devices within the first host. All hosts have the same order."""
    return order if topology is None else order[: len(topology.hosts[0])]
