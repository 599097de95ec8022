"""Runs schedules on NDArrays, in place, without blocking the host.

`Executor` runs a schedule repeatedly, `allreduce` runs it once, and `make_allreduce` returns a
function that sums any arrays. `OutOfPlaceReduceScatter` leaves its inputs unchanged. Transfers wait
only for the chunks they need: there is no barrier between steps, although the cost model assumes
barriers.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import AbstractSet, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.chunk_layout import (
    ArrayRange,
    CoalescedTransfer,
    OverlapTracker,
    coalesce_transfers,
    list_chunk_writes,
    owned_parts,
    partition,
    split_evenly,
)
from gluonlab.collectives.schedule import ADD, Schedule
from gluonlab.engine.fast_invoke import (
    EngineCall,
    Fence,
    arrays_share_memory,
    flat_view,
    is_on_gpu,
    operator_call,
    row_major_calls,
)
from gluonlab.engine.sum_calls import REVERSED_ADD_N_COUNTS, gpu_sum_calls, reversed_add_n_call, sum_calls
from gluonlab.errors import ScheduleError
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.renamed import RenamedMember

# MXNet's engine orders operations by the arrays that they read and write, and treats all slices of
# an array as the whole array. Two devices that write different chunks of one array would therefore
# wait for each other. So every chunk has an alias: a separate array over the same memory, made with
# DLPack. The engine does not know that aliases share memory with the array. A `Fence` before the
# first transfer and another after the last transfer make the engine order the aliases with other
# users of the array. An array that is moved as a whole needs neither alias nor fences, which would
# take most of the time of small messages.
#
# On CPU devices, a chunk is divided into pieces, and each piece goes through all steps before the
# next piece, so that its data is still in the cache. On GPUs, MXNet waits for the stream after each
# operation. So chunks are not divided there, and neighboring chunks with the same source and target
# are moved at once (`gluonlab.collectives.chunk_layout.coalesce_transfers`).

# Small enough for the last-level cache of most CPUs. From 128 KiB to 16 MiB, 2 MiB and more were
# equally fast; smaller pieces need more calls.
PIECE_BYTES = 2 * 2**20
MAX_EXECUTORS = 256  # more than the parameters of a ResNet-50


class Executor:
    """Runs ``schedule`` on ``arrays``, in place, for each call of `run`.

    The results on all ranks are bit-identical. Sums are computed in the data type of the arrays.
    Creating an executor takes about 50 microseconds per piece of an array, and blocks until the
    arrays are ready. So create an executor once, and run it often, from one thread. Nothing is
    recorded for autograd. On GPUs, every addition needs memory for the data that it receives.

    Args:
        schedule: the schedule.
        arrays: ``arrays[rank]`` is the list of arrays of one rank, all on one device that no other
            rank uses. Every rank has the same shapes and types.
        whole: whether chunks hold whole arrays (`gluonlab.collectives.chunk_layout`) instead of
            equal numbers of elements.

    Raises:
        ScheduleError: if the arrays do not match the schedule or each other. In this case, the
            arrays are not changed.
    """

    def __init__(self, schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], whole: bool = False) -> None:
        check_arrays(schedule, arrays)
        enable_peer_access([rank_arrays[0].context for rank_arrays in arrays])
        self.schedule = schedule
        # keeps the arrays alive: `make_allreduce` finds an executor by their ids
        self._arrays = [list(rank_arrays) for rank_arrays in arrays]
        self.transfers_run = 0  # transfers queued so far, each piece of a chunk counted once
        self._calls: List[EngineCall] = []
        self._transfers_per_run = 0
        with autograd.pause():
            parts = partition([array.size for array in arrays[0]], schedule.chunks, whole)
            all_moves = list(plan_transfers(schedule, parts, arrays[0]))
            cut_arrays = {  # arrays that are not moved as a whole
                part.array
                for part in (move.part for move in all_moves)
                if part != (part.array, 0, arrays[0][part.array].size)
            }
            ranks = [_RankArrays(rank_arrays, cut_arrays) for rank_arrays in arrays]
            uses_gpus = is_on_gpu(arrays[0][0])
            for move in all_moves:
                if uses_gpus:  # coalesced pieces of a rank may overlap
                    for source in move.sources:
                        self._calls += ranks[source].order_uses(move.part, writes=False)
                    self._calls += ranks[move.dst].order_uses(move.part, writes=True)
                sources = [ranks[source].get_piece(move.part) for source in move.sources]
                target = ranks[move.dst].get_piece(move.part)
                if move.op == ADD:
                    self._calls += target.add(sources, move.last_source_ready)
                else:
                    self._calls += target.copy(sources[0])
                self._transfers_per_run += move.transfers
            self._row_major_calls = [call for rank in ranks for call in rank.row_major_calls]
            self._fences = [fence for rank in ranks for fence in rank.fences()]

    def run(self, priority: int = 0, is_row_major: bool = False) -> None:
        """Queue all transfers, and return without waiting for them.

        Args:
            priority: the priority of the fences (`_RankArrays.fences`), as in ``kvstore.pushpull``.
                Arrays that are not cut have no fences.
            is_row_major: whether the arrays are known to be row-major, because they have only been
                written through slices since `make_row_major`.
        """
        with autograd.pause():
            if not is_row_major:
                self.make_row_major()
            for fence in self._fences:
                fence(priority)
            for call in self._calls:
                call()
            for fence in self._fences:
                fence(priority)
        self.transfers_run += self._transfers_per_run

    def make_row_major(self) -> None:
        """Convert the arrays to row-major layout. By default, `run` does this first.

        oneDNN leaves some arrays in another layout, which slices would misread.
        """
        for call in self._row_major_calls:
            call()

    settle = RenamedMember("make_row_major")


def allreduce(schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], whole: bool = False) -> None:
    """Run a schedule once; see `Executor`."""
    Executor(schedule, arrays, whole).run()


def make_allreduce(
    name: str, ctxs: Sequence[mx.Context], order: Optional[Sequence[int]] = None
) -> Callable[[List[nd.NDArray]], None]:
    """Return a function that sums a list of arrays in place, one array on each device of ``ctxs``.

    ``name``: the algorithm. ``order``: ``ctxs[order[r]]`` has the role of rank r. The function
    prepares an executor for each new list of arrays, and keeps the last MAX_EXECUTORS executors in
    memory. For speed, pass the same objects in every call. An NDArray's ``grad`` is a new object at
    each access, but ``list_grad()`` of a gluon.Parameter returns the same objects.
    """
    schedule = make_schedule(name, len(ctxs))
    if order is not None:
        schedule = schedule.placed(order)
    executors: Dict[Tuple[int, ...], Executor] = {}

    def run(data: List[nd.NDArray]) -> None:
        """Replace each array by the sum of all arrays, and keep the executor for the next call."""
        # an executor keeps its arrays alive, so no other array gets their ids
        key = tuple(id(array) for array in data)
        executor = executors.pop(key, None) or Executor(schedule, [[array] for array in data])
        executors[key] = executor  # dicts keep insertion order: the last one used comes last
        if len(executors) > MAX_EXECUTORS:
            del executors[next(iter(executors))]
        executor.run()

    return run


class _RankArrays:
    """The arrays of one rank, and the pieces of chunks that transfers use.

    ``cut_arrays``: indices of the arrays that are moved in parts, not as a whole.
    """

    def __init__(self, arrays: Sequence[nd.NDArray], cut_arrays: AbstractSet[int]) -> None:
        self.ctx = arrays[0].context
        self._cut_arrays = cut_arrays
        self._flat = [flat_view(array) for array in arrays]
        self.row_major_calls = [call for array in self._flat for call in row_major_calls(array)]
        for call in self.row_major_calls:
            call()
        self._pieces: Dict[ArrayRange, _ChunkPiece] = {}
        self._overlaps = OverlapTracker()

    def fences(self) -> Iterator[Fence]:
        """Yield fences: engine operations that order an array's transfers and its other uses.

        There is one fence for each array that is moved in parts. A common fence for several arrays
        would not work, because two arrays may be parts of a third array, and the engine waits
        forever for a variable that is passed twice. The fences declare all arrays as written,
        because readers do not wait for each other. So the pieces are ready before the first
        transfer writes. Operations after the last transfer wait for the pieces on other ranks.
        """
        for index in sorted(self._cut_arrays):
            aliases = [piece.alias for part, piece in self._pieces.items() if part.array == index]
            if aliases:
                yield Fence(self.ctx, read=[], written=[self._flat[index], *aliases])

    def order_uses(self, part: ArrayRange, writes: bool) -> Iterator[EngineCall]:
        """Yield a fence if uses of overlapping parts must end first.

        The engine does not know that pieces overlap.
        """
        overlapping = self._overlaps.record_use(part, writes)
        if overlapping:
            written = [self.get_piece(other).alias for other in (part, *overlapping)]
            yield Fence(self.ctx, read=[], written=written)

    def get_piece(self, part: ArrayRange) -> _ChunkPiece:
        """Return the `_ChunkPiece` for a part of an array; create it at its first use."""
        if part not in self._pieces:
            flat = self._flat[part.array]
            if part.array in self._cut_arrays:
                view = flat[part.begin : part.end]
                self._pieces[part] = _ChunkPiece(view, nd.from_dlpack(nd.to_dlpack_for_write(view)))
            else:
                self._pieces[part] = _ChunkPiece(flat, flat)
        return self._pieces[part]


class _ChunkPiece:
    """A piece of a chunk on one rank.

    The engine orders the transfers by ``alias``. ``view`` is a slice of the rank's array, and
    shares its memory with ``alias``. On the CPU, an operator runs on the worker of its first
    input's device. ``alias`` has lost its CPU device, so ``view`` must be the first input. If the
    array is moved as a whole, ``alias`` and ``view`` are the array itself.
    """

    def __init__(self, view: nd.NDArray, alias: nd.NDArray) -> None:
        self.view, self.alias = view, alias
        self._staging: Dict[int, nd.NDArray] = {}

    def add(self, others: Sequence[_ChunkPiece], last_source_ready: bool) -> Iterator[EngineCall]:
        """Yield engine calls that add the pieces ``others`` of other ranks to this piece, in order.

        ``last_source_ready``: see `ChunkWrite`.
        """
        # The addition runs on this rank's device. If one operation can add all pieces, it runs on
        # the last other CPU device instead: it reads the last piece first, whose view determines
        # the device. So that piece must be readable without waiting, or be its own alias.
        if not is_on_gpu(self.view):
            inputs = [self.alias, *[other.alias for other in others]]
            if len(inputs) in REVERSED_ADD_N_COUNTS and (last_source_ready or others[-1].view is others[-1].alias):
                yield reversed_add_n_call([*inputs[:-1], others[-1].view], self.alias)
            else:
                yield from sum_calls([self.view, *inputs[1:]], self.alias, self.view)
            return
        received = [self._get_staging(number) for number in range(len(others))]
        for other, stage in zip(others, received):  # a kernel reads its own device's memory only
            yield operator_call("_copyto", [other.alias], stage)
        yield from gpu_sum_calls([self.alias, *received], self.alias)

    def copy(self, other: _ChunkPiece) -> Iterator[EngineCall]:
        """Yield the engine call that overwrites this piece with the other rank's piece."""
        if is_on_gpu(self.view):
            yield operator_call("_copyto", [other.alias], self.alias)
        else:
            # reads the view, so that it runs on the other rank's device, which has just written the
            # piece, and waits for the alias
            inputs = [other.view, other.alias]
            yield operator_call("_identity_with_attr_like_rhs", inputs, self.alias)

    def _get_staging(self, number: int) -> nd.NDArray:
        if number not in self._staging:
            self._staging[number] = nd.empty(self.view.shape, self.view.context, self.view.dtype)
        return self._staging[number]


def plan_transfers(
    schedule: Schedule, parts: Sequence[Sequence[ArrayRange]], arrays: Sequence[nd.NDArray]
) -> Iterator[CoalescedTransfer]:
    """Yield all transfers in the order in which the devices run them.

    GPUs run few, large operations. CPU devices run all steps on one piece of each chunk, then on
    the next piece. ``parts``: the parts of each chunk. ``arrays``: the arrays of one rank.
    """
    if is_on_gpu(arrays[0]):
        yield from coalesce_transfers(schedule, parts)
        return
    chunk_writes = list_chunk_writes(schedule)
    pieces = [
        [piece for part in chunk_parts for piece in cut_into_pieces(part, arrays[part.array])] for chunk_parts in parts
    ]
    for number in range(max(map(len, pieces))):
        for dst, chunk, op, sources, is_ready in chunk_writes:
            if number < len(pieces[chunk]):
                yield CoalescedTransfer(pieces[chunk][number], op, dst, sources, len(sources), is_ready)


def cut_into_pieces(part: ArrayRange, array: nd.NDArray) -> List[ArrayRange]:
    """Cut a part of ``array`` into pieces of at most about PIECE_BYTES; on GPUs, do not cut it.

    On GPUs, more pieces would be slower, since each operation has a fixed cost.
    """
    size = part.end - part.begin
    count = 1 if is_on_gpu(array) else math.ceil(size * np.dtype(array.dtype).itemsize / PIECE_BYTES)
    bounds = split_evenly(size, count)
    return [ArrayRange(part.array, part.begin + begin, part.begin + end) for begin, end in bounds]


# --- a reduce-scatter that does not change its inputs, as fast as one in place
#
# The first addition into a chunk of a rank writes the sum of two arrays into a third array. Later
# additions add to the third array, or to a slice of it. So nothing is copied, and chunks that are
# only read need no memory. They are read through slices, which the engine allows at the same time.
# Sums are separate arrays. So the engine knows all dependencies, and aliases and fences are not
# needed.


class OwnedSum(NamedTuple):
    """A sum that a rank owns after a reduce-scatter.

    ``part``: the elements that are summed. ``array``: their sum, of shape (n,).
    """

    rank: int
    part: ArrayRange
    array: nd.NDArray


class OutOfPlaceReduceScatter:
    """Runs a reduce-scatter that only reads ``arrays``, and stores the sums in ``owned``.

    ``arrays`` has the same form as for `Executor`, but the arrays may share memory. Chunks contain
    equal numbers of elements. Each rank needs memory for the sums that it computes, including
    partial sums that it sends on, as in a ring. On GPUs, it also needs memory for received pieces.
    Raises ScheduleError if the arrays do not match the schedule or each other.
    """

    def __init__(self, schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]]) -> None:
        if any(transfer.op != ADD for step in schedule.steps for transfer in step):
            raise ScheduleError(f"{schedule.name} copies chunks: use a reduce-scatter, which only adds chunks")
        check_arrays(schedule, arrays, written=False)
        enable_peer_access([rank_arrays[0].context for rank_arrays in arrays])
        self.transfers_run = 0  # as in Executor
        self._transfers_per_run = 0
        self._sums: Dict[Tuple[int, ArrayRange], nd.NDArray] = {}
        # on GPUs, chunks that move as one in a step may move separately in the next
        self._coalesces = is_on_gpu(arrays[0][0])
        self._calls: List[EngineCall] = []
        sizes = [array.size for array in arrays[0]]
        with autograd.pause():
            self._flat = [[flat_view(array) for array in rank_arrays] for rank_arrays in arrays]
            self._row_major_calls = [call for flat in chain(*self._flat) for call in row_major_calls(flat)]
            parts = partition(sizes, schedule.chunks)
            for move in plan_transfers(schedule, parts, arrays[0]):
                for piece in self._split_at_sums(move.part, [move.dst, *move.sources]):
                    self._add_piece(piece, move.dst, move.sources)
                self._transfers_per_run += move.transfers
            self.owned = [
                OwnedSum(rank, piece, self._final_sum(rank, piece))
                for rank, part in owned_parts(schedule, sizes)
                for piece in cut_into_pieces(part, arrays[0][part.array])
            ]

    def run(self, priority: int = 0) -> None:
        """Queue all additions, and return.

        ``priority`` is ignored, because MXNet's operators do not have priorities.
        """
        with autograd.pause():
            for call in self._row_major_calls:
                call()
            for call in self._calls:
                call()
        self.transfers_run += self._transfers_per_run

    def _split_at_sums(self, part: ArrayRange, ranks: Sequence[int]) -> Iterator[ArrayRange]:
        """Yield ``part``, cut wherever a sum of these ranks begins or ends inside it."""
        edges = {part.begin, part.end}
        for rank, other in self._sums if self._coalesces else ():
            if rank in ranks and other.array == part.array:
                edges.update(edge for edge in other[1:] if part.begin < edge < part.end)
        cuts = sorted(edges)
        for begin, end in zip(cuts, cuts[1:]):
            yield ArrayRange(part.array, begin, end)

    def _add_piece(self, piece: ArrayRange, rank: int, others: Sequence[int]) -> None:
        """Append calls that add ``piece`` of the ranks ``others`` to the sum of ``rank``."""
        first, *values = (self._current_value(number, piece) for number in (rank, *others))
        total = self._sum_so_far(rank, piece)
        if total is None:
            total = self._sums[rank, piece] = _empty_like(first, first.context)
        if is_on_gpu(total):  # a kernel reads its own device's memory only
            received = [_empty_like(value, total.context) for value in values]
            self._calls += [operator_call("_copyto", [a], b) for a, b in zip(values, received)]
            self._calls += gpu_sum_calls([first, *received], total)
        elif len(values) + 1 in REVERSED_ADD_N_COUNTS:
            self._calls.append(reversed_add_n_call([first, *values], total))
        else:
            self._calls += sum_calls([first, *values], total, total)

    def _current_value(self, rank: int, piece: ArrayRange) -> nd.NDArray:
        """Return the rank's sum of ``piece`` so far, or its own elements if nothing was added."""
        total = self._sum_so_far(rank, piece)
        return self._flat[rank][piece.array][piece.begin : piece.end] if total is None else total

    def _sum_so_far(self, rank: int, piece: ArrayRange) -> Optional[nd.NDArray]:
        """Return the rank's sum of ``piece`` so far, or None if nothing has been added to it."""
        if (rank, piece) in self._sums:
            return self._sums[rank, piece]
        for (owner, part), array in self._sums.items() if self._coalesces else ():
            is_inside = part.begin <= piece.begin and piece.end <= part.end
            if (owner, part.array) == (rank, piece.array) and is_inside:
                return array[piece.begin - part.begin : piece.end - part.begin]
        return None

    def _final_sum(self, rank: int, piece: ArrayRange) -> nd.NDArray:
        """Return the rank's sum of ``piece``, or a copy of its own values if nothing was added."""
        total = self._sum_so_far(rank, piece)
        if total is None:
            value = self._current_value(rank, piece)
            total = self._sums[rank, piece] = _empty_like(value, value.context)
            self._calls.append(operator_call("_copyto", [value], total))
        return total


def _empty_like(array: nd.NDArray, ctx: mx.Context) -> nd.NDArray:
    return nd.empty(array.shape, ctx, array.dtype)


# --- checks of arrays

ArrayKind = Tuple[Tuple[int, ...], str]  # shape and type


def check_arrays(schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], written: bool = True) -> None:
    """Raise ScheduleError for arrays that do not match the schedule or each other.

    If the arrays are ``written``, they must not share memory.
    """
    problem = _find_fault(schedule, arrays, written)
    if problem:
        raise ScheduleError(f"{schedule.name}{problem}")


def _find_fault(schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], written: bool) -> str:
    """Return a phrase that describes what is wrong with the arrays, or ""."""
    if len(arrays) != schedule.world_size:
        return f" is for {schedule.world_size} ranks, but there are arrays for {len(arrays)} ranks"
    if any(isinstance(rank_arrays, nd.NDArray) for rank_arrays in arrays):
        return ": pass a list of arrays for each rank, such as [[a], [b]], not [a, b]"
    if not arrays[0]:
        return ": rank 0 has no arrays: pass at least one array for each rank"
    first = _array_kinds(arrays[0])
    for rank, rank_arrays in enumerate(arrays):
        rank_kinds = _array_kinds(rank_arrays)
        if rank_kinds != first:
            return (
                f": rank {rank} has {_format_kinds(rank_kinds)}, but rank 0 has {_format_kinds(first)}: "
                "use the same shapes and types on all ranks"
            )
        if any(array.context != rank_arrays[0].context for array in rank_arrays):
            return f": the arrays of rank {rank} are on several devices: put them on one device"
        if any(array.stype != "default" for array in rank_arrays):
            return f": rank {rank} has sparse arrays: convert them with array.tostype('default')"
    if written and arrays_share_memory([array for rank_arrays in arrays for array in rank_arrays]):
        return ": some of the arrays share memory: copy them with array.copy()"
    ctxs = [rank_arrays[0].context for rank_arrays in arrays]
    kinds = {ctx.device_type for ctx in ctxs}
    if not kinds <= {"cpu", "gpu"}:
        return f": the arrays are on {', '.join(sorted(kinds))}: use devices cpu(i) or gpu(i)"
    if any(type_name == "bool" for _, type_name in first):
        return ": arrays of type bool cannot be added: use array.astype('int32')"
    if len(set(ctxs)) < len(ctxs):
        names = ", ".join(map(str, ctxs))
        return f": the ranks are on {names}: put each rank on a different device"
    return ": CPU devices and GPUs cannot be combined: use devices of one kind" if len(kinds) > 1 else ""


def _array_kinds(arrays: Sequence[nd.NDArray]) -> List[ArrayKind]:
    return [(array.shape, np.dtype(array.dtype).name) for array in arrays]


def _format_kinds(kinds: Sequence[ArrayKind]) -> str:
    names = [f"{type_name}{list(shape)}" for shape, type_name in kinds[:4]]
    return " ".join(names + ["..."] * (len(kinds) > 4))
