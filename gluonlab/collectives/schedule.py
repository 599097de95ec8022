"""Schedule: who sends which chunk to whom, in which step, and whether it is added or copied.

Every rank begins with a buffer of its own, cut into the same chunks. A transfer reads a chunk on
one rank and adds it to the same chunk on another, or copies it over it. That is all a collective
is; what it costs and what it leaves behind follows from the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, List, NamedTuple, Sequence, Tuple

from gluonlab.errors import ScheduleError

ADD, COPY = "add", "copy"
OPS = (ADD, COPY)
ALLREDUCE, REDUCE_SCATTER, ALL_GATHER = "allreduce", "reduce_scatter", "all_gather"
COLLECTIVES = (ALLREDUCE, REDUCE_SCATTER, ALL_GATHER)
FILE_FORMAT = "gluonlab schedules 1"  # of a file of schedules, which `synthesis.stored` reads


class Transfer(NamedTuple):
    """Add chunk ``chunk`` of rank ``src`` to that of rank ``dst``, or copy it over that.

    ``op`` is "add" or "copy".
    """

    src: int
    dst: int
    chunk: int
    op: str

    def __str__(self) -> str:
        into = "to" if self.op == ADD else "over"
        return f"{self.op} chunk {self.chunk} of rank {self.src} {into} rank {self.dst}"


Step = Tuple[Transfer, ...]


def is_whole(value: Any, at_least: int = 1) -> bool:
    """Whether this is a whole number, and at least so large."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


@dataclass(frozen=True)
class Schedule:
    """A collective operation as data.

    What it promises, and `gluonlab.collectives.verify_schedule.check` proves:

    ==============  =================================  ============================
    collective      before                             after
    ==============  =================================  ============================
    allreduce       every rank has a contribution      every rank has the same sum
    reduce_scatter  every rank has a contribution      rank ``owner[chunk]`` has it
    all_gather      rank ``owner[chunk]`` has a chunk  every rank has it
    ==============  =================================  ============================

    This holds for each chunk, and the same sum means the same bits.

    The transfers of a step happen at once. So no chunk of a rank is both read and written in a
    step, and into one chunk of a rank go either additions, made in the order of the step's list, or
    one copy. What one rank sends another in a step is one message. Steps are not barriers: a
    transfer needs only the chunks that it reads and writes.

    ``owner[chunk]``: the rank that holds the whole sum in between. Of an allreduce it is a note for
    those who draw and explain it, and no part of the promise.
    """

    name: str
    collective: str
    world_size: int
    chunks: int
    owner: Tuple[int, ...]
    steps: Tuple[Step, ...]

    def placed(self, order: Sequence[int]) -> Schedule:
        """The same schedule with rank r played by device ``order[r]``.

        Raises ScheduleError when ``order`` does not name every rank once.
        """
        if sorted(order, key=str) != sorted(range(self.world_size), key=str):
            raise ScheduleError(
                f"order {list(order)}: name each of the devices 0 to {self.world_size - 1} once"
            )
        steps = tuple(
            tuple(Transfer(order[src], order[dst], chunk, op) for src, dst, chunk, op in step)
            for step in self.steps
        )
        return replace(self, owner=tuple(order[rank] for rank in self.owner), steps=steps)

    @property
    def transfers(self) -> int:
        """How many transfers there are, over all steps."""
        return sum(len(step) for step in self.steps)


def then(name: str, first: Schedule, second: Schedule) -> Schedule:
    """An allreduce: ``first`` a reduce_scatter, ``second`` an all_gather from the same owners."""
    if (first.collective, second.collective) != (REDUCE_SCATTER, ALL_GATHER):
        raise ScheduleError(
            f"{first.name} then {second.name}: an allreduce is a reduce_scatter, then an all_gather"
        )
    if (first.world_size, first.owner) != (second.world_size, second.owner):
        raise ScheduleError(
            f"{first.name} leaves chunks with owners {first.owner}, "
            f"{second.name} begins with {second.owner}"
        )
    return replace(first, name=name, collective=ALLREDUCE, steps=first.steps + second.steps)


# --- as columns of numbers, for what looks at millions of transfers

Column = Any  # an array of one dimension
IS_ADD, IS_COPY, NEITHER = range(3)
_CODES = {ADD: IS_ADD, COPY: IS_COPY}


@dataclass(frozen=True)
class ScheduleArrays:
    """One row for each transfer, step by step, in the order of the steps' lists.

    ``step``, ``src``, ``dst``, ``chunk``: whole numbers (transfers,). ``op`` (transfers,): IS_ADD,
    IS_COPY, or NEITHER. ``starts`` (steps + 1,): the first row of each step, then their number.
    """

    step: Column
    src: Column
    dst: Column
    chunk: Column
    op: Column
    starts: Column


def columns_of(schedule: Schedule) -> ScheduleArrays:
    """Raises TypeError where a rank or a chunk is no whole number, or too large for 64 bits."""
    import numpy as np  # not needed to read a topology, as the doctor does

    def whole(values: List[int]) -> Column:
        column = np.array(values) if values else np.zeros(0, np.int64)
        if column.ndim != 1 or not np.can_cast(column.dtype, np.int64):
            raise TypeError("ranks and chunks are whole numbers")
        return column.astype(np.int64, copy=False)

    transfers = [transfer for step in schedule.steps for transfer in step]
    lengths = [len(step) for step in schedule.steps]
    src, dst, chunk = (whole(list(map(itemgetter(place), transfers))) for place in range(3))
    op = np.array([_CODES.get(of, NEITHER) for of in map(itemgetter(3), transfers)], np.int8)
    step = np.repeat(np.arange(len(lengths)), lengths)
    return ScheduleArrays(step, src, dst, chunk, op, np.cumsum([0, *lengths]))
