"""A schedule in words: what pictures and pages show of it, bundled arrows, and as plain text."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.schedule import ADD, ALL_GATHER, Schedule, Step
from gluonlab.collectives.verify_schedule import Contributions, states
from gluonlab.drawing.translations import pluralize, read_scene_words
from gluonlab.errors import ScheduleError

SIGNS = {True: "+", False: "="}  # added; copied over
MOST_RANKS, MOST_CHUNKS = 16, 64  # what an eye, and a browser, can follow


# --- in each language

Forms = Sequence[str]  # for one thing, and for any other number of them


class ScheduleTexts(NamedTuple):
    """All words of one language."""

    page: Mapping[str, str]
    shown: Mapping[str, str]
    # what `scene` makes of a schedule
    comma: str
    sizes: Sequence[Forms]  # ranks, chunks, steps, transfers
    chunks: Forms  # in a message
    contributions: Forms
    last: str  # between the last two of several
    times: str  # a rank, and how often it is in the sum
    nothing: str
    descriptions: Mapping[str, str]  # of the algorithms


# in English the first line of each algorithm's docstring
_DESCRIPTIONS = {
    name: (algorithm.__doc__ or "").strip().partition("\n")[0]
    for name, algorithm in ALGORITHMS.items()
}
WORDS: Dict[str, ScheduleTexts] = {
    language: ScheduleTexts(**{"descriptions": _DESCRIPTIONS, **words})
    for language, words in read_scene_words(
        Path(__file__).parent / "template" / "words.json"
    ).items()
}
ENGLISH, JAPANESE = WORDS["en"], WORDS["ja"]


# --- arrows, sends and contributions


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


def sends(step: Step, words: ScheduleTexts = ENGLISH) -> List[str]:
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


def in_words(contributions: Sequence[int], words: ScheduleTexts = ENGLISH) -> str:
    """``ranks 0 and 2``; a contribution that is in a sum twice is marked."""
    held = sum(count > 0 for count in contributions)
    inside = in_few_words(contributions, words)
    return words.contributions[held > 1].format(inside) if held else words.nothing


def in_few_words(contributions: Sequence[int], words: ScheduleTexts = ENGLISH) -> str:
    """``0 and 2``, for a table whose heading says what they are."""
    held = [
        f"{rank}" if count == 1 else words.times.format(rank, count)
        for rank, count in enumerate(contributions)
        if count
    ]
    if not held:
        return words.nothing
    return words.last.join(filter(None, [", ".join(held[:-1]), held[-1]]))


def size(schedule: Schedule, words: ScheduleTexts = ENGLISH) -> str:
    """``allreduce, 4 ranks, 4 chunks, 6 steps, 24 transfers``"""
    counts = (schedule.world_size, schedule.chunks, len(schedule.steps), schedule.transfers)
    sizes = [forms[count != 1].format(count) for forms, count in zip(words.sizes, counts)]
    return words.comma.join([schedule.collective, *sizes])


def description(schedule: Schedule, words: ScheduleTexts = ENGLISH) -> str:
    """What the algorithm of this name does; nothing for a schedule that has none."""
    return words.descriptions.get(schedule.name, "")


def drawable(schedule: Schedule) -> None:
    """Raises ScheduleError for a schedule that is too large for a picture."""
    if schedule.world_size > MOST_RANKS or schedule.chunks > MOST_CHUNKS:
        ranks, chunks = pluralize(schedule.world_size, "rank"), pluralize(schedule.chunks, "chunk")
        raise ScheduleError(
            f"{schedule.name} with {ranks} and {chunks} is too large to draw: "
            f"choose up to {MOST_RANKS} ranks and {MOST_CHUNKS} chunks, or print it as text"
        )


# --- as text, for a terminal

NARROWEST = 20
MOST_ROWS = 32  # of a grid; with more of them, nobody reads it
RANKS = "0123456789abcdefghijklmnopqrstuvwxyz"  # one letter each, in a cell
LABEL = "chunk"

State = Sequence[Sequence[Contributions]]


def as_text(schedule: Schedule, width: int = 80) -> str:
    """What each step sends, and what every rank holds after it, in lines of ``width`` columns.

    The grid has a row a chunk and a column a rank. Where they fit, its cells name the ranks whose
    contributions they hold, else they count them; where even that is too wide, or there are too
    many chunks, there is none. Raises ScheduleError for a width below 20.
    """
    if width < NARROWEST:
        raise ScheduleError(f"a schedule in {width} columns: give it at least {NARROWEST}")
    kept = list(states(schedule))
    legend, grids = _grids(schedule, kept, width)
    lines = [f"{schedule.name}: {size(schedule)}", description(schedule), ""]
    lines.append(f"+ is added, = is copied over. {legend}")
    text = [part for line in lines for part in textwrap.wrap(line, width) or [""]]
    for number, (step, grid) in enumerate(zip(schedule.steps, grids[1:]), 1):
        title = f"step {number} of {len(schedule.steps)}: {pluralize(len(step), 'transfer')}"
        text += ["", *textwrap.wrap(title, width), *_columns(sends(step), width), *grid]
    if not schedule.steps:
        text += ["", "Nothing is sent.", *grids[0]]
    return "\n".join(text)


def _grids(schedule: Schedule, kept: Sequence[State], width: int) -> Tuple[str, List[List[str]]]:
    """How to read the grids, and the lines of one grid for each state.

    They are the most detailed ones that fit.
    """
    legend = "The grid after a step has a row a chunk and a column a rank; a cell"
    often = "! where one is in it more than once."
    forms: List[Tuple[str, Callable[[Contributions], str]]] = [
        (f"{legend} names the ranks whose contributions are in the chunk, {often}", _names),
        (f"{legend} is the number of contributions in the chunk.", lambda held: str(sum(held))),
    ]
    heads = [str(rank) for rank in range(schedule.world_size)]
    for words, form in forms if schedule.chunks <= MOST_ROWS else []:
        # by chunk, then rank
        tables = [[[form(held) for held in row] for row in zip(*state)] for state in kept]
        column = max(len(cell) for table in tables for row in [heads, *table] for cell in row)
        if len(LABEL) + len(heads) * (column + 1) <= width:
            return words, [_lines(heads, table, column) for table in tables]
    none = f"Without grids: they are too large for {width} columns and {MOST_ROWS} rows."
    return none, [[] for _ in kept]


def _lines(heads: Sequence[str], table: Sequence[Sequence[str]], column: int) -> List[str]:
    rows = [(LABEL, heads), *((str(chunk), row) for chunk, row in enumerate(table))]
    return [
        f"{label:>{len(LABEL)}}" + "".join(f" {cell:>{column}}" for cell in row)
        for label, row in rows
    ]


def _names(held: Contributions) -> str:
    letters = RANKS.ljust(len(held), "#")  # beyond z there are none; nor is a terminal that wide
    return "".join(
        "." if not count else letters[rank] if count == 1 else "!"
        for rank, count in enumerate(held)
    )


def _columns(entries: Sequence[str], width: int) -> List[str]:
    """Entries side by side, as many as fit; one that is longer than a line is broken."""
    column = max(len(entry) for entry in entries) + 3
    count = max(1, (width + 3) // column)
    lines = [
        "".join(f"{entry:<{column}}" for entry in entries[i : i + count]).rstrip()
        for i in range(0, len(entries), count)
    ]
    return [part for line in lines for part in textwrap.wrap(line, width)]
