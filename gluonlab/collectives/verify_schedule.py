"""Proves that a schedule is correct, by running it on symbols instead of numbers.

A rank's chunk is represented by a tree of additions, whose leaves are the ranks' contributions.
Floating-point addition is commutative but not associative. So two chunks have the same bits for all
inputs if and only if their trees are equal up to swapped summands.

Chunks do not affect each other, so each chunk is simulated separately.
"""

from __future__ import annotations

import operator
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

from gluonlab.collectives.schedule import ADD, ALL_GATHER, COLLECTIVES, OPS, REDUCE_SCATTER, Schedule, Step
from gluonlab.errors import ScheduleError

Contributions = Tuple[int, ...]  # how often each rank's contribution is in a sum
Cell = Tuple[int, int]  # (rank, chunk)
Position = Tuple[int, int]  # (step, position in the step)
_CHUNK_OF = operator.itemgetter(2)  # the chunk of a transfer; faster than the attribute


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
    for chunk, transfers in enumerate(_check_steps(schedule)):
        _check_chunk(schedule, chunk, _ChunkSimulation(transfers, schedule.world_size))


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


class _ChunkTransfers(NamedTuple):
    """The transfers of one chunk, as lists with one entry for each transfer."""

    src: List[int]
    dst: List[int]
    op: List[str]


def _check_steps(schedule: Schedule) -> List[_ChunkTransfers]:
    """Check the rules of all steps, and return the transfers of each chunk.

    Large schedules have millions of transfers. So the rules are first checked in a fast way, which
    does not find the transfer that breaks a rule. `_check_step` then finds the transfer.
    """
    by_chunk = {chunk: _ChunkTransfers([], [], []) for chunk in range(schedule.chunks)}
    try:
        for step in schedule.steps:
            for src, dst, chunk, op in step:
                src_list, dst_list, op_list = by_chunk[chunk]
                src_list.append(src)
                dst_list.append(dst)
                op_list.append(op)
        ranks = frozenset(range(schedule.world_size))
        are_valid = all(_are_possible(each, ranks) for each in by_chunk.values())
        are_valid = are_valid and all(_are_independent(step, schedule.chunks) for step in schedule.steps)
    except (KeyError, TypeError):  # an impossible chunk, or ranks that are not numbers
        _check_each_step(schedule)
        raise
    if not are_valid:
        _check_each_step(schedule)
    return list(by_chunk.values())


def _are_possible(transfers: _ChunkTransfers, ranks: FrozenSet[int]) -> bool:
    """Return whether ranks and operations exist, and no rank sends to itself."""
    src, dst, op = transfers
    are_ranks = ranks.issuperset(src) and ranks.issuperset(dst)
    return are_ranks and not any(map(operator.eq, src, dst)) and set(op) <= set(OPS)


def _are_independent(step: Step, chunks: int) -> bool:
    """Return whether the transfers of a step are obviously independent of each other.

    A cell is compared as a number, which is faster than as a tuple.
    """
    if len(set(map(_CHUNK_OF, step))) == len(step):
        return True
    written = {dst * chunks + chunk for _, dst, chunk, _ in step}
    if len(written) < len(step) and any(op != ADD for *_, op in step):
        return False
    return written.isdisjoint([src * chunks + chunk for src, _, chunk, _ in step])


def _check_each_step(schedule: Schedule) -> None:
    for number in range(len(schedule.steps)):
        _check_step(schedule, number)


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


class _ChunkSimulation:
    """The transfers of one chunk, applied to numbered trees of additions.

    Tree r is rank r's contribution. Trees that differ only in the order of summands share a number.

    ``final_trees[rank]``: the rank's tree at the end. ``written``: the tree that each transfer
    wrote. ``contributors`` and ``duplicates`` contain a bit set for each tree: the ranks whose
    contributions are in the tree, and the ranks whose contributions are in it more than once.
    """

    def __init__(self, transfers: _ChunkTransfers, world_size: int) -> None:
        contributors, duplicates = [1 << rank for rank in range(world_size)], [0] * world_size
        trees = list(range(world_size))
        written: List[int] = []
        numbers: Dict[Tuple[int, int], int] = {}
        # Large schedules have millions of transfers, so this loop calls no Python functions.
        find_number, append = numbers.get, written.append
        for src, dst, op in zip(*transfers):
            if op == ADD:
                left, right = trees[dst], trees[src]
                if left > right:
                    left, right = right, left
                number = find_number((left, right), 0)  # sums have numbers above 0
                if not number:
                    number = numbers[left, right] = len(contributors)
                    in_left, in_right = contributors[left], contributors[right]
                    contributors.append(in_left | in_right)
                    duplicates.append(duplicates[left] | duplicates[right] | in_left & in_right)
            else:
                number = trees[src]
            trees[dst] = number
            append(number)
        self.transfers, self.contributors, self.duplicates = transfers, contributors, duplicates
        self.final_trees, self.written = trees, written

    def find_faulty_transfer(self, rank: int) -> Optional[int]:
        """Return the first transfer that makes the final chunk of ``rank`` wrong.

        Such a transfer adds a contribution a second time. If there is no such transfer, return the
        last transfer into ``rank``.
        """
        ancestors: List[int] = []  # the transfers that contribute to the final chunk, backwards
        relevant_ranks = {rank}
        for index in reversed(range(len(self.written))):
            src, dst, op = self.transfers.src[index], self.transfers.dst[index], self.transfers.op[index]
            if dst in relevant_ranks:
                ancestors.append(index)
                if op != ADD:
                    relevant_ranks.discard(dst)
                relevant_ranks.add(src)
        doubles = [index for index in reversed(ancestors) if self.duplicates[self.written[index]]]
        into_rank = [index for index in ancestors if self.transfers.dst[index] == rank]
        return next(iter(doubles + into_rank[:1]), None)


def _check_chunk(schedule: Schedule, chunk: int, simulation: _ChunkSimulation) -> None:
    """Raise ScheduleError unless the final chunk is correct and bit-identical on all ranks."""
    owner, all_ranks = schedule.owner[chunk], (1 << schedule.world_size) - 1
    ranks = [owner] if schedule.collective == REDUCE_SCATTER else range(schedule.world_size)
    for rank in ranks:
        tree, problem = simulation.final_trees[rank], ""
        contributors, duplicates = simulation.contributors[tree], simulation.duplicates[tree]
        if schedule.collective == ALL_GATHER:
            if tree != owner:
                problem = f"a chunk {chunk} that does not come from its owner, rank {owner}"
        elif contributors != all_ranks or duplicates:
            problem = f"chunk {chunk} {_describe_miscount(all_ranks & ~contributors, duplicates)}"
        if problem:
            _raise_fault(schedule, chunk, simulation, rank, f"rank {rank} ends with {problem}")
    for rank in ranks:
        if simulation.final_trees[rank] != simulation.final_trees[ranks[0]]:
            order = f"ranks {ranks[0]} and {rank} add the contributions to chunk {chunk} in a different order"
            _raise_fault(schedule, chunk, simulation, rank, f"{order}, so their results are not bit-identical")


def _describe_miscount(missing: int, duplicates: int) -> str:
    problems = [f"without the contribution of {_format_ranks(missing)}"] * bool(missing)
    return " and ".join(problems + [f"counting {_format_ranks(duplicates)} more than once"] * bool(duplicates))


def _format_ranks(bits: int) -> str:
    ranks = [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _raise_fault(schedule: Schedule, chunk: int, simulation: _ChunkSimulation, rank: int, message: str) -> None:
    """Raise ScheduleError for the first transfer that makes the final chunk of ``rank`` wrong."""
    index = simulation.find_faulty_transfer(rank)
    if index is None:
        raise ScheduleError(f"{schedule.name}: {message}: no transfer sends this chunk to rank {rank}")
    positions: List[Position] = [
        (number, position)
        for number, step in enumerate(schedule.steps)
        for position, transfer in enumerate(step)
        if transfer.chunk == chunk
    ]
    raise ScheduleError(f"{_format_transfer(schedule, positions[index])}: {message}", *positions[index])
