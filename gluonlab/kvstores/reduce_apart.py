"""A reduce-scatter that leaves its inputs as they are, at the price of one in place.

The first addition into a chunk of a rank writes the sum of two arrays into a third one, and those
after it add to that, or to a slice of it. So nothing is ever copied, and chunks that are only read
need no memory. They are read through slices, of which the engine lets several be read at once; sums
are arrays of their own. So the engine knows all that there is to order, and needs neither aliases
nor fences.
"""

from __future__ import annotations

from itertools import chain
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, nd

from gluonlab.collectives.arrays import check_arrays
from gluonlab.collectives.executor import moves_on, pieces_of
from gluonlab.collectives.partition import Part, owned_parts, partition
from gluonlab.collectives.schedule import ADD, Schedule
from gluonlab.engine.invoke import (
    ADDED_AT_ONCE,
    Call,
    added,
    added_at_once,
    added_on_gpu,
    flattened,
    is_gpu,
    operator_call,
    settling,
)
from gluonlab.errors import ScheduleError
from gluonlab.gpu.cuda import enable_peer_access


class Owned(NamedTuple):
    """A sum that a rank owns after a reduce-scatter: ``array``, (n,), of the elements ``part``."""

    rank: int
    part: Part
    array: nd.NDArray


class ReduceApart:
    """``run()`` sums ``arrays`` by ``schedule``, a reduce-scatter; `owned` are the sums.

    ``arrays`` as in `gluonlab.collectives.executor.Executor`, cut by elements. They are only read,
    and may share memory. Each rank has memory for the sums that it makes: for the chunks that it
    owns and, where sums are passed on, as in a ring, for those too; on GPUs also for what arrives.
    Raises ScheduleError when the arrays do not fit the schedule or each other.
    """

    def __init__(self, schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]]) -> None:
        if any(transfer.op != ADD for step in schedule.steps for transfer in step):
            raise ScheduleError(f"{schedule.name} copies chunks: give a reduce-scatter, which adds")
        check_arrays(schedule, arrays, written=False)
        enable_peer_access([of_rank[0].context for of_rank in arrays])
        self.transfers_run = 0  # as in Executor
        self._transfers = 0
        self._sums: Dict[Tuple[int, Part], nd.NDArray] = {}
        self._joins = is_gpu(arrays[0][0])  # chunks that move as one in a step, and not in the next
        self._calls: List[Call] = []
        sizes = [array.size for array in arrays[0]]
        with autograd.pause():
            self._flat = [[flattened(array) for array in of_rank] for of_rank in arrays]
            self._settling = [call for flat in chain(*self._flat) for call in settling(flat)]
            parts = partition(sizes, schedule.chunks)
            for move in moves_on(schedule, parts, arrays[0]):
                for piece in self._cut(move.part, [move.dst, *move.sources]):
                    self._add(piece, move.dst, move.sources)
                self._transfers += move.transfers
            self.owned = [
                Owned(rank, piece, self._sum(rank, piece))
                for rank, part in owned_parts(schedule, sizes)
                for piece in pieces_of(part, arrays[0][part.array])
            ]

    def run(self, priority: int = 0) -> None:
        """Queue all additions; nothing waits for them. Operators of MXNet take no ``priority``."""
        with autograd.pause():
            for call in self._settling:
                call()
            for call in self._calls:
                call()
        self.transfers_run += self._transfers

    def _cut(self, part: Part, ranks: Sequence[int]) -> Iterator[Part]:
        """``part``, or pieces of it where it begins or ends within sums of these ranks."""
        edges = {part.begin, part.end}
        for rank, other in self._sums if self._joins else ():
            if rank in ranks and other.array == part.array:
                edges.update(edge for edge in other[1:] if part.begin < edge < part.end)
        cuts = sorted(edges)
        for begin, end in zip(cuts, cuts[1:]):
            yield Part(part.array, begin, end)

    def _add(self, piece: Part, rank: int, others: Sequence[int]) -> None:
        first, values = self._value(rank, piece), [self._value(other, piece) for other in others]
        total = self._sum_so_far(rank, piece)
        if total is None:
            total = self._sums[rank, piece] = _empty(first, first.context)
        if is_gpu(total):  # a kernel reads its own device's memory only
            arrived = [_empty(value, total.context) for value in values]
            self._calls += [operator_call("_copyto", [a], b) for a, b in zip(values, arrived)]
            self._calls += added_on_gpu([first, *arrived], total)
        elif len(values) + 1 in ADDED_AT_ONCE:
            self._calls.append(added_at_once([first, *values], total))
        else:
            self._calls += added([first, *values], total, total)

    def _value(self, rank: int, piece: Part) -> nd.NDArray:
        """Where the rank's contribution lies, or what it has summed so far."""
        total = self._sum_so_far(rank, piece)
        return self._flat[rank][piece.array][piece.begin : piece.end] if total is None else total

    def _sum_so_far(self, rank: int, piece: Part) -> Optional[nd.NDArray]:
        """The rank's sum of ``piece``, perhaps as a slice of a larger sum, or None."""
        if (rank, piece) in self._sums:
            return self._sums[rank, piece]
        for (owner, part), array in self._sums.items() if self._joins else ():
            within = part.begin <= piece.begin and piece.end <= part.end
            if (owner, part.array) == (rank, piece.array) and within:
                return array[piece.begin - part.begin : piece.end - part.begin]
        return None

    def _sum(self, rank: int, piece: Part) -> nd.NDArray:
        """The rank's sum of ``piece``; where nothing was added, as with one rank, a copy."""
        total = self._sum_so_far(rank, piece)
        if total is None:
            value = self._value(rank, piece)
            total = self._sums[rank, piece] = _empty(value, value.context)
            self._calls.append(operator_call("_copyto", [value], total))
        return total


def _empty(like: nd.NDArray, ctx: mx.Context) -> nd.NDArray:
    return nd.empty(like.shape, ctx, like.dtype)
