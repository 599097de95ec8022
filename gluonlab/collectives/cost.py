"""What a schedule costs on a topology: the alpha-beta price, with contention.

All that one device sends another in a step is one message. A message keeps every link of its route
busy for the route's latency and for bytes / bandwidth; messages over one link come one after the
other. A step takes as long as its busiest link, and then as long as the device that has most to
add: transfers and additions of one step do not overlap in the price. Devices that share a memory
add all that a step brings to a chunk in one go, as the executor does on CPU devices where it can.

The price is that of steps with a barrier between them, and so an upper bound of what the topology
allows: the executor has no barriers, and a device that is ready early goes on. Chunks are counted
as size / chunks bytes each, not in whole elements; where the size does not divide, the real chunks
are up to one element longer or shorter.

Source of the model: Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2"
(1994), for latency and bandwidth; Thakur, Rabenseifner, Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005), section 3, with reductions.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import List, NamedTuple, Sequence, Tuple

from gluonlab.collectives.links import Topology
from gluonlab.collectives.loads import StepLoad, loads_of
from gluonlab.collectives.schedule import ALLREDUCE, Schedule
from gluonlab.errors import ScheduleError


@dataclass(frozen=True)
class StepPrice:
    """One step: the time of its busiest link and that link's name, and the time of its additions.

    An empty step has no link.
    """

    transfer_s: float
    reduce_s: float
    bottleneck: str

    @property
    def seconds(self) -> float:
        """Transfers, then additions."""
        return self.transfer_s + self.reduce_s


@dataclass(frozen=True)
class Price:
    """What a schedule costs for a buffer of ``size_bytes`` on each device of a topology."""

    schedule: str
    topology: str
    collective: str
    world_size: int
    size_bytes: float
    steps: Tuple[StepPrice, ...]

    @property
    def seconds(self) -> float:
        """Of all steps, one after the other."""
        return math.fsum(step.seconds for step in self.steps)

    @property
    def algbw(self) -> float:
        """bytes/s: size by time, as nccl-tests defines it; infinite if nothing was to be done."""
        return algbw(self.size_bytes, self.seconds)

    @property
    def busbw(self) -> float:
        """bytes/s: `algbw` times `bus_factor`, to be compared with the speed of the links."""
        factor = bus_factor(self.collective, self.world_size)
        return self.algbw * factor if factor else 0.0


def price(schedule: Schedule, topology: Topology, size_bytes: float) -> Price:
    """Price ``schedule`` for a buffer of ``size_bytes`` on every rank; rank r is device r.

    Raises ScheduleError for a topology of another world size, and for sizes below 0.
    """
    return prices(schedule, topology, [size_bytes])[0]


def prices(schedule: Schedule, topology: Topology, sizes: Sequence[float]) -> List[Price]:
    """`price` for each of several sizes, in less time."""
    if schedule.world_size != topology.world_size:
        raise ScheduleError(
            f"{schedule.name} has {schedule.world_size} ranks, "
            f"and {topology.name} {topology.world_size} devices: "
            "choose as many ranks as devices; topology.subset(n) has fewer devices"
        )
    for size in sizes:
        if not 0 <= size < math.inf:
            raise ScheduleError(f"a buffer of {size} bytes has no price: choose 0 or more")
    steps: List[List[StepPrice]] = [[] for _ in sizes]
    for loads in loads_of(schedule, topology):
        for of_size, size in zip(steps, sizes):
            chunk_bytes = size / schedule.chunks
            of_size += (_priced(load, topology, chunk_bytes) for load in loads.by_step(chunk_bytes))
    what = schedule.name, topology.name, schedule.collective, schedule.world_size
    return [Price(*what, size, tuple(of_size)) for size, of_size in zip(sizes, steps)]


def _priced(load: StepLoad, topology: Topology, chunk_bytes: float) -> StepPrice:
    reduce_s = max(
        load.most * chunk_bytes / topology.reduce_bytes_per_s,
        load.together * chunk_bytes / topology.shared_reduce_bytes_per_s,
    )
    return StepPrice(load.transfer_s, reduce_s, load.bottleneck)


class Traffic(NamedTuple):
    """Bytes that a device sends and receives, additions and copies alike."""

    sent: float
    received: float


def traffic(schedule: Schedule, size_bytes: float) -> List[Traffic]:
    """The bytes that every device sends and receives in all steps, for such a buffer.

    ``size_bytes``: of the whole buffer. The busiest port has the largest figure.
    """
    sent = Counter(transfer.src for step in schedule.steps for transfer in step)
    received = Counter(transfer.dst for step in schedule.steps for transfer in step)
    chunk_bytes = size_bytes / schedule.chunks
    return [
        Traffic(sent[rank] * chunk_bytes, received[rank] * chunk_bytes)
        for rank in range(schedule.world_size)
    ]


def algbw(size_bytes: float, seconds: float) -> float:
    """bytes/s: the buffer's size by the time (nccl-tests, doc/PERFORMANCE.md)."""
    if size_bytes == 0:
        return 0.0
    return size_bytes / seconds if seconds else math.inf


def bus_factor(collective: str, world_size: int) -> float:
    """The factor from algbw to the speed of the links (nccl-tests, doc/PERFORMANCE.md).

    allreduce: 2 (n-1) / n. reduce_scatter and all_gather: (n-1) / n, of the whole buffer's size.
    """
    return (2 if collective == ALLREDUCE else 1) * (world_size - 1) / world_size
