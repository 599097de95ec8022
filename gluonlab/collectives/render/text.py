"""A schedule as text, for a terminal."""

from __future__ import annotations

import textwrap
from typing import Callable, List, Sequence, Tuple

from gluonlab.collectives.check import Contributions, states
from gluonlab.collectives.render.scene import description, sends, size
from gluonlab.collectives.schedule import Schedule
from gluonlab.drawing.words import plural
from gluonlab.errors import ScheduleError

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
        title = f"step {number} of {len(schedule.steps)}: {plural(len(step), 'transfer')}"
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
