"""Allreduces over several hosts, made of smaller schedules: within hosts, across them, within.

The second of them works between devices of equal rank in their hosts, all at once, each on the
chunks that its host's first schedule left with it. So every chunk crosses the network as often as
between single devices, and all devices of a host share the work. Source: Cho, Finkler, Serrano,
Kung, Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
hierarchy" (2019), section 3.
"""

from __future__ import annotations

from itertools import chain
from typing import Iterator, Optional, Sequence

from gluonlab.collectives.algorithms import ALGORITHMS, HALVES, make_schedule
from gluonlab.collectives.definition import takes
from gluonlab.collectives.links import Topology
from gluonlab.collectives.schedule import (
    ALLREDUCE,
    Schedule,
    Step,
    Transfer,
    then,
)
from gluonlab.errors import ScheduleError

# what may work across hosts; of trees several chunks make a pipeline
ACROSS = ("ring", "tree", "double_tree")


def nested(name: str, scatter: Schedule, across: Schedule, gather: Schedule) -> Schedule:
    """An allreduce: ``scatter`` within each host, ``across`` hosts, then ``gather`` within each.

    The first and the last are a reduce_scatter and an all_gather with the same owners, for the
    devices of a host; the second is an allreduce with as many ranks as there are hosts. Device d of
    host h is rank h * devices + d; ``across`` cuts each chunk of ``scatter`` into its own chunks.
    Raises ScheduleError for schedules that do not fit.
    """
    then(name, scatter, gather)
    if across.collective != ALLREDUCE:
        raise ScheduleError(
            f"{name}: across hosts goes an allreduce, not {across.name}, a {across.collective}"
        )
    hosts, each, parts = range(across.world_size), scatter.world_size, range(across.chunks)

    def in_every_host(steps: Sequence[Step]) -> Iterator[Step]:
        for step in steps:
            yield tuple(
                Transfer(host * each + src, host * each + dst, chunk * len(parts) + part, op)
                for host in hosts
                for src, dst, chunk, op in step
                for part in parts
            )

    between = (
        tuple(
            Transfer(src * each + owner, dst * each + owner, chunk * len(parts) + part, op)
            for chunk, owner in enumerate(scatter.owner)
            for src, dst, part, op in step
        )
        for step in across.steps
    )
    owners = tuple(host * each + owner for owner in scatter.owner for host in across.owner)
    steps = (*in_every_host(scatter.steps), *between, *in_every_host(gather.steps))
    return Schedule(name, ALLREDUCE, len(hosts) * each, len(owners), owners, steps)


def over_hosts(
    hosts: int,
    devices: int,
    across: str = "ring",
    *,
    within: str = "ring",
    order: Optional[Sequence[int]] = None,
    chunks: Optional[int] = None,
) -> Schedule:
    """The allreduce of ``hosts`` with so many ``devices`` each, by the names of two algorithms.

    ``across``: any of them. ``within``: one that is made of halves. ``order``: which device of a
    host plays which rank of that; 0, 1, 2, ... by default. ``chunks``: of ``across``, where it
    leaves the choice. Raises ScheduleError.

    Cost on ports that are a device's own within a host and shared by all g of a host between hosts,
    with rings over h hosts: 2 (g-1) (alpha + n/g beta) within, and across 2 (h-1) (g alpha' + n/h
    beta'), as all g messages pass the same NIC.
    """
    if within not in HALVES:
        raise ScheduleError(
            f"{within!r} within hosts: choose {', '.join(HALVES)}, which are made of two halves"
        )
    scatter, gather = (half(devices) for half in HALVES[within])
    if order is not None:
        scatter, gather = scatter.placed(order), gather.placed(order)
    between = make_schedule(across, hosts, chunks=chunks)
    return nested(f"hierarchical, {across}", scatter, between, gather)


def alternatives_over_hosts(
    topology: Topology, finer: Sequence[Optional[int]] = (None,)
) -> Iterator[Schedule]:
    """`over_hosts` with each of `ACROSS`, for the hosts of a topology; rank r is device r.

    ``finer``: the chunks of those that leave the choice. There are none on one host, and on hosts
    of unequal sizes.
    """
    hosts = topology.hosts
    if len(hosts) == 1 or len({len(host) for host in hosts}) > 1:
        return
    order = topology.subset(hosts[0]).ring_order()
    for across in ACROSS:
        for chunks in finer if takes(ALGORITHMS[across], chunks=2) else (None,):
            made = over_hosts(len(hosts), len(order), across, order=order, chunks=chunks)
            yield made.placed(list(chain(*hosts)))
