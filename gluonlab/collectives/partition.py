"""Which part of which array belongs to which chunk: cut by elements, or whole arrays."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

from gluonlab.collectives.schedule import Schedule
from gluonlab.errors import ScheduleError
from gluonlab.shares import split_evenly


class Part(NamedTuple):
    """The elements ``begin`` to ``end`` of array number ``array``, flattened."""

    array: int
    begin: int
    end: int


def partition(sizes: Sequence[int], chunks: int, whole: bool = False) -> List[List[Part]]:
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


def owned_parts(schedule: Schedule, sizes: Sequence[int]) -> List[Tuple[int, Part]]:
    """(owner, part) for all parts that arrays of these sizes are cut into.

    The owner is the rank that holds the part between the schedule's halves.
    """
    parts = partition(sizes, schedule.chunks)
    return [(rank, part) for chunk, rank in enumerate(schedule.owner) for part in parts[chunk]]


def _whole(sizes: Sequence[int], chunks: int) -> List[List[Part]]:
    parts: List[List[Part]] = [[] for _ in range(chunks)]
    load = [0] * chunks
    for array in sorted(range(len(sizes)), key=lambda array: -sizes[array]):
        if sizes[array]:
            lightest = load.index(min(load))
            load[lightest] += sizes[array]
            parts[lightest].append(Part(array, 0, sizes[array]))
    return parts


def _cut(sizes: Sequence[int], begin: int, end: int) -> List[Part]:
    """What lies between ``begin`` and ``end`` when the arrays lie end to end."""
    parts, offset = [], 0
    for array, size in enumerate(sizes):
        first, last = max(begin, offset), min(end, offset + size)
        if first < last:
            parts.append(Part(array, first - offset, last - offset))
        offset += size
    return parts
