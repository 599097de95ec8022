"""The proof that a schedule is right, by running it on symbols instead of numbers.

A chunk of a rank is the tree of additions that made it, its leaves the ranks' contributions.
Floating-point addition commutes but does not associate, so two chunks have the same bits for all
inputs exactly when their trees are equal up to swapping summands.

Chunks know nothing of each other. So each is run on its own, and of those that are copies of each
other but for the names of ranks only the first (`symmetry`): of all chunks of a ring, one.
"""

from __future__ import annotations

from typing import Iterator, List, Optional, Tuple

from gluonlab.collectives.columns import IS_ADD, Columns
from gluonlab.collectives.rules import Place, checked_columns, where
from gluonlab.collectives.schedule import ADD, ALL_GATHER, COLLECTIVES, REDUCE_SCATTER, Schedule
from gluonlab.collectives.sums import Sums
from gluonlab.collectives.symmetry import Course, chunks_to_prove, courses
from gluonlab.errors import ScheduleError

Contributions = Tuple[int, ...]  # how often each rank's contribution is in a sum


def check(schedule: Schedule) -> None:
    """Prove that ``schedule`` does what it promises, with the same bits on all ranks.

    Raises ScheduleError, which names the first wrong step and transfer: the one that breaks a rule
    of steps, or that adds a contribution a second time, or the last one into a chunk that ends
    incomplete.
    """
    _check_shape(schedule)
    columns = checked_columns(schedule)
    every = courses(columns, schedule.owner)
    for chunk in chunks_to_prove(every, schedule.world_size):
        _check_chunk(schedule, chunk, _Run(every[chunk], schedule.world_size), columns)


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


class _Run:
    """The transfers of one chunk, carried out on trees.

    ``tree[rank]``: what the rank ends with. ``written``: what each transfer wrote.
    """

    def __init__(self, course: Course, world_size: int) -> None:
        self.course, self.sums = course, Sums(world_size)
        self.src, self.dst = course.src.tolist(), course.dst.tolist()
        self.adds = [op == IS_ADD for op in course.op.tolist()]
        self.tree = list(range(world_size))
        self.written: List[int] = []
        tree = self.tree
        for src, dst, adds in zip(self.src, self.dst, self.adds):
            tree[dst] = self.sums.add(tree[dst], tree[src]) if adds else tree[src]
            self.written.append(tree[dst])


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


def _check_chunk(schedule: Schedule, chunk: int, run: _Run, columns: Columns) -> None:
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


def _fail(schedule: Schedule, columns: Columns, run: _Run, rank: int, message: str) -> None:
    turn = _first_fault(run, rank)
    if turn is None:
        raise ScheduleError(f"{schedule.name}: {message}: nothing is ever sent to it")
    row = int(run.course.rows[turn])
    step = int(columns.step[row])
    place: Place = (step, row - int(columns.starts[step]))
    raise ScheduleError(f"{where(schedule, place)}: {message}", *place)


def _first_fault(run: _Run, rank: int) -> Optional[int]:
    """The first transfer into the result of ``rank`` that counts a contribution twice.

    Without such a transfer, the last one into ``rank``.
    """
    origin = _origin(run, rank)
    doubles = [turn for turn in origin if run.sums.often[run.written[turn]]]
    into_rank = [turn for turn in origin if run.dst[turn] == rank]
    return next(iter(doubles + into_rank[-1:]), None)


def _origin(run: _Run, rank: int) -> List[int]:
    """The transfers whose results are part of what ``rank`` ends with, in order."""
    turns: List[int] = []
    wanted = {rank}
    for turn in reversed(range(len(run.written))):
        if run.dst[turn] in wanted:
            turns.append(turn)
            if not run.adds[turn]:
                wanted.discard(run.dst[turn])
            wanted.add(run.src[turn])
    return turns[::-1]
