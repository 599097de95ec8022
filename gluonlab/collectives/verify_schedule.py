"""Proves that a schedule is correct, by running it on symbols instead of numbers.

A rank's chunk is represented by a tree of additions, whose leaves are the ranks' contributions.
Floating-point addition is commutative but not associative. So two chunks have the same bits for all
inputs if and only if their trees are equal up to swapped summands.

Chunks do not affect each other, so each chunk is simulated separately.
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
    OPS,
    REDUCE_SCATTER,
    UNKNOWN_OP,
    Schedule,
    ScheduleArrays,
    schedule_to_arrays,
)
from gluonlab.errors import ScheduleError

Contributions = Tuple[int, ...]  # how often each rank's contribution is in a sum
Cell = Tuple[int, int]  # (rank, chunk)
Position = Tuple[int, int]  # (step, position in the step)


def verify(schedule: Schedule) -> None:
    """Prove that a schedule computes its collective, with bit-identical results on all ranks.

    Args:
        schedule: the schedule.

    Raises:
        ScheduleError: the schedule is wrong. The message names the first wrong step and transfer. A
            transfer is wrong if it breaks a rule of steps, adds a contribution a second time, or is
            the last transfer into a chunk that remains incomplete.
    """
    _check_shape(schedule)
    arrays = _check_steps(schedule)
    by_chunk = np.argsort(arrays.chunk, kind="stable")
    ends = np.cumsum(np.bincount(arrays.chunk, minlength=schedule.chunks))
    for chunk, rows in enumerate(np.split(by_chunk, ends[:-1])):
        _check_chunk(schedule, chunk, _ChunkSimulation(arrays, rows, schedule.world_size), arrays)


def simulate_contributions(schedule: Schedule) -> Iterator[List[List[Contributions]]]:
    """Yield the contributions in every rank's chunks before the first step and after each step.

    ``state[rank][chunk][r]``: how many times rank r's contribution is in the chunk.
    """
    ranks = range(schedule.world_size)
    state = [[tuple(int(r == rank) for r in ranks)] * schedule.chunks for rank in ranks]
    for step in [(), *schedule.steps]:
        previous = [list(row) for row in state]
        for src, dst, chunk, op in step:
            sent, current = previous[src][chunk], state[dst][chunk]
            state[dst][chunk] = tuple(map(sum, zip(current, sent))) if op == ADD else sent
        yield [list(row) for row in state]


def _check_shape(schedule: Schedule) -> None:
    """Raise ScheduleError for an unknown collective, or for impossible ranks, chunks or owners."""
    ranks, chunks, problem = schedule.world_size, schedule.chunks, ""
    if schedule.collective not in COLLECTIVES:
        problem = f"{schedule.collective!r} is not a valid collective: choose {', '.join(COLLECTIVES)}"
    elif ranks < 1 or chunks < 1:
        problem = f"{ranks} ranks and {chunks} chunks: use at least 1 rank and 1 chunk"
    elif len(schedule.owner) != chunks or not all(0 <= rank < ranks for rank in schedule.owner):
        problem = f"owner={schedule.owner}: list one of the {ranks} ranks for each of the {chunks} chunks"
    if problem:
        raise ScheduleError(f"{schedule.name}: {problem}")


def _format_transfer(schedule: Schedule, position: Position) -> str:
    """Return a transfer as text for an error message."""
    step, number = position
    return f"{schedule.name}, step {step}, transfer {number} ({schedule.steps[step][number]})"


# --- the rules of a step, which make its transfers independent of each other


def _check_steps(schedule: Schedule) -> ScheduleArrays:
    """Check the rules of all steps, and return the schedule as arrays.

    The arrays show quickly which step breaks a rule. `_check_step` then finds the transfer.
    """
    try:
        arrays = schedule_to_arrays(schedule)
    except TypeError:  # another rule may be broken before: its message is better
        for number in range(len(schedule.steps)):
            _check_step(schedule, number)
        raise
    invalid_step = _find_invalid_step(arrays, schedule.world_size, schedule.chunks)
    if invalid_step is not None:
        _check_step(schedule, invalid_step)
    return arrays


def _find_invalid_step(arrays: ScheduleArrays, ranks: int, chunks: int) -> Optional[int]:
    """Return the number of the first step with a transfer that breaks a rule, or None."""
    src, dst, chunk = arrays.src, arrays.dst, arrays.chunk
    is_invalid = (arrays.op == UNKNOWN_OP) | (src == dst)
    for column, count in ((src, ranks), (dst, ranks), (chunk, chunks)):
        is_invalid |= (column < 0) | (column >= count)
    first_invalid = arrays.step[np.argmax(is_invalid)] if is_invalid.any() else len(arrays.starts) - 1
    writer = np.full(ranks * chunks, -1)  # the last row that writes each cell
    for step in range(first_invalid):
        rows = slice(*arrays.starts[step : step + 2])
        read = src[rows] * chunks + chunk[rows]
        written = dst[rows] * chunks + chunk[rows]
        numbers = np.arange(rows.start, rows.stop)
        writer[written] = numbers
        overwritten = written[writer[written] != numbers]
        copied = written[arrays.op[rows] == IS_COPY]
        if (writer[read] >= rows.start).any() or np.isin(overwritten, copied).any():
            return step
    return int(first_invalid) if is_invalid.any() else None


def _check_step(schedule: Schedule, number: int) -> None:
    """Check the rules of a step. Raise ScheduleError for the first transfer that breaks a rule."""
    n = schedule.world_size
    read: Dict[Cell, int] = {}
    written: Dict[Cell, str] = {}
    for position, transfer in enumerate(schedule.steps[number]):
        src, dst, chunk, op = transfer
        source, target = (src, chunk), (dst, chunk)
        problem: Optional[str] = None
        if op not in OPS:
            problem = f"{op!r} is not a valid operation: choose {', '.join(OPS)}"
        elif not (0 <= src < n and 0 <= dst < n and 0 <= chunk < schedule.chunks):
            problem = f"ranks must be below {n} and chunks below {schedule.chunks}, counted from 0"
        elif src == dst:
            problem = "a rank cannot send to itself"
        elif source in written:
            problem = f"chunk {chunk} of rank {src} is also written in this step"
        elif target in read:
            problem = f"chunk {chunk} of rank {dst} is also read in this step"
        elif target in written and (op, written[target]) != (ADD, ADD):
            problem = f"chunk {chunk} of rank {dst} is written twice in this step, which only additions can do"
        if problem:
            location = (number, position)
            raise ScheduleError(f"{_format_transfer(schedule, location)}: {problem}", *location)
        read[source], written[target] = position, op


# --- the simulation of one chunk


class _SumTrees:
    """Numbered trees of additions. Trees that differ only in the order of summands share a number.

    Tree r is rank r's contribution. ``contributors`` and ``duplicates`` are bit sets: for each
    tree, the ranks whose contributions are in it, and the ranks whose contributions are in it more
    than once.
    """

    def __init__(self, world_size: int) -> None:
        self.contributors: List[int] = [1 << rank for rank in range(world_size)]
        self.duplicates: List[int] = [0] * world_size
        self._numbers: Dict[Tuple[int, int], int] = {}

    def add(self, left: int, right: int) -> int:
        """Return the number of the tree that sums the trees ``left`` and ``right``."""
        pair = (left, right) if left < right else (right, left)
        number = self._numbers.get(pair)
        if number is None:
            contributors, duplicates = self.contributors, self.duplicates
            number = self._numbers[pair] = len(contributors)
            duplicates.append(duplicates[left] | duplicates[right] | contributors[left] & contributors[right])
            contributors.append(contributors[left] | contributors[right])
        return number


class _ChunkSimulation:
    """The transfers of one chunk, in ``rows`` of `ScheduleArrays`, applied to trees.

    ``final_trees[rank]``: the rank's tree at the end. ``written``: the tree that each transfer
    wrote.
    """

    def __init__(self, arrays: ScheduleArrays, rows: Any, world_size: int) -> None:
        self.rows, self.sums = rows, _SumTrees(world_size)
        self.src, self.dst = arrays.src[rows].tolist(), arrays.dst[rows].tolist()
        self.adds = (arrays.op[rows] == IS_ADD).tolist()
        self.final_trees = list(range(world_size))
        self.written: List[int] = []
        tree = self.final_trees
        for src, dst, adds in zip(self.src, self.dst, self.adds):
            tree[dst] = self.sums.add(tree[dst], tree[src]) if adds else tree[src]
            self.written.append(tree[dst])

    def find_faulty_transfer(self, rank: int) -> Optional[int]:
        """Return the first transfer that makes the final chunk of ``rank`` wrong.

        Such a transfer adds a contribution a second time. If there is no such transfer, return the
        last transfer into ``rank``.
        """
        ancestors: List[int] = []  # the transfers that contribute to the final chunk, backwards
        relevant_ranks = {rank}
        for index in reversed(range(len(self.written))):
            if self.dst[index] in relevant_ranks:
                ancestors.append(index)
                if not self.adds[index]:
                    relevant_ranks.discard(self.dst[index])
                relevant_ranks.add(self.src[index])
        doubles = [index for index in reversed(ancestors) if self.sums.duplicates[self.written[index]]]
        into_rank = [index for index in ancestors if self.dst[index] == rank]
        return next(iter(doubles + into_rank[:1]), None)


def _check_chunk(schedule: Schedule, chunk: int, simulation: _ChunkSimulation, arrays: ScheduleArrays) -> None:
    """Raise ScheduleError unless the final chunk is correct and bit-identical on all ranks."""
    owner, all_ranks = schedule.owner[chunk], (1 << schedule.world_size) - 1
    ranks = [owner] if schedule.collective == REDUCE_SCATTER else range(schedule.world_size)
    for rank in ranks:
        tree, problem = simulation.final_trees[rank], ""
        contributors, duplicates = simulation.sums.contributors[tree], simulation.sums.duplicates[tree]
        if schedule.collective == ALL_GATHER:
            if tree != owner:
                problem = f"a chunk {chunk} that does not come from its owner, rank {owner}"
        elif contributors != all_ranks or duplicates:
            problem = f"chunk {chunk} {_describe_miscount(all_ranks & ~contributors, duplicates)}"
        if problem:
            _raise_fault(schedule, arrays, simulation, rank, f"rank {rank} ends with {problem}")
    for rank in ranks:
        if simulation.final_trees[rank] != simulation.final_trees[ranks[0]]:
            order = f"ranks {ranks[0]} and {rank} add the contributions to chunk {chunk} in a different order"
            _raise_fault(schedule, arrays, simulation, rank, f"{order}, so their results are not bit-identical")


def _describe_miscount(missing: int, duplicates: int) -> str:
    problems = [f"without the contribution of {_format_ranks(missing)}"] * bool(missing)
    return " and ".join(problems + [f"counting {_format_ranks(duplicates)} more than once"] * bool(duplicates))


def _format_ranks(bits: int) -> str:
    ranks = [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _raise_fault(
    schedule: Schedule, arrays: ScheduleArrays, simulation: _ChunkSimulation, rank: int, message: str
) -> None:
    """Raise ScheduleError for the first transfer that makes the final chunk of ``rank`` wrong."""
    index = simulation.find_faulty_transfer(rank)
    if index is None:
        raise ScheduleError(f"{schedule.name}: {message}: no transfer sends this chunk to rank {rank}")
    row = int(simulation.rows[index])
    step = int(arrays.step[row])
    position: Position = (step, row - int(arrays.starts[step]))
    raise ScheduleError(f"{_format_transfer(schedule, position)}: {message}", *position)
