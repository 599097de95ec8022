"""The proof that a schedule is right, by running it on symbols instead of numbers.

A chunk of a rank is the tree of additions that made it. Its leaves are the ranks' contributions.
Floating-point addition commutes but does not associate, so two chunks have the same bits for all
inputs exactly when their trees are equal up to swapping summands.

Chunks know nothing of each other, so each is run on its own.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from gluonlab.collectives.schedule import (
    ADD,
    ALL_GATHER,
    COLLECTIVES,
    IS_ADD,
    IS_COPY,
    NEITHER,
    OPS,
    REDUCE_SCATTER,
    Schedule,
    ScheduleArrays,
    columns_of,
)
from gluonlab.errors import ScheduleError

Contributions = Tuple[int, ...]  # how often each rank's contribution is in a sum
Cell = Tuple[int, int]  # (rank, chunk)
Place = Tuple[int, int]  # (step, position in the step)


def check(schedule: Schedule) -> None:
    """Prove that ``schedule`` does what it promises, with the same bits on all ranks.

    Raises ScheduleError, which names the first wrong step and transfer: the one that breaks a rule
    of steps, or that adds a contribution a second time, or the last one into a chunk that ends
    incomplete.
    """
    _check_shape(schedule)
    columns = _checked_columns(schedule)
    by_chunk = np.argsort(columns.chunk, kind="stable")
    ends = np.cumsum(np.bincount(columns.chunk, minlength=schedule.chunks))
    for chunk, rows in enumerate(np.split(by_chunk, ends[:-1])):
        _check_chunk(schedule, chunk, _ChunkSimulation(columns, rows, schedule.world_size), columns)


def states(schedule: Schedule) -> Iterator[List[List[Contributions]]]:
    """What every rank holds before the first step and after each.

    ``state[rank][chunk][r]``: how often rank r's contribution is in it.
    """
    ranks = range(schedule.world_size)
    state = [[tuple(int(r == rank) for r in ranks)] * schedule.chunks for rank in ranks]
    for step in [(), *schedule.steps]:
        before = [list(row) for row in state]
        for src, dst, chunk, op in step:
            sent, own = before[src][chunk], state[dst][chunk]
            state[dst][chunk] = tuple(map(sum, zip(own, sent))) if op == ADD else sent
        yield [list(row) for row in state]


def _check_shape(schedule: Schedule) -> None:
    ranks, chunks, fault = schedule.world_size, schedule.chunks, ""
    if schedule.collective not in COLLECTIVES:
        fault = f"{schedule.collective!r} is no collective: choose {', '.join(COLLECTIVES)}"
    elif ranks < 1 or chunks < 1:
        fault = f"{ranks} ranks and {chunks} chunks: there must be one of each"
    elif len(schedule.owner) != chunks or not all(0 <= rank < ranks for rank in schedule.owner):
        fault = f"owners {schedule.owner}: each of {chunks} chunks has one among {ranks} ranks"
    if fault:
        raise ScheduleError(f"{schedule.name}: {fault}")


def _where(schedule: Schedule, place: Place) -> str:
    """A transfer, for an error."""
    step, position = place
    return f"{schedule.name}, step {step}, transfer {position} ({schedule.steps[step][position]})"


# --- the rules of a step, by which its transfers may be made at once


def _checked_columns(schedule: Schedule) -> ScheduleArrays:
    """The transfers of a schedule all of whose steps obey the rules.

    Columns find whether a step breaks a rule; `_check_step` then says which transfer does.
    """
    try:
        columns = columns_of(schedule)
    except TypeError:  # what is no whole number, is first looked at as what else it is
        for number in range(len(schedule.steps)):
            _check_step(schedule, number)
        raise
    broken = _first_broken(columns, schedule.world_size, schedule.chunks)
    if broken is not None:
        _check_step(schedule, broken)
    return columns


def _first_broken(columns: ScheduleArrays, ranks: int, chunks: int) -> Optional[int]:
    """The first step with a transfer that breaks a rule."""
    src, dst, chunk = columns.src, columns.dst, columns.chunk
    bad = (columns.op == NEITHER) | (src == dst)
    for column, count in ((src, ranks), (dst, ranks), (chunk, chunks)):
        bad |= (column < 0) | (column >= count)
    first_bad = columns.step[np.argmax(bad)] if bad.any() else len(columns.starts) - 1
    writer = np.full(ranks * chunks, -1)  # of each cell, the last row that writes it
    for step in range(first_bad):
        rows = slice(*columns.starts[step : step + 2])
        read = src[rows] * chunks + chunk[rows]
        written = dst[rows] * chunks + chunk[rows]
        numbers = np.arange(rows.start, rows.stop)
        writer[written] = numbers
        twice = written[writer[written] != numbers]
        copied = written[columns.op[rows] == IS_COPY]
        if (writer[read] >= rows.start).any() or np.isin(twice, copied).any():
            return step
    return int(first_bad) if bad.any() else None


def _check_step(schedule: Schedule, number: int) -> None:
    """Check the rules of a step; raise for the first transfer that breaks one."""
    n = schedule.world_size
    read: Dict[Cell, int] = {}
    written: Dict[Cell, str] = {}
    for position, transfer in enumerate(schedule.steps[number]):
        src, dst, chunk, op = transfer
        source, target = (src, chunk), (dst, chunk)
        fault: Optional[str] = None
        if op not in OPS:
            fault = f"{op!r} is no operation: choose {', '.join(OPS)}"
        elif not (0 <= src < n and 0 <= dst < n and 0 <= chunk < schedule.chunks):
            fault = f"there are {n} ranks and {schedule.chunks} chunks, counted from 0"
        elif src == dst:
            fault = "a rank cannot send to itself"
        elif source in written:
            fault = f"chunk {chunk} of rank {src} is written in the same step"
        elif target in read:
            fault = f"chunk {chunk} of rank {dst} is read in the same step"
        elif target in written and (op, written[target]) != (ADD, ADD):
            fault = (
                f"chunk {chunk} of rank {dst} is written twice in the step, not only by additions"
            )
        if fault:
            place = (number, position)
            raise ScheduleError(f"{_where(schedule, place)}: {fault}", *place)
        read[source], written[target] = position, op


# --- a run of one chunk


class _Sums:
    """Trees by number; trees that differ only in the order of summands share one.

    Tree number r is rank r's contribution itself. ``ever`` and ``often``: for each tree, the ranks
    whose contributions are in it, and those whose are more than once, as bits of a whole number.
    """

    def __init__(self, world_size: int) -> None:
        self.ever: List[int] = [1 << rank for rank in range(world_size)]
        self.often: List[int] = [0] * world_size
        self._numbers: Dict[Tuple[int, int], int] = {}

    def add(self, left: int, right: int) -> int:
        """The number of the tree with these two below it."""
        pair = (left, right) if left < right else (right, left)
        number = self._numbers.get(pair)
        if number is None:
            ever, often = self.ever, self.often
            number = self._numbers[pair] = len(ever)
            often.append(often[left] | often[right] | ever[left] & ever[right])
            ever.append(ever[left] | ever[right])
        return number


class _ChunkSimulation:
    """The transfers of one chunk, in these ``rows`` of `ScheduleArrays`, carried out on trees.

    ``tree[rank]``: what the rank ends with. ``written``: what each transfer wrote.
    """

    def __init__(self, columns: ScheduleArrays, rows: Any, world_size: int) -> None:
        self.rows, self.sums = rows, _Sums(world_size)
        self.src, self.dst = columns.src[rows].tolist(), columns.dst[rows].tolist()
        self.adds = (columns.op[rows] == IS_ADD).tolist()
        self.tree = list(range(world_size))
        self.written: List[int] = []
        tree = self.tree
        for src, dst, adds in zip(self.src, self.dst, self.adds):
            tree[dst] = self.sums.add(tree[dst], tree[src]) if adds else tree[src]
            self.written.append(tree[dst])

    def first_fault(self, rank: int) -> Optional[int]:
        """The first transfer into the result of ``rank`` that counts a contribution twice.

        Without such a transfer, the last one into ``rank``.
        """
        origin: List[int] = []  # the transfers whose results are part of it, backwards
        wanted = {rank}
        for turn in reversed(range(len(self.written))):
            if self.dst[turn] in wanted:
                origin.append(turn)
                if not self.adds[turn]:
                    wanted.discard(self.dst[turn])
                wanted.add(self.src[turn])
        doubles = [turn for turn in reversed(origin) if self.sums.often[self.written[turn]]]
        into_rank = [turn for turn in origin if self.dst[turn] == rank]
        return next(iter(doubles + into_rank[:1]), None)


def _check_chunk(
    schedule: Schedule, chunk: int, run: _ChunkSimulation, columns: ScheduleArrays
) -> None:
    """Check what the ranks hold of a chunk at the end."""
    owner, everybody = schedule.owner[chunk], (1 << schedule.world_size) - 1
    ranks = [owner] if schedule.collective == REDUCE_SCATTER else range(schedule.world_size)
    for rank in ranks:
        tree, fault = run.tree[rank], ""
        ever, often = run.sums.ever[tree], run.sums.often[tree]
        if schedule.collective == ALL_GATHER:
            if tree != owner:
                fault = f"another chunk {chunk} than its owner, rank {owner}, began with"
        elif ever != everybody or often:
            fault = f"chunk {chunk} {_miscounted(everybody & ~ever, often)}"
        if fault:
            _fail(schedule, columns, run, rank, f"rank {rank} ends with {fault}")
    for rank in ranks:
        if run.tree[rank] != run.tree[ranks[0]]:
            order = f"ranks {ranks[0]} and {rank} add up chunk {chunk} in another order"
            _fail(schedule, columns, run, rank, f"{order}, and so with other bits")


def _miscounted(without: int, often: int) -> str:
    lacks = [f"without the contribution of {_ranks(without)}"] * bool(without)
    return " and ".join(lacks + [f"counting {_ranks(often)} more than once"] * bool(often))


def _ranks(bits: int) -> str:
    ranks = [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _fail(
    schedule: Schedule, columns: ScheduleArrays, run: _ChunkSimulation, rank: int, message: str
) -> None:
    turn = run.first_fault(rank)
    if turn is None:
        raise ScheduleError(f"{schedule.name}: {message}: nothing is ever sent to it")
    row = int(run.rows[turn])
    step = int(columns.step[row])
    place: Place = (step, row - int(columns.starts[step]))
    raise ScheduleError(f"{_where(schedule, place)}: {message}", *place)
