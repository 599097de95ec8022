"""The proof that a schedule is right, by running it on symbols instead of numbers.

A chunk of a rank is the tree of additions that made it, its leaves the ranks' contributions.
Floating-point addition commutes but does not associate, so two chunks have the same bits for all
inputs exactly when their trees are equal up to swapping summands.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from gluonlab.collectives.schedule import (
    ADD,
    ALL_GATHER,
    COLLECTIVES,
    OPS,
    REDUCE_SCATTER,
    Schedule,
    Step,
)
from gluonlab.errors import ScheduleError

Cell = Tuple[int, int]  # (rank, chunk)
Place = Tuple[int, int]  # (step, position in the step)
Contributions = Tuple[int, ...]  # how often each rank's contribution is in a sum


class _Sums:
    """Sum trees by number; trees that differ only in the order of summands share one."""

    def __init__(self, world_size: int) -> None:
        self.contributions: List[Contributions] = [
            tuple(int(rank == own) for rank in range(world_size)) for own in range(world_size)
        ]  # tree number r is rank r's contribution itself
        self._numbers: Dict[Tuple[int, int], int] = {}

    def add(self, left: int, right: int) -> int:
        pair = (min(left, right), max(left, right))
        if pair not in self._numbers:
            self._numbers[pair] = len(self.contributions)
            both = zip(self.contributions[left], self.contributions[right])
            self.contributions.append(tuple(a + b for a, b in both))
        return self._numbers[pair]


class _Write(NamedTuple):
    """A transfer that was made: where it stands, what it wrote, and from which trees."""

    place: Place
    cell: Cell
    tree: int


class _Run:
    """A schedule carried out on trees.

    ``tree[rank][chunk]`` is the present tree, ``writes`` every write that led there.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.sums = _Sums(schedule.world_size)
        self.tree = [[rank] * schedule.chunks for rank in range(schedule.world_size)]
        self.writes: List[_Write] = []

    def step(self, number: int, step: Step) -> None:
        before = [list(row) for row in self.tree]
        for position, (src, dst, chunk, op) in enumerate(step):
            sent = before[src][chunk]
            tree = self.sums.add(self.tree[dst][chunk], sent) if op == ADD else sent
            self.tree[dst][chunk] = tree
            self.writes.append(_Write((number, position), (dst, chunk), tree))

    def contributions(self, rank: int, chunk: int) -> Contributions:
        return self.sums.contributions[self.tree[rank][chunk]]


def check(schedule: Schedule) -> None:
    """Prove that ``schedule`` does what it promises, with the same bits on all ranks.

    Raises ScheduleError, which names the first wrong step and transfer: the one that breaks a rule
    of steps, or that adds a contribution a second time, or the last one into a chunk that ends
    incomplete.
    """
    _check_shape(schedule)
    run = _Run(schedule)
    for number, step in enumerate(schedule.steps):
        _check_step(schedule, number, step)
        run.step(number, step)
    for chunk in range(schedule.chunks):
        _check_chunk(run, chunk)


def states(schedule: Schedule) -> Iterator[List[List[Contributions]]]:
    """What every rank holds before the first step and after each.

    ``state[rank][chunk][r]``: how often rank r's contribution is in it.
    """
    run = _Run(schedule)
    ranks, chunks = range(schedule.world_size), range(schedule.chunks)
    for number, step in enumerate([(), *schedule.steps]):
        run.step(number, step)
        yield [[run.contributions(rank, chunk) for chunk in chunks] for rank in ranks]


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


def _check_step(schedule: Schedule, number: int, step: Step) -> None:
    """Check the rules of a step; raise for the first transfer that breaks one."""
    n = schedule.world_size
    read: Dict[Cell, int] = {}
    written: Dict[Cell, str] = {}
    for position, transfer in enumerate(step):
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


def _check_chunk(run: _Run, chunk: int) -> None:
    """Check what the ranks hold of a chunk at the end."""
    schedule, owner = run.schedule, run.schedule.owner[chunk]
    ranks = [owner] if schedule.collective == REDUCE_SCATTER else range(schedule.world_size)
    for rank in ranks:
        counts, fault = run.contributions(rank, chunk), ""
        if schedule.collective == ALL_GATHER:
            if run.tree[rank][chunk] != owner:
                fault = f"another chunk {chunk} than its owner, rank {owner}, began with"
        elif any(count != 1 for count in counts):
            fault = f"chunk {chunk} {_miscounted(counts)}"
        if fault:
            _fail(run, (rank, chunk), f"rank {rank} ends with {fault}")
    for rank in ranks:
        if run.tree[rank][chunk] != run.tree[ranks[0]][chunk]:
            order = f"ranks {ranks[0]} and {rank} add up chunk {chunk} in another order"
            _fail(run, (rank, chunk), f"{order}, and so with other bits")


def _miscounted(counts: Contributions) -> str:
    without = [rank for rank, count in enumerate(counts) if count == 0]
    often = [rank for rank, count in enumerate(counts) if count > 1]
    lacks = [f"without the contribution of {_ranks(without)}"] * bool(without)
    return " and ".join(lacks + [f"counting {_ranks(often)} more than once"] * bool(often))


def _ranks(ranks: List[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _fail(run: _Run, cell: Cell, message: str) -> None:
    place = _first_fault(run, cell)
    if place is None:
        raise ScheduleError(f"{run.schedule.name}: {message}: nothing is ever sent to it")
    raise ScheduleError(f"{_where(run.schedule, place)}: {message}", *place)


def _first_fault(run: _Run, cell: Cell) -> Optional[Place]:
    """The first transfer into the result of ``cell`` that counts a contribution twice.

    Without such a transfer, the last one into ``cell``.
    """
    origin = _origin(run, cell)
    doubles = [write.place for write in origin if max(run.sums.contributions[write.tree]) > 1]
    into_cell = [write.place for write in origin if write.cell == cell]
    return next(iter(doubles + into_cell[-1:]), None)


def _origin(run: _Run, cell: Cell) -> List[_Write]:
    """The transfers whose results are part of what ``cell`` ends with, in order."""
    writes: List[_Write] = []
    wanted = {cell}
    for write in reversed(run.writes):
        if write.cell in wanted:
            writes.append(write)
            step, position = write.place
            transfer = run.schedule.steps[step][position]
            if transfer.op != ADD:
                wanted.discard(write.cell)
            wanted.add((transfer.src, transfer.chunk))
    return writes[::-1]


def _where(schedule: Schedule, place: Place) -> str:
    step, position = place
    return f"{schedule.name}, step {step}, transfer {position} ({schedule.steps[step][position]})"
