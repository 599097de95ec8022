"""Which chunks of a schedule fare alike: what is proved of one of them holds for the others.

Chunks know nothing of each other. If the transfers of one are those of another with the ranks
renamed, and its owner is, too, then the one ends right exactly if the other does. New names are
guessed: ranks that appear at the same places of both, that have moved on around a ring, or that are
exchanged with partners, by XOR, the latter two also of hosts and of devices in them. A guess counts
only if the schedule itself, transfer by transfer, is what it says; else the chunk is one to prove.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from gluonlab.collectives.columns import Columns

MOST_ALIKE = 4  # chunks to prove that a further one of as many turns is compared with
MOST_FAILURES = 32  # chunks for which all guesses are made in vain; then only what was right last

Names = Any  # an array (ranks,): the new name of each


@dataclass(frozen=True)
class Course:
    """What happens to a chunk: its transfers in order, (transfers,) each, and its owner.

    ``turn``: the number of a transfer's step among those steps that move this chunk. ``rows``:
    where the transfers are in the schedule's `Columns`.
    """

    rows: Any
    src: Any
    dst: Any
    op: Any
    turn: Any
    owner: int

    def transfers(self, names: Names) -> Tuple[Any, ...]:
        """All transfers with other names of ranks."""
        return self.turn, names[self.src], names[self.dst], self.op


Way = Callable[[Course, Course, int], Names]


def courses(columns: Columns, owner: Sequence[int]) -> List[Course]:
    """That of every chunk."""
    found = []
    for own, rows in zip(owner, columns.rows_of_chunks(len(owner))):
        step = columns.step[rows]
        turn = np.cumsum(np.diff(step, prepend=step[:1]) > 0)
        found.append(
            Course(rows, columns.src[rows], columns.dst[rows], columns.op[rows], turn, own)
        )
    return found


def chunks_to_prove(courses: Sequence[Course], world_size: int) -> List[int]:
    """Chunks of which every other one is a copy with other names of ranks; the lowest ones."""
    to_prove: List[int] = []
    known: Dict[bytes, List[Course]] = {}  # of those to prove, by the turns of their transfers
    ways, failures = _ways(world_size), 0
    for chunk, course in enumerate(courses):
        alike = known.setdefault(course.turn.tobytes(), [])
        tried = ways if failures < MOST_FAILURES else ways[:1]
        right = (
            way
            for way in tried
            for first in alike
            if _is_copy(first, course, way(first, course, world_size))
        )
        way = next(right, None)
        if way is not None:
            ways = [way, *(other for other in ways if other is not way)]
            continue
        to_prove.append(chunk)
        failures += len(alike) > 0
        if len(alike) < MOST_ALIKE:
            alike.append(course)
    return to_prove


def _is_copy(first: Course, course: Course, names: Names) -> bool:
    """Whether ``names`` makes the transfers and the owner of ``first`` those of ``course``.

    Within a turn, only additions into the same rank have an order that matters.
    """
    ranks = np.arange(len(names))
    if names[first.owner] != course.owner or not np.array_equal(np.sort(names), ranks):
        return False
    pairs = first.transfers(names), course.transfers(ranks)
    if _equal(*pairs):
        return True
    return _equal(*(_by_target(transfers, len(names)) for transfers in pairs))


def _equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(some, others))


def _by_target(transfers: Sequence[Any], world_size: int) -> List[Any]:
    """The same transfers by turn, then by the rank that they write."""
    turn, _, dst, _ = transfers
    order = np.argsort(turn * world_size + dst, kind="stable")
    return [column[order] for column in transfers]


# --- guesses


def _ways(world_size: int) -> List[Way]:
    moves = (_turned, _exchanged)
    by_hosts = [
        _moved(devices, across, within)
        for devices in range(2, world_size)
        if world_size % devices == 0
        for across in moves
        for within in moves
    ]
    return [_in_order, *(_moved(world_size, _turned, within) for within in moves), *by_hosts]


def _in_order(first: Course, course: Course, world_size: int) -> Names:
    """The ranks at the same places of both; for others, which neither sends to, what is left."""
    names = np.full(world_size, -1)
    if len(first.src) == len(course.src):
        names[first.src], names[first.dst] = course.src, course.dst
        names[first.owner] = course.owner
        left = np.setdiff1d(np.arange(world_size), names)
        names[names < 0] = np.resize(left, np.count_nonzero(names < 0))
    return names


def _moved(devices: int, across: Callable[..., Any], within: Callable[..., Any]) -> Way:
    """Rank host * ``devices`` + device, host and device moved as far as the owner is."""

    def way(first: Course, course: Course, world_size: int) -> Names:
        host, device = np.divmod(np.arange(world_size), devices)
        old, new = divmod(first.owner, devices), divmod(course.owner, devices)
        host = across(host, old[0], new[0], world_size // devices)
        return host * devices + within(device, old[1], new[1], devices)

    return way


def _turned(place: Any, old: int, new: int, size: int) -> Any:
    return (place + new - old) % size


def _exchanged(place: Any, old: int, new: int, size: int) -> Any:
    return place ^ old ^ new
