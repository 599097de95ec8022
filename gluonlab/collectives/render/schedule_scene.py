"""Prepares the content of pictures and pages of a schedule: bundled transfers, and texts.

The module also renders a schedule as plain text (`as_text`).
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.schedule import ADD, ALL_GATHER, Schedule, Step
from gluonlab.collectives.verify_schedule import Contributions, simulate_contributions
from gluonlab.drawing.translations import pluralize, read_scene_words
from gluonlab.errors import ScheduleError

SIGNS = {True: "+", False: "="}  # by is_add: added, copied over
MAX_RANKS, MAX_CHUNKS = 16, 64  # larger pictures are illegible and slow in a browser


# --- in each language

PluralForms = Sequence[str]  # (singular, plural)


class ScheduleTexts(NamedTuple):
    """The texts of a schedule's pictures in one language."""

    page: Mapping[str, str]
    shown: Mapping[str, str]
    # what `scene` makes of a schedule
    comma: str
    sizes: Sequence[PluralForms]  # ranks, chunks, steps, transfers
    chunks: PluralForms  # in a message
    contributions: PluralForms
    last: str  # between the last two of several
    times: str  # a rank, and how often it is in the sum
    nothing: str
    descriptions: Mapping[str, str]  # of the algorithms


# in English the first line of each algorithm's docstring
_ENGLISH_DESCRIPTIONS = {
    name: (algorithm.__doc__ or "").strip().partition("\n")[0] for name, algorithm in ALGORITHMS.items()
}
WORDS: Dict[str, ScheduleTexts] = {
    language: ScheduleTexts(**{"descriptions": _ENGLISH_DESCRIPTIONS, **words})
    for language, words in read_scene_words(Path(__file__).parent / "template" / "words.json").items()
}
ENGLISH, JAPANESE = WORDS["en"], WORDS["ja"]


# --- arrows, sends and contributions


class TransferBundle(NamedTuple):
    """Transfers of one chunk that share an end, the ``hub``.

    The transfers are additions from ``others`` into the hub, or copies from the hub to ``others``.
    The bundle is drawn as one line with branches. ``lane`` is the number of lines between this line
    and the chunk's row, and is chosen so that bundles do not overlap.
    """

    chunk: int
    add: bool
    hub: int
    others: Tuple[int, ...]
    lane: int


def bundle_transfers(step: Step) -> List[TransferBundle]:
    """Group the transfers of a step into bundles, each of which is drawn as one branching line.

    A bundle copies one chunk from one rank to several ranks, or adds the chunk from several ranks
    into one rank.
    """
    others: Dict[Tuple[int, bool, int], List[int]] = {}
    for src, dst, chunk, op in step:
        hub, other = (dst, src) if op == ADD else (src, dst)
        others.setdefault((chunk, op == ADD, hub), []).append(other)
    bundles: List[TransferBundle] = []
    by_span = sorted(others.items(), key=lambda item: _bundle_sort_key(item[0][2], item[1]))
    for (chunk, add, hub), ends in by_span:
        bundle = TransferBundle(chunk, add, hub, tuple(ends), 0)
        used_lanes = {other.lane for other in bundles if other.chunk == chunk and _bundles_overlap(other, bundle)}
        bundles.append(bundle._replace(lane=min(set(range(len(used_lanes) + 1)) - used_lanes)))
    return sorted(bundles)


def lane_count(schedule: Schedule) -> int:
    """Return the number of lanes for arrows above each row of chunks, the maximum over all steps.

    All steps have the same number of lanes, so that the picture does not jump from step to step.
    """
    return max((bundle.lane + 1 for step in schedule.steps for bundle in bundle_transfers(step)), default=1)


def _bundle_sort_key(hub: int, others: Sequence[int]) -> Tuple[int, int]:
    """Return a sorting key: short bundles first, then from left to right.

    In this order, short bundles are drawn below the longer bundles that span them.
    """
    return max(hub, *others) - min(hub, *others), min(hub, *others)


def _bundles_overlap(one: TransferBundle, other: TransferBundle) -> bool:
    """Return whether the arrows of two bundles cover a common rank, and so need different lanes."""
    (first, last), (other_first, other_last) = (
        (min(bundle.hub, *bundle.others), max(bundle.hub, *bundle.others)) for bundle in (one, other)
    )
    return first <= other_last and other_first <= last


def describe_step(step: Step, words: ScheduleTexts = ENGLISH) -> List[str]:
    """Return the step as lines such as ``0-6 -> 7: chunk 7 +``.

    This line adds chunk 7 of ranks 0 to 6 to chunk 7 of rank 7; ``=`` instead of ``+`` means a
    copy. Messages with the same chunks to or from the same rank share a line.
    """
    messages: Dict[Tuple[int, int, bool], List[int]] = {}
    for src, dst, chunk, op in step:
        messages.setdefault((src, dst, op == ADD), []).append(chunk)
    ends: Dict[Tuple[int, bool, Tuple[int, ...]], List[int]] = {}
    for (src, dst, add), chunks_sent in messages.items():
        hub, other = (dst, src) if add else (src, dst)
        ends.setdefault((hub, add, tuple(sorted(chunks_sent))), []).append(other)
    lines = []
    sorted_ends = sorted(ends.items(), key=lambda item: (_sorting_rank(item[0][:2], item[1]), item[0]))
    for (hub, add, chunk_numbers), others in sorted_ends:
        src_dst = (format_ranges(others), str(hub)) if add else (str(hub), format_ranges(others))
        chunks = words.chunks[len(chunk_numbers) > 1].format(format_ranges(chunk_numbers))
        lines.append(f"{' -> '.join(src_dst)}: {chunks} {SIGNS[add]}")
    return lines


def _sorting_rank(hub_add: Tuple[int, bool], others: Sequence[int]) -> int:
    """Return the rank to sort lines by: the sender, or the receiver if several ranks send."""
    hub, add = hub_add
    return others[0] if add and len(others) == 1 else hub


def format_ranges(values: Iterable[int]) -> str:
    """Return numbers as ranges, such as ``0-3,5`` for 0, 1, 2, 3, 5."""
    runs: List[List[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def complete_contributions(schedule: Schedule, chunk: int) -> Contributions:
    """Return the contributions that a finished ``chunk`` must contain: one from each rank.

    In an all_gather, only the owner contributes.
    """
    if schedule.collective != ALL_GATHER:
        return (1,) * schedule.world_size
    return tuple(int(rank == schedule.owner[chunk]) for rank in range(schedule.world_size))


def describe_contributions(contributions: Sequence[int], words: ScheduleTexts = ENGLISH) -> str:
    """Return the ranks in a sum as text such as ``ranks 0 and 2``; repeated ranks are marked."""
    contributor_count = sum(count > 0 for count in contributions)
    listed = list_contributors(contributions, words)
    return words.contributions[contributor_count > 1].format(listed) if contributor_count else words.nothing


def list_contributors(contributions: Sequence[int], words: ScheduleTexts = ENGLISH) -> str:
    """Return the ranks in a sum as text such as ``0 and 2``, for a table with its own heading."""
    contributors = [
        f"{rank}" if count == 1 else words.times.format(rank, count)
        for rank, count in enumerate(contributions)
        if count
    ]
    if not contributors:
        return words.nothing
    return words.last.join(filter(None, [", ".join(contributors[:-1]), contributors[-1]]))


def describe_size(schedule: Schedule, words: ScheduleTexts = ENGLISH) -> str:
    """Return a text such as ``allreduce, 4 ranks, 4 chunks, 6 steps, 24 transfers``."""
    counts = (schedule.world_size, schedule.chunks, len(schedule.steps), schedule.transfers)
    sizes = [forms[count != 1].format(count) for forms, count in zip(words.sizes, counts)]
    return words.comma.join([schedule.collective, *sizes])


def algorithm_description(schedule: Schedule, words: ScheduleTexts = ENGLISH) -> str:
    """Return the one-line description of the schedule's algorithm, or "" if there is none."""
    return words.descriptions.get(schedule.name, "")


def check_drawable(schedule: Schedule) -> None:
    """Raise ScheduleError for a schedule that is too large for a picture."""
    if schedule.world_size > MAX_RANKS or schedule.chunks > MAX_CHUNKS:
        ranks, chunks = pluralize(schedule.world_size, "rank"), pluralize(schedule.chunks, "chunk")
        raise ScheduleError(
            f"{schedule.name} with {ranks} and {chunks} is too large to draw: "
            f"choose up to {MAX_RANKS} ranks and {MAX_CHUNKS} chunks, or print it as text"
        )


# --- as text, for a terminal

MIN_WIDTH = 20
MAX_ROWS = 32  # larger grids are unreadable
RANKS = "0123456789abcdefghijklmnopqrstuvwxyz"  # a letter for each rank, in a cell
LABEL = "chunk"

State = Sequence[Sequence[Contributions]]


def as_text(schedule: Schedule, width: int = 80) -> str:
    """Return the schedule as text: the transfers of each step, and the chunks after the step.

    Chunks are shown as a grid. The grid has a row for each chunk and a column for each rank. A cell
    lists the ranks whose contributions the chunk contains. If such cells are too wide, a cell
    contains only the number of contributions. If even the number is too wide, or if there are too
    many chunks, there is no grid. ``width``: the maximum length of a line. Raises ScheduleError for
    a width below 20.
    """
    if width < MIN_WIDTH:
        raise ScheduleError(f"width={width}: use at least {MIN_WIDTH} columns for a schedule")
    all_states = list(simulate_contributions(schedule))
    legend, grids = _make_grids(schedule, all_states, width)
    lines = [f"{schedule.name}: {describe_size(schedule)}", algorithm_description(schedule), ""]
    lines.append(f"+ adds, = copies over. {legend}")
    wrapped = [part for line in lines for part in textwrap.wrap(line, width) or [""]]
    for number, (step, grid) in enumerate(zip(schedule.steps, grids[1:]), 1):
        title = f"step {number} of {len(schedule.steps)}: {pluralize(len(step), 'transfer')}"
        wrapped += ["", *textwrap.wrap(title, width), *_arrange_columns(describe_step(step), width), *grid]
    if not schedule.steps:
        wrapped += ["", "Nothing is sent.", *grids[0]]
    return "\n".join(wrapped)


def _make_grids(schedule: Schedule, all_states: Sequence[State], width: int) -> Tuple[str, List[List[str]]]:
    """Return a legend, and a text grid for each state, in the most detailed form that fits."""
    legend = "The grid after each step has a row for each chunk and a column for each rank. A cell"
    duplicates_text = "with ! if a contribution is in it more than once."
    forms: List[Tuple[str, Callable[[Contributions], str]]] = [
        (f"{legend} names the ranks whose contributions are in the chunk, {duplicates_text}", _contributor_letters),
        (f"{legend} is the number of contributions in the chunk.", lambda contributions: str(sum(contributions))),
    ]
    heads = [str(rank) for rank in range(schedule.world_size)]
    for form_legend, form in forms if schedule.chunks <= MAX_ROWS else []:
        # by chunk, then rank
        tables = [[[form(contributions) for contributions in row] for row in zip(*state)] for state in all_states]
        column_width = max(len(cell) for table in tables for row in [heads, *table] for cell in row)
        if len(LABEL) + len(heads) * (column_width + 1) <= width:
            return form_legend, [_grid_lines(heads, table, column_width) for table in tables]
    no_grids = f"The grids are omitted, because they do not fit into {width} columns and {MAX_ROWS} rows."
    return no_grids, [[] for _ in all_states]


def _grid_lines(headings: Sequence[str], table: Sequence[Sequence[str]], column_width: int) -> List[str]:
    rows = [(LABEL, headings), *((str(chunk), row) for chunk, row in enumerate(table))]
    return [f"{label:>{len(LABEL)}}" + "".join(f" {cell:>{column_width}}" for cell in row) for label, row in rows]


def _contributor_letters(contributions: Contributions) -> str:
    """Return a letter for each rank that contributes, ``.`` for others, ``!`` for duplicates."""
    letters = RANKS.ljust(len(contributions), "#")  # no terminal is wide enough for ranks beyond z
    return "".join(
        "." if not count else letters[rank] if count == 1 else "!" for rank, count in enumerate(contributions)
    )


def _arrange_columns(entries: Sequence[str], width: int) -> List[str]:
    """Return lines with as many entries side by side as fit.

    Entries that are longer than a line are wrapped.
    """
    column_width = max(len(entry) for entry in entries) + 3
    count = max(1, (width + 3) // column_width)
    lines = [
        "".join(f"{entry:<{column_width}}" for entry in entries[i : i + count]).rstrip()
        for i in range(0, len(entries), count)
    ]
    return [part for line in lines for part in textwrap.wrap(line, width)]
