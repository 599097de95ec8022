"""Maps a schedule's chunks to ranges of arrays, and lists the operations on these ranges.

- `partition` divides arrays into chunks, or assigns whole arrays to chunks.
- `coalesce_transfers` lists the operations that an executor runs on GPUs.
- `list_chunk_writes` lists the operations that an executor runs on CPU devices.
- `OverlapTracker` finds uses of overlapping parts that must wait for each other.
"""

from __future__ import annotations

from itertools import permutations
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from gluonlab.collectives.schedule import Schedule, Step
from gluonlab.errors import ScheduleError


class ArrayRange(NamedTuple):
    """The elements ``begin`` to ``end`` - 1 of array number ``array`` after flattening."""

    array: int
    begin: int
    end: int


def partition(sizes: Sequence[int], chunks: int, whole: bool = False) -> List[List[ArrayRange]]:
    """Cut arrays into chunks, and return the parts of each chunk, which are ranges of arrays.

    Every element is in one part, and no part is empty. ``sizes``: the number of elements of each
    array. The arrays are laid end to end and cut into equal chunks. If ``whole`` is true, arrays
    are not cut. Instead, each array, largest first, is assigned to the chunk with the fewest
    elements so far, and a chunk may be empty.
    """
    if chunks < 1:
        raise ScheduleError(f"chunks={chunks}: must be at least 1")
    if whole:
        return _distribute_whole_arrays(sizes, chunks)
    return [_cut_range(sizes, begin, end) for begin, end in split_evenly(sum(sizes), chunks)]


def split_evenly(size: int, parts: int) -> List[Tuple[int, int]]:
    """Return (begin, end) of each part. The first ``size % parts`` parts have one more element."""
    quotient, remainder = divmod(size, parts) if parts else (0, 0)
    begins = [part * quotient + min(part, remainder) for part in range(parts + 1)]
    return list(zip(begins, begins[1:]))


def owned_parts(schedule: Schedule, sizes: Sequence[int]) -> List[Tuple[int, ArrayRange]]:
    """Return (owner, part) for each part: a range of one array that belongs to one chunk.

    The owner is the rank that holds the part between reduce_scatter and all_gather. ``sizes``: the
    number of elements of each array.
    """
    parts = partition(sizes, schedule.chunks)
    return [(rank, part) for chunk, rank in enumerate(schedule.owner) for part in parts[chunk]]


def _distribute_whole_arrays(sizes: Sequence[int], chunks: int) -> List[List[ArrayRange]]:
    """Assign each array, largest first, to the chunk with the fewest elements so far."""
    parts: List[List[ArrayRange]] = [[] for _ in range(chunks)]
    load = [0] * chunks
    for array in sorted(range(len(sizes)), key=lambda array: -sizes[array]):
        if sizes[array]:
            lightest = load.index(min(load))
            load[lightest] += sizes[array]
            parts[lightest].append(ArrayRange(array, 0, sizes[array]))
    return parts


def _cut_range(sizes: Sequence[int], begin: int, end: int) -> List[ArrayRange]:
    """Return the parts between ``begin`` and ``end`` when the arrays are laid end to end."""
    parts, offset = [], 0
    for array, size in enumerate(sizes):
        first, last = max(begin, offset), min(end, offset + size)
        if first < last:
            parts.append(ArrayRange(array, first - offset, last - offset))
        offset += size
    return parts


# --- operations on chunks

Cell = Tuple[int, int]  # (rank, chunk)


class CoalescedTransfer(NamedTuple):
    """One operation for several transfers of a schedule.

    The operation adds ``part`` of the arrays on the ranks ``sources`` to the same part on rank
    ``dst``, or copies the part to ``dst``. ``transfers``: the number of transfers that the
    operation performs. ``last_source_ready``: see `ChunkWrite`.
    """

    part: ArrayRange
    op: str
    dst: int
    sources: Tuple[int, ...]
    transfers: int
    last_source_ready: bool = False


def coalesce_transfers(schedule: Schedule, parts: Sequence[Sequence[ArrayRange]]) -> Iterator[CoalescedTransfer]:
    """Yield the transfers of each step for GPUs, with transfers of adjacent chunks joined into one.

    On GPUs, MXNet's engine waits for the stream after each operation, so even small operations are
    expensive. Adjacent chunks with the same source and target are therefore moved in one operation.
    Only the algorithm halving_doubling benefits: it runs 48 instead of 112 operations on 8 devices.
    ``parts``: the parts of each chunk, from `partition`.
    """
    for step in schedule.steps:
        uncoalesced = [
            CoalescedTransfer(part, op, dst, sources, len(sources))
            for dst, chunk, op, sources in _group_by_target(step)
            for part in parts[chunk]
        ]
        coalesced: List[CoalescedTransfer] = []
        for move in sorted(uncoalesced, key=lambda move: (move.dst, move.op, move.sources, move.part)):
            array, begin, end = move.part
            previous = coalesced[-1] if coalesced else None
            if (
                previous
                and previous.part == (array, previous.part.begin, begin)
                and ((previous.op, previous.dst, previous.sources) == (move.op, move.dst, move.sources))
            ):
                coalesced.pop()
                part = ArrayRange(array, previous.part.begin, end)
                move = move._replace(part=part, transfers=previous.transfers + move.transfers)
            coalesced.append(move)
        yield from coalesced


def _group_by_target(step: Step) -> Iterator[Tuple[int, int, str, Tuple[int, ...]]]:
    """Yield (dst, chunk, op, sources) for each chunk that the step writes on a rank, in order."""
    sources_by_target: Dict[Tuple[int, int, str], List[int]] = {}
    for src, dst, chunk, op in step:
        sources_by_target.setdefault((dst, chunk, op), []).append(src)
    for target, sources in sources_by_target.items():
        yield (*target, tuple(sources))


class ChunkWrite(NamedTuple):
    """A write in one step: the chunk to write on rank ``dst``, and the ranks to read from.

    ``last_source_ready``: whether the last source can be read without waiting, and without making
    other operations wait. This is true if two conditions hold. First, no earlier step has written
    to the last source. Second, if a later step writes to the last source, the next such step also
    reads the chunk of ``dst``, and therefore waits for this operation.
    """

    dst: int
    chunk: int
    op: str
    sources: Tuple[int, ...]
    last_source_ready: bool


def list_chunk_writes(schedule: Schedule) -> List[ChunkWrite]:
    """Return the writes of all steps, in the order of the steps."""
    writes = [list(_group_by_target(step)) for step in schedule.steps]
    first_write: Dict[Cell, int] = {}
    for number, step_writes in enumerate(writes):
        for dst, chunk, _, _ in step_writes:
            first_write.setdefault((dst, chunk), number)
    reversed_writes: List[ChunkWrite] = []
    next_sources: Dict[Cell, Tuple[int, ...]] = {}  # of the next step that writes to a cell
    for number in reversed(range(len(writes))):
        for dst, chunk, op, sources in reversed(writes[number]):
            last_source = (sources[-1], chunk)
            is_unwritten = first_write.get(last_source, number) >= number
            is_ready = is_unwritten and dst in next_sources.get(last_source, (dst,))
            reversed_writes.append(ChunkWrite(dst, chunk, op, sources, is_ready))
        next_sources.update({(dst, chunk): sources for dst, chunk, _, sources in writes[number]})
    return reversed_writes[::-1]


class OverlapTracker:
    """Tracks reads and writes of a rank's elements, to find uses that must be ordered."""

    def __init__(self) -> None:
        self._clock = 0
        self._uses: Dict[int, Dict[ArrayRange, _LastUse]] = {}  # by array
        # the time when two parts were last ordered
        self._ordered: Dict[Tuple[ArrayRange, ArrayRange], int] = {}

    def record_use(self, part: ArrayRange, writes: bool) -> List[ArrayRange]:
        """Record a read or write of ``part``.

        Return the overlapping parts whose uses must end first.

        Later calls treat the returned parts as ordered.
        """
        uses_of_array = self._uses.setdefault(part.array, {})
        others = [
            other
            for other, uses in uses_of_array.items()
            if other != part
            and _ranges_overlap(other, part)
            and uses.conflict_time(writes) > self._ordered.get((other, part), 0)
        ]
        if others:
            self._clock += 1
            self._ordered.update(dict.fromkeys(permutations([part, *others], 2), self._clock))
        self._clock += 1
        last_use = uses_of_array.get(part, _LastUse(0, 0))
        uses_of_array[part] = last_use.with_access(self._clock, writes)
        return others


class _LastUse(NamedTuple):
    """The times at which a part was last used and last written."""

    used: int
    written: int

    def conflict_time(self, writes: bool) -> int:
        """Return the time of the last use that conflicts with a new write or read.

        A write conflicts with any use, and a read conflicts only with a write.
        """
        return self.used if writes else self.written

    def with_access(self, now: int, writes: bool) -> _LastUse:
        return _LastUse(now, now if writes else self.written)


def _ranges_overlap(one: ArrayRange, other: ArrayRange) -> bool:
    return one.array == other.array and one.begin < other.end and other.begin < one.end
