"""What pictures, pages and texts show of a schedule: bundled arrows, and words."""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

from gluonlab.collectives.check import Contributions
from gluonlab.collectives.render.words import ENGLISH, Words
from gluonlab.collectives.schedule import ADD, ALL_GATHER, Schedule, Step
from gluonlab.drawing.words import plural
from gluonlab.errors import ScheduleError

SIGNS = {True: "+", False: "="}  # added; copied over
MOST_RANKS, MOST_CHUNKS = 16, 64  # what an eye, and a browser, can follow


class Bus(NamedTuple):
    """Transfers of one chunk that share an end, the ``hub``.

    They are additions from ``others`` into the hub, or copies from it to ``others``. They are drawn
    as one line with branches, ``lane`` lines above the chunk's row, so that no two buses lie on
    each other.
    """

    chunk: int
    add: bool
    hub: int
    others: Tuple[int, ...]
    lane: int


def buses(step: Step) -> List[Bus]:
    """The transfers of a step as few buses, additions in the order in which they are made."""
    others: Dict[Tuple[int, bool, int], List[int]] = {}
    for src, dst, chunk, op in step:
        hub, other = (dst, src) if op == ADD else (src, dst)
        others.setdefault((chunk, op == ADD, hub), []).append(other)
    placed: List[Bus] = []
    in_order = sorted(others.items(), key=lambda item: _span(item[0][2], item[1]))
    for (chunk, add, hub), ends in in_order:
        bus = Bus(chunk, add, hub, tuple(ends), 0)
        taken = {other.lane for other in placed if other.chunk == chunk and _overlap(other, bus)}
        placed.append(bus._replace(lane=min(set(range(len(taken) + 1)) - taken)))
    return sorted(placed)


def lanes(schedule: Schedule) -> int:
    """How many lines of arrows a row of chunks has room for; the same in all steps.

    So nothing moves from one step to the next.
    """
    return max((bus.lane + 1 for step in schedule.steps for bus in buses(step)), default=1)


def _span(hub: int, others: Sequence[int]) -> Tuple[int, int]:
    """A key for sorting: short buses first, then from left to right.

    Short ones lie below the long ones that reach around them.
    """
    return max(hub, *others) - min(hub, *others), min(hub, *others)


def _overlap(one: Bus, two: Bus) -> bool:
    (first, last), (begin, end) = (
        (min(bus.hub, *bus.others), max(bus.hub, *bus.others)) for bus in (one, two)
    )
    return first <= end and begin <= last


def sends(step: Step, words: Words = ENGLISH) -> List[str]:
    """The step in words, such as ``0-6 -> 7: chunk 7 +``.

    That adds chunk 7 of ranks 0 to 6 to that of rank 7; ``=`` copies it over. Messages with the
    same chunks to, or from, the same rank are one line.
    """
    messages: Dict[Tuple[int, int, bool], List[int]] = {}
    for src, dst, chunk, op in step:
        messages.setdefault((src, dst, op == ADD), []).append(chunk)
    ends: Dict[Tuple[int, bool, Tuple[int, ...]], List[int]] = {}
    for (src, dst, add), sent in messages.items():
        hub, other = (dst, src) if add else (src, dst)
        ends.setdefault((hub, add, tuple(sorted(sent))), []).append(other)
    lines = []
    in_order = sorted(ends.items(), key=lambda item: (_first(item[0][:2], item[1]), item[0]))
    for (hub, add, moved), others in in_order:
        src_dst = (numbers(others), str(hub)) if add else (str(hub), numbers(others))
        chunks = words.chunks[len(moved) > 1].format(numbers(moved))
        lines.append(f"{' -> '.join(src_dst)}: {chunks} {SIGNS[add]}")
    return lines


def _first(hub_add: Tuple[int, bool], others: Sequence[int]) -> int:
    """The rank by which lines are sorted: the one that sends, or adds up what many send."""
    hub, add = hub_add
    return others[0] if add and len(others) == 1 else hub


def numbers(values: Iterable[int]) -> str:
    """0, 1, 2, 3, 5 -> ``0-3,5``."""
    runs: List[List[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def goal(schedule: Schedule, chunk: int) -> Contributions:
    """The contributions of a complete ``chunk``: everyone's once.

    In an all_gather it is the owner's alone.
    """
    if schedule.collective != ALL_GATHER:
        return (1,) * schedule.world_size
    return tuple(int(rank == schedule.owner[chunk]) for rank in range(schedule.world_size))


def in_words(contributions: Sequence[int], words: Words = ENGLISH) -> str:
    """``ranks 0 and 2``; a contribution that is in a sum twice is marked."""
    held = sum(count > 0 for count in contributions)
    inside = in_few_words(contributions, words)
    return words.contributions[held > 1].format(inside) if held else words.nothing


def in_few_words(contributions: Sequence[int], words: Words = ENGLISH) -> str:
    """``0 and 2``, for a table whose heading says what they are."""
    held = [
        f"{rank}" if count == 1 else words.times.format(rank, count)
        for rank, count in enumerate(contributions)
        if count
    ]
    if not held:
        return words.nothing
    return words.last.join(filter(None, [", ".join(held[:-1]), held[-1]]))


def size(schedule: Schedule, words: Words = ENGLISH) -> str:
    """``allreduce, 4 ranks, 4 chunks, 6 steps, 24 transfers``"""
    counts = (schedule.world_size, schedule.chunks, len(schedule.steps), schedule.transfers)
    sizes = [forms[count != 1].format(count) for forms, count in zip(words.sizes, counts)]
    return words.comma.join([schedule.collective, *sizes])


def description(schedule: Schedule, words: Words = ENGLISH) -> str:
    """What the algorithm of this name does; nothing for a schedule that has none."""
    return words.descriptions.get(schedule.name, "")


def drawable(schedule: Schedule) -> None:
    """Raises ScheduleError for a schedule that is too large for a picture."""
    if schedule.world_size > MOST_RANKS or schedule.chunks > MOST_CHUNKS:
        ranks, chunks = plural(schedule.world_size, "rank"), plural(schedule.chunks, "chunk")
        raise ScheduleError(
            f"{schedule.name} with {ranks} and {chunks} is too large to draw: "
            f"choose up to {MOST_RANKS} ranks and {MOST_CHUNKS} chunks, or print it as text"
        )
