"""Schedules over several hosts, or groups of one, made of what is stored for one of them.

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
from gluonlab.collectives.schedule import (
    ADD,
    ALL_GATHER,
    COPY,
    REDUCE_SCATTER,
    Schedule,
    Step,
    Transfer,
)

# Within hosts also these, whose chunks have one owner: fewer messages pass a network card.
ONE_OWNER = ("star", "tree")
# Parts of the buffer that follow each other, a step apart, over groups whose links the stages of
# one part leave idle
PIPELINES = (1, 2, 4, 8, 16, 32)
MOST_TRANSFERS = 20_000  # of a pipeline


def over_hosts(name: str, topology: Topology, within: Sequence[Schedule]) -> List[Schedule]:
    """Allreduces of all hosts of ``topology``, which have as many devices each.

    ``within``: those of one host that each is made of, first for sums, in the end for copies.
    """
    return _over(name, topology, topology.hosts, within)


def over_groups(name: str, topology: Topology, within: Sequence[Schedule]) -> List[Schedule]:
    """The same over the groups of one host, each also as a `pipeline`."""
    return [
        pipeline(made, parts)
        for made in _over(name, topology, topology.groups, within)
        for parts in PIPELINES
        if parts * made.transfers <= MOST_TRANSFERS
    ]


def pipeline(schedule: Schedule, parts: int) -> Schedule:
    """The schedule for each of so many parts of the buffer, each a step after the one before.

    While the sums of one part pass the links between groups, those of the next are still made
    within groups: for large buffers all links work at once. What a device sends another for several
    parts in one step is one message.
    """
    steps: List[List[Transfer]] = [[] for _ in range(len(schedule.steps) + parts - 1)]
    for part in range(parts):
        for number, step in enumerate(schedule.steps, part):
            steps[number] += (t._replace(chunk=t.chunk + part * schedule.chunks) for t in step)
    return replace(
        schedule,
        chunks=parts * schedule.chunks,
        owner=parts * schedule.owner,
        steps=tuple(map(tuple, steps)),
    )


def _over(
    name: str, topology: Topology, parts: Sequence[Sequence[int]], within: Sequence[Schedule]
) -> List[Schedule]:
    one = topology.subset(parts[0])
    single = [make_schedule(each, one.world_size) for each in ONE_OWNER]
    inner = [*within, *(each.placed(best_order(each, one)) for each in single)]
    between = [make_schedule(each, len(parts)) for each in ACROSS]
    devices = list(chain(*parts))
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
