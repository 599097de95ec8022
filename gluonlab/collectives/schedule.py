"""Schedules of collectives: for each step, a list of transfers of chunks between ranks.

Every rank has a buffer, which is divided into the same chunks. A transfer reads a chunk of one
rank, and adds it to the same chunk of another rank, or overwrites that chunk. Every collective
consists of such transfers, which determine its result and its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Sequence, Tuple

from gluonlab.errors import ScheduleError

ADD, COPY = "add", "copy"
OPS = (ADD, COPY)
ALLREDUCE, REDUCE_SCATTER, ALL_GATHER = "allreduce", "reduce_scatter", "all_gather"
COLLECTIVES = (ALLREDUCE, REDUCE_SCATTER, ALL_GATHER)
FILE_FORMAT = "gluonlab schedules 1"  # of files that `synthesis.precomputed_schedules` reads


class Transfer(NamedTuple):
    """A transfer of chunk ``chunk`` from rank ``src`` to rank ``dst``.

    If ``op`` is "add", the chunk is added to the same chunk of ``dst``; if it is "copy", the chunk
    overwrites that chunk.
    """

    src: int
    dst: int
    chunk: int
    op: str

    def __str__(self) -> str:
        preposition = "to" if self.op == ADD else "over"
        return f"{self.op} chunk {self.chunk} of rank {self.src} {preposition} rank {self.dst}"


Step = Tuple[Transfer, ...]


def is_integer_at_least(value: Any, at_least: int = 1) -> bool:
    """Return whether ``value`` is an integer, and at least ``at_least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


@dataclass(frozen=True)
class Schedule:
    """A collective operation, described as steps of transfers.

    A schedule must fulfill the following conditions for each chunk.
    `gluonlab.collectives.verify_schedule.verify` proves them:

    ==============  =================================  ============================
    collective      before                             after
    ==============  =================================  ============================
    allreduce       every rank has a contribution      every rank has the same sum
    reduce_scatter  every rank has a contribution      ``owner[chunk]`` has the sum
    all_gather      rank ``owner[chunk]`` has a chunk  every rank has the chunk
    ==============  =================================  ============================

    "The same sum" means that the sums are bit-identical.

    The transfers of a step are simultaneous. So no chunk of a rank is both read and written in a
    step. A step writes to a chunk of a rank either by one copy, or by additions in the order of the
    step's list. All transfers from one rank to another in a step are one message. Steps are not
    barriers: a transfer waits only for the chunks that it reads and writes.

    Attributes:
        name: the name of the algorithm.
        collective: "allreduce", "reduce_scatter" or "all_gather".
        world_size: the number of ranks.
        chunks: the number of chunks of a buffer.
        owner: for each chunk, the rank that holds the complete sum before it is copied to the
            others. For an allreduce, only drawings and explanations use the owner.
        steps: the steps, each a tuple of transfers.
    """

    name: str
    collective: str
    world_size: int
    chunks: int
    owner: Tuple[int, ...]
    steps: Tuple[Step, ...]

    def placed(self, order: Sequence[int]) -> Schedule:
        """Return this schedule with device ``order[r]`` in the role of rank r.

        Raises ScheduleError unless ``order`` contains every rank once.
        """
        if sorted(order, key=str) != sorted(range(self.world_size), key=str):
            raise ScheduleError(
                f"order={list(order)}: list each of the devices 0 to {self.world_size - 1} exactly once"
            )
        steps = tuple(
            tuple(Transfer(order[src], order[dst], chunk, op) for src, dst, chunk, op in step) for step in self.steps
        )
        return replace(self, owner=tuple(order[rank] for rank in self.owner), steps=steps)

    @property
    def transfers(self) -> int:
        """Return the number of transfers of all steps."""
        return sum(len(step) for step in self.steps)


def join_reduce_scatter_and_all_gather(name: str, first: Schedule, second: Schedule) -> Schedule:
    """Return the allreduce that runs a reduce_scatter, then an all_gather with the same owners."""
    if (first.collective, second.collective) != (REDUCE_SCATTER, ALL_GATHER):
        raise ScheduleError(
            f"{first.name} and {second.name}: combine a reduce_scatter with an all_gather to make an allreduce"
        )
    if (first.world_size, first.owner) != (second.world_size, second.owner):
        raise ScheduleError(
            f"{first.name} leaves its chunks on ranks {first.owner}, but {second.name} starts with "
            f"chunks on ranks {second.owner}: use the same owners"
        )
    return replace(first, name=name, collective=ALLREDUCE, steps=first.steps + second.steps)
