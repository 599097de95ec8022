"""Schedules over several hosts, made of what is stored for one host and of an algorithm across.

What is stored for one host is proved; of the whole nothing is but that it is right: `check` and the
floor tell how good it is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import List, Sequence, Tuple

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.hierarchy import ACROSS, nested
from gluonlab.collectives.links import Topology
from gluonlab.collectives.placing import best_order
from gluonlab.collectives.schedule import ADD, ALL_GATHER, COPY, REDUCE_SCATTER, Schedule, Step

# Within hosts also these, whose chunks have one owner: fewer messages pass a network card.
ONE_OWNER = ("star", "tree")


def over_hosts(name: str, topology: Topology, within: Sequence[Schedule]) -> List[Schedule]:
    """Allreduces of all hosts of ``topology``, which have as many devices each.

    ``within``: those of one host that each is made of, first for sums, in the end for copies.
    """
    host = topology.subset(topology.hosts[0])
    single = [make_schedule(each, host.world_size) for each in ONE_OWNER]
    inner = [*within, *(each.placed(best_order(each, host)) for each in single)]
    between = [make_schedule(each, len(topology.hosts)) for each in ACROSS]
    devices = list(chain(*topology.hosts))
    made = []
    for each in inner:
        scatter, gather = halves(each)
        made += [nested(name, scatter, across, gather).placed(devices) for across in between]
    return made


def halves(schedule: Schedule) -> Tuple[Schedule, Schedule]:
    """An allreduce that sums every chunk up on its owner and then copies it, as two schedules.

    The sums of all chunks come first, also where some of them were on their way back before.
    """
    scatter = replace(schedule, collective=REDUCE_SCATTER, steps=_only(schedule, ADD))
    return scatter, replace(schedule, collective=ALL_GATHER, steps=_only(schedule, COPY))


def _only(schedule: Schedule, op: str) -> Tuple[Step, ...]:
    steps = (tuple(t for t in step if t.op == op) for step in schedule.steps)
    return tuple(step for step in steps if step)
