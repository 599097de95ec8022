"""Runs a schedule on NDArrays, in place, without making the host wait.

Each device has a list of arrays. MXNet's engine orders operations by the arrays that they read and
write, and knows slices of one array only as the whole: two devices that write different chunks of
it would take turns. So every chunk gets an array of its own over the same memory (an alias, made
with DLPack). The engine does not know that they share it; a `Fence` before the first and one after
the last transfer tell it. In between, the chunks' own dependencies order the transfers: there is no
barrier between steps, which a schedule's price assumes. An array that is never cut needs neither
alias nor fences, of which small messages would consist for the most part.

On CPU devices a chunk goes through all steps in pieces small enough that what one transfer wrote is
still in the cache when the next reads it. On GPUs, where MXNet waits for the stream after each
operation, chunks are whole, and neighbours that go the same way are moved as one
(`gluonlab.collectives.chunk_layout.moves`).
"""

from __future__ import annotations

import math
from itertools import chain
from typing import (
    AbstractSet,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.chunk_layout import (
    ArrayRange,
    Move,
    Overlaps,
    moves,
    owned_parts,
    partition,
    split_evenly,
    targets,
)
from gluonlab.collectives.schedule import ADD, Schedule
from gluonlab.engine.fast_invoke import (
    REVERSED_ADD_N_COUNTS,
    EngineCall,
    Fence,
    arrays_share_memory,
    flat_view,
    gpu_sum_calls,
    is_on_gpu,
    operator_call,
    reversed_add_n_call,
    row_major_calls,
    sum_calls,
)
from gluonlab.errors import ScheduleError
from gluonlab.gpu.cuda import enable_peer_access

# Small enough for the last-level cache of most CPUs. Of 128 KiB to 16 MiB, 2 MiB and more were
# equally fast here; the smaller, the more calls there are.
PIECE_BYTES = 2 * 2**20
MOST_EXECUTORS = 256  # more than the parameters of a ResNet-50


class Executor:
    """``run()`` carries out ``schedule`` on ``arrays``, in place; all ranks get the same bits.

    ``arrays[rank]`` are the arrays of one rank, all on one device of its own; every rank has the
    same shapes and types. Chunks are cut by elements, or hold ``whole`` arrays
    (`gluonlab.collectives.chunk_layout`). Sums are made in the arrays' own type. Raises
    ScheduleError,
    and leaves the arrays as they are, when they do not fit the schedule or each other.

    Making one costs about 50 microseconds a piece and waits for the arrays; make it once and run it
    often, from one thread. Nothing is recorded for autograd. On GPUs every transfer that adds has
    memory of its own for what arrives, as large as the piece.
    """

    def __init__(
        self, schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], whole: bool = False
    ) -> None:
        check_arrays(schedule, arrays)
        enable_peer_access([rank_arrays[0].context for rank_arrays in arrays])
        self.schedule = schedule
        # `make_allreduce` knows an executor by its arrays' ids
        self._arrays = [list(rank_arrays) for rank_arrays in arrays]
        self.transfers_run = 0  # transfers queued so far, each piece of a chunk counted once
        self._calls: List[EngineCall] = []
        self._transfers = 0
        with autograd.pause():
            parts = partition([array.size for array in arrays[0]], schedule.chunks, whole)
            all_moves = list(moves_on(schedule, parts, arrays[0]))
            cut = {  # arrays of which less than the whole is moved
                part.array
                for part in (move.part for move in all_moves)
                if part != (part.array, 0, arrays[0][part.array].size)
            }
            ranks = [_Rank(rank_arrays, cut) for rank_arrays in arrays]
            on_gpus = is_on_gpu(arrays[0][0])
            for move in all_moves:
                if on_gpus:  # where the cells of a rank may not be apart
                    for source in move.sources:
                        self._calls += ranks[source].order(move.part, writes=False)
                    self._calls += ranks[move.dst].order(move.part, writes=True)
                cells = [ranks[source].cell(move.part) for source in move.sources]
                target = ranks[move.dst].cell(move.part)
                added_up = move.op == ADD
                self._calls += target.add(cells, move.free) if added_up else target.copy(cells[0])
                self._transfers += move.transfers
            self._settling = [call for rank in ranks for call in rank.settling]
            self._fences = [fence for rank in ranks for fence in rank.fences()]

    def run(self, priority: int = 0, settled: bool = False) -> None:
        """Queue all transfers; nothing waits for them.

        ``priority``: of the fences, as in ``kvstore.pushpull``; arrays that are not cut have none.

        ``settled``: nothing but what knows slices of the arrays has written to them since `settle`.
        """
        with autograd.pause():
            if not settled:
                self.settle()
            for fence in self._fences:
                fence(priority)
            for call in self._calls:
                call()
            for fence in self._fences:
                fence(priority)
        self.transfers_run += self._transfers

    def settle(self) -> None:
        """Bring the arrays into row order, as `run` does first.

        oneDNN leaves some in an order that slices of them do not know.
        """
        for call in self._settling:
            call()


def allreduce(
    schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], whole: bool = False
) -> None:
    """Carry a schedule out once; see `Executor`."""
    Executor(schedule, arrays, whole).run()


def make_allreduce(
    name: str, ctxs: Sequence[mx.Context], order: Optional[Sequence[int]] = None
) -> Callable[[List[nd.NDArray]], None]:
    """A function that sums a list of arrays in place, one on each of ``ctxs``.

    ``name``: the algorithm. It prepares itself for the arrays that it is given, and knows the last
    MOST_EXECUTORS lists again, which it keeps in memory. So give it the same objects every time: an
    NDArray's ``grad`` is a new one each time it is asked for, ``list_grad()`` of a gluon.Parameter
    is not. ``order``: which of ``ctxs`` plays which rank.
    """
    schedule = make_schedule(name, len(ctxs))
    if order is not None:
        schedule = schedule.placed(order)
    executors: Dict[Tuple[int, ...], Executor] = {}

    def run(data: List[nd.NDArray]) -> None:
        # an executor keeps its arrays alive, so an id stays theirs
        key = tuple(id(array) for array in data)
        executor = executors.pop(key, None) or Executor(schedule, [[array] for array in data])
        executors[key] = executor  # the last one used is the last
        if len(executors) > MOST_EXECUTORS:
            del executors[next(iter(executors))]
        executor.run()

    return run


class _Rank:
    """The arrays of one rank, and the cells made of them; those in ``cut`` are moved in parts."""

    def __init__(self, arrays: Sequence[nd.NDArray], cut: AbstractSet[int]) -> None:
        self.ctx = arrays[0].context
        self._cut = cut
        self._flat = [flat_view(array) for array in arrays]
        self.settling = [call for array in self._flat for call in row_major_calls(array)]
        for call in self.settling:
            call()
        self._cells: Dict[ArrayRange, _Cell] = {}
        self._overlaps = Overlaps()

    def fences(self) -> Iterator[Fence]:
        """Fences that make the engine order these cells with other users of the arrays.

        There is one for each array that is cut: two arrays may be parts of a third one, and the
        engine waits for ever for a variable given twice. All count as written: what is only read
        does not wait for its other readers. They must be done before the first transfer writes, and
        those on other ranks before what comes after the last.
        """
        for place in sorted(self._cut):
            aliases = [cell.alias for part, cell in self._cells.items() if part.array == place]
            if aliases:
                yield Fence(self.ctx, read=[], written=[self._flat[place], *aliases])

    def order(self, part: ArrayRange, writes: bool) -> Iterator[EngineCall]:
        """Fences between uses of overlapping cells, whose shared elements the engine cannot see."""
        others = self._overlaps.use(part, writes)
        if others:
            written = [self.cell(each).alias for each in (part, *others)]
            yield Fence(self.ctx, read=[], written=written)

    def cell(self, part: ArrayRange) -> _Cell:
        if part not in self._cells:
            flat = self._flat[part.array]
            if part.array in self._cut:
                view = flat[part.begin : part.end]
                self._cells[part] = _Cell(view, nd.from_dlpack(nd.to_dlpack_for_write(view)))
            else:
                self._cells[part] = _Cell(flat, flat)
        return self._cells[part]


class _Cell:
    """A piece of a chunk on one rank.

    ``alias`` is what the engine orders the transfers by. ``view`` is the same memory as a slice of
    the rank's own array: on the CPU an operator runs on the worker of its first input's device, and
    an alias has forgotten which CPU device it is on. Both are the array itself where it is not cut.
    """

    def __init__(self, view: nd.NDArray, alias: nd.NDArray) -> None:
        self.view, self.alias = view, alias
        self._staging: Dict[int, nd.NDArray] = {}

    def add(self, others: Sequence[_Cell], free: bool) -> Iterator[EngineCall]:
        """Add the other ranks' pieces to this one, in their order.

        It is done on this rank's device, but on the last other CPU device if one operation can add
        them all: that reads the last piece first, whose view says where to run. So it must be free
        to read, or be its own alias.
        """
        if not is_on_gpu(self.view):
            inputs = [self.alias, *[other.alias for other in others]]
            if len(inputs) in REVERSED_ADD_N_COUNTS and (
                free or others[-1].view is others[-1].alias
            ):
                yield reversed_add_n_call([*inputs[:-1], others[-1].view], self.alias)
            else:
                yield from sum_calls([self.view, *inputs[1:]], self.alias, self.view)
            return
        arrived = [self._stage(turn) for turn in range(len(others))]
        for other, stage in zip(others, arrived):  # a kernel reads its own device's memory only
            yield operator_call("_copyto", [other.alias], stage)
        yield from gpu_sum_calls([self.alias, *arrived], self.alias)

    def copy(self, other: _Cell) -> Iterator[EngineCall]:
        """Copy the other rank's piece over this one."""
        if is_on_gpu(self.view):
            yield operator_call("_copyto", [other.alias], self.alias)
        # on the other rank's device, which has just written the piece; it reads the view, and waits
        # for the alias
        else:
            inputs = [other.view, other.alias]
            yield operator_call("_identity_with_attr_like_rhs", inputs, self.alias)

    def _stage(self, turn: int) -> nd.NDArray:
        if turn not in self._staging:
            self._staging[turn] = nd.empty(self.view.shape, self.view.context, self.view.dtype)
        return self._staging[turn]


def moves_on(
    schedule: Schedule, parts: Sequence[Sequence[ArrayRange]], arrays: Sequence[nd.NDArray]
) -> Iterator[Move]:
    """All transfers as the devices of ``arrays``, those of any rank, should make them.

    GPUs make few and large ones. CPU devices take a piece of each chunk through all steps, then the
    next one. ``parts``: those of each chunk.
    """
    if is_on_gpu(arrays[0]):
        yield from moves(schedule, parts)
        return
    all_targets = targets(schedule)
    pieces = [
        [piece for part in of_chunk for piece in pieces_of(part, arrays[part.array])]
        for of_chunk in parts
    ]
    for turn in range(max(map(len, pieces))):
        for dst, chunk, op, sources, free in all_targets:
            if turn < len(pieces[chunk]):
                yield Move(pieces[chunk][turn], op, dst, sources, len(sources), free)


def pieces_of(part: ArrayRange, array: nd.NDArray) -> List[ArrayRange]:
    """The pieces that a part of ``array`` is cut into; on GPUs there is only one.

    Their caches hold less, and every operation has its price.
    """
    size = part.end - part.begin
    count = (
        1 if is_on_gpu(array) else math.ceil(size * np.dtype(array.dtype).itemsize / PIECE_BYTES)
    )
    bounds = split_evenly(size, count)
    return [ArrayRange(part.array, part.begin + begin, part.begin + end) for begin, end in bounds]


# --- a reduce-scatter that leaves its inputs as they are, at the price of one in place
#
# The first addition into a chunk of a rank writes the sum of two arrays into a third one, and those
# after it add to that, or to a slice of it. So nothing is ever copied, and chunks that are only
# read need no memory. They are read through slices, of which the engine lets several be read at
# once; sums are arrays of their own. So the engine knows all that there is to order, and needs
# neither aliases nor fences.


class Owned(NamedTuple):
    """A sum that a rank owns after a reduce-scatter: ``array``, (n,), of the elements ``part``."""

    rank: int
    part: ArrayRange
    array: nd.NDArray


class ReduceApart:
    """``run()`` sums ``arrays`` by ``schedule``, a reduce-scatter; `owned` are the sums.

    ``arrays`` as in `gluonlab.collectives.schedule_executor.Executor`, cut by elements. They are
    only read,
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
        self._sums: Dict[Tuple[int, ArrayRange], nd.NDArray] = {}
        self._joins = is_on_gpu(
            arrays[0][0]
        )  # chunks that move as one in a step, and not in the next
        self._calls: List[EngineCall] = []
        sizes = [array.size for array in arrays[0]]
        with autograd.pause():
            self._flat = [[flat_view(array) for array in of_rank] for of_rank in arrays]
            self._settling = [call for flat in chain(*self._flat) for call in row_major_calls(flat)]
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

    def _cut(self, part: ArrayRange, ranks: Sequence[int]) -> Iterator[ArrayRange]:
        """``part``, or pieces of it where it begins or ends within sums of these ranks."""
        edges = {part.begin, part.end}
        for rank, other in self._sums if self._joins else ():
            if rank in ranks and other.array == part.array:
                edges.update(edge for edge in other[1:] if part.begin < edge < part.end)
        cuts = sorted(edges)
        for begin, end in zip(cuts, cuts[1:]):
            yield ArrayRange(part.array, begin, end)

    def _add(self, piece: ArrayRange, rank: int, others: Sequence[int]) -> None:
        first, values = self._value(rank, piece), [self._value(other, piece) for other in others]
        total = self._sum_so_far(rank, piece)
        if total is None:
            total = self._sums[rank, piece] = _empty(first, first.context)
        if is_on_gpu(total):  # a kernel reads its own device's memory only
            arrived = [_empty(value, total.context) for value in values]
            self._calls += [operator_call("_copyto", [a], b) for a, b in zip(values, arrived)]
            self._calls += gpu_sum_calls([first, *arrived], total)
        elif len(values) + 1 in REVERSED_ADD_N_COUNTS:
            self._calls.append(reversed_add_n_call([first, *values], total))
        else:
            self._calls += sum_calls([first, *values], total, total)

    def _value(self, rank: int, piece: ArrayRange) -> nd.NDArray:
        """Where the rank's contribution lies, or what it has summed so far."""
        total = self._sum_so_far(rank, piece)
        return self._flat[rank][piece.array][piece.begin : piece.end] if total is None else total

    def _sum_so_far(self, rank: int, piece: ArrayRange) -> Optional[nd.NDArray]:
        """The rank's sum of ``piece``, perhaps as a slice of a larger sum, or None."""
        if (rank, piece) in self._sums:
            return self._sums[rank, piece]
        for (owner, part), array in self._sums.items() if self._joins else ():
            within = part.begin <= piece.begin and piece.end <= part.end
            if (owner, part.array) == (rank, piece.array) and within:
                return array[piece.begin - part.begin : piece.end - part.begin]
        return None

    def _sum(self, rank: int, piece: ArrayRange) -> nd.NDArray:
        """The rank's sum of ``piece``; where nothing was added, as with one rank, a copy."""
        total = self._sum_so_far(rank, piece)
        if total is None:
            value = self._value(rank, piece)
            total = self._sums[rank, piece] = _empty(value, value.context)
            self._calls.append(operator_call("_copyto", [value], total))
        return total


def _empty(like: nd.NDArray, ctx: mx.Context) -> nd.NDArray:
    return nd.empty(like.shape, ctx, like.dtype)


# --- whether arrays fit a schedule and each other

Kind = Tuple[Tuple[int, ...], str]  # shape and type


def check_arrays(
    schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], written: bool = True
) -> None:
    """Raise ScheduleError for arrays that do not fit the schedule or each other.

    Those that are to be ``written`` may share no memory.
    """
    fault = _fault(schedule, arrays, written)
    if fault:
        raise ScheduleError(f"{schedule.name}{fault}")


def _fault(schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], written: bool) -> str:
    """What is wrong first, to be said after the schedule's name; nothing where all is right."""
    if len(arrays) != schedule.world_size:
        return f" is for {schedule.world_size} ranks, and there are arrays of {len(arrays)}"
    if any(isinstance(rank_arrays, nd.NDArray) for rank_arrays in arrays):
        return ": each rank has a list of arrays: [[a], [b]], not [a, b]"
    if not arrays[0]:
        return ": there are no arrays to work on"
    first = _kinds(arrays[0])
    for rank, rank_arrays in enumerate(arrays):
        own = _kinds(rank_arrays)
        if own != first:
            return f": rank {rank} has {_named(own)}, rank 0 {_named(first)}: they must be alike"
        if any(array.context != rank_arrays[0].context for array in rank_arrays):
            return (
                f": the arrays of rank {rank} lie on several devices: each rank has one of its own"
            )
        if any(array.stype != "default" for array in rank_arrays):
            return (
                f": rank {rank} has sparse arrays: "
                "dense ones can be summed, array.tostype('default')"
            )
    if written and arrays_share_memory([array for rank_arrays in arrays for array in rank_arrays]):
        return ": some of the arrays share memory: give each its own, array.copy()"
    ctxs = [rank_arrays[0].context for rank_arrays in arrays]
    kinds = {ctx.device_type for ctx in ctxs}
    if not kinds <= {"cpu", "gpu"}:
        return f": the arrays lie on {', '.join(sorted(kinds))}: use devices cpu(i) or gpu(i)"
    if any(type_name == "bool" for _, type_name in first):
        return ": the arrays are of type bool, which has no sum: use array.astype('int32')"
    if len(set(ctxs)) < len(ctxs):
        names = ", ".join(map(str, ctxs))
        return f": the ranks lie on {names}: each rank needs a device of its own"
    return ": CPU devices and GPUs together: use devices of one kind" if len(kinds) > 1 else ""


def _kinds(arrays: Sequence[nd.NDArray]) -> List[Kind]:
    return [(array.shape, np.dtype(array.dtype).name) for array in arrays]


def _named(kinds: Sequence[Kind]) -> str:
    names = [f"{type_name}{list(shape)}" for shape, type_name in kinds[:4]]
    return " ".join(names + ["..."] * (len(kinds) > 4))
