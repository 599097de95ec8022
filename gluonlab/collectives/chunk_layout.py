"""From a schedule's chunks to arrays: which part of which array is whose, and how it is moved.

`partition` cuts arrays by elements, or hands out whole arrays. `moves` and `targets` are the
transfers as an executor makes them, for GPUs and for CPU devices. `Overlaps` says which uses of
parts must wait for each other.
"""

from __future__ import annotations

from itertools import permutations
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from gluonlab.collectives.schedule import Schedule, Step
from gluonlab.errors import ScheduleError


class ArrayRange(NamedTuple):
    """The elements ``begin`` to ``end`` of array number ``array``, flattened."""

    array: int
    begin: int
    end: int


def partition(sizes: Sequence[int], chunks: int, whole: bool = False) -> List[List[ArrayRange]]:
    """The parts of each chunk; every element of every array is in one of them, and none is empty.

    ``sizes``: elements of the arrays. By elements, the arrays laid end to end are cut into equal
    chunks. ``whole`` arrays are never cut: each goes, the largest first, to the chunk that has
    fewest elements so far, so a chunk may end with none.
    """
    if chunks < 1:
        raise ScheduleError(f"{chunks} chunks: there must be at least 1")
    if whole:
        return _whole(sizes, chunks)
    return [_cut(sizes, begin, end) for begin, end in split_evenly(sum(sizes), chunks)]


def split_evenly(size: int, parts: int) -> List[Tuple[int, int]]:
    """(begin, end) of each of ``parts`` parts; the first ``size % parts`` have one element more."""
    share, more = divmod(size, parts) if parts else (0, 0)
    begins = [part * share + min(part, more) for part in range(parts + 1)]
    return list(zip(begins, begins[1:]))


def owned_parts(schedule: Schedule, sizes: Sequence[int]) -> List[Tuple[int, ArrayRange]]:
    """(owner, part) for all parts that arrays of these sizes are cut into.

    The owner is the rank that holds the part between the schedule's halves.
    """
    parts = partition(sizes, schedule.chunks)
    return [(rank, part) for chunk, rank in enumerate(schedule.owner) for part in parts[chunk]]


def _whole(sizes: Sequence[int], chunks: int) -> List[List[ArrayRange]]:
    parts: List[List[ArrayRange]] = [[] for _ in range(chunks)]
    load = [0] * chunks
    for array in sorted(range(len(sizes)), key=lambda array: -sizes[array]):
        if sizes[array]:
            lightest = load.index(min(load))
            load[lightest] += sizes[array]
            parts[lightest].append(ArrayRange(array, 0, sizes[array]))
    return parts


def _cut(sizes: Sequence[int], begin: int, end: int) -> List[ArrayRange]:
    """What lies between ``begin`` and ``end`` when the arrays lie end to end."""
    parts, offset = [], 0
    for array, size in enumerate(sizes):
        first, last = max(begin, offset), min(end, offset + size)
        if first < last:
            parts.append(ArrayRange(array, first - offset, last - offset))
        offset += size
    return parts


# --- moves

Cell = Tuple[int, int]  # a rank and a chunk


class Move(NamedTuple):
    """Add the elements ``part`` of ``sources``, in this order, to those of ``dst``, or copy.

    ``transfers``: how many of the schedule's these are. ``free``: of a `Target`.
    """

    part: ArrayRange
    op: str
    dst: int
    sources: Tuple[int, ...]
    transfers: int
    free: bool = False


def moves(schedule: Schedule, parts: Sequence[Sequence[ArrayRange]]) -> Iterator[Move]:
    """All transfers, step by step, as few, large operations, for GPUs.

    There MXNet's engine waits for the stream after each operation, so every operation has its
    price, however small it is. Neighbouring chunks that go the same way in a step are moved as one.
    Of the algorithms this makes halving_doubling's 112 transfers among 8 devices 48; the others
    send single chunks anyway. ``parts``: those of each chunk, by `partition`.
    """
    for step in schedule.steps:
        single = [
            Move(part, op, dst, sources, len(sources))
            for dst, chunk, op, sources in _into_chunks(step)
            for part in parts[chunk]
        ]
        joined: List[Move] = []
        for move in sorted(single, key=lambda move: (move.dst, move.op, move.sources, move.part)):
            array, begin, end = move.part
            before = joined[-1] if joined else None
            if (
                before
                and before.part == (array, before.part.begin, begin)
                and ((before.op, before.dst, before.sources) == (move.op, move.dst, move.sources))
            ):
                joined.pop()
                part = ArrayRange(array, before.part.begin, end)
                move = move._replace(part=part, transfers=before.transfers + move.transfers)
            joined.append(move)
        yield from joined


def _into_chunks(step: Step) -> Iterator[Tuple[int, int, str, Tuple[int, ...]]]:
    """(dst, chunk, op, sources) for every chunk of a rank that a step writes, in its order."""
    targets: Dict[Tuple[int, int, str], List[int]] = {}
    for src, dst, chunk, op in step:
        targets.setdefault((dst, chunk, op), []).append(src)
    for target, sources in targets.items():
        yield (*target, tuple(sources))


class Target(NamedTuple):
    """A chunk of a rank that a step writes, and from which ranks.

    ``free``: the last of the sources can be read without waiting, and nothing need wait for that:
    no step before has written to it, and the first later one that does, if any, reads the chunk of
    ``dst``, and so waits for what has read both.
    """

    dst: int
    chunk: int
    op: str
    sources: Tuple[int, ...]
    free: bool


def targets(schedule: Schedule) -> List[Target]:
    """What all steps write, in their order."""
    writes = [list(_into_chunks(step)) for step in schedule.steps]
    first: Dict[Cell, int] = {}
    for number, of_step in enumerate(writes):
        for dst, chunk, _, _ in of_step:
            first.setdefault((dst, chunk), number)
    found: List[Target] = []
    next_sources: Dict[Cell, Tuple[int, ...]] = {}  # of the next step that writes to a cell
    for number in reversed(range(len(writes))):
        for dst, chunk, op, sources in reversed(writes[number]):
            last = (sources[-1], chunk)
            untouched = first.get(last, number) >= number
            free = untouched and dst in next_sources.get(last, (dst,))
            found.append(Target(dst, chunk, op, sources, free))
        next_sources.update({(dst, chunk): sources for dst, chunk, _, sources in writes[number]})
    return found[::-1]


class Overlaps:
    """Which uses of a rank's elements must wait for uses of parts that overlap them."""

    def __init__(self) -> None:
        self._now = 0
        self._uses: Dict[int, Dict[ArrayRange, _Uses]] = {}  # of each array
        self._ordered: Dict[Tuple[ArrayRange, ArrayRange], int] = {}  # when last, of any two

    def use(self, part: ArrayRange, writes: bool) -> List[ArrayRange]:
        """The other parts that this use must wait for; they count as ordered from now on."""
        of_array = self._uses.setdefault(part.array, {})
        others = [
            other
            for other, uses in of_array.items()
            if other != part
            and _overlap(other, part)
            and uses.last(writes) > self._ordered.get((other, part), 0)
        ]
        if others:
            self._now += 1
            self._ordered.update(dict.fromkeys(permutations([part, *others], 2), self._now))
        self._now += 1
        of_array[part] = of_array.get(part, _Uses(0, 0)).at(self._now, writes)
        return others


class _Uses(NamedTuple):
    """When a part was last read or written, and when written."""

    used: int
    written: int

    def last(self, writes: bool) -> int:
        """A use that writes waits for all, one that reads for those that have written."""
        return self.used if writes else self.written

    def at(self, now: int, writes: bool) -> _Uses:
        return _Uses(now, now if writes else self.written)


def _overlap(one: ArrayRange, other: ArrayRange) -> bool:
    return one.array == other.array and one.begin < other.end and other.begin < one.end
