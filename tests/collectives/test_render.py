"""A schedule as text and as SVG, read back and compared with its simulated states."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples

from gluonlab.collectives.algorithms import ALGORITHMS, HALVES
from gluonlab.collectives.render import as_svg, as_text
from gluonlab.collectives.render.schedule_scene import (
    bundle_transfers,
    describe_contributions,
    describe_step,
    format_ranges,
)
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.collectives.verify_schedule import simulate_contributions
from gluonlab.errors import ScheduleError

SVG = "{http://www.w3.org/2000/svg}"
NAMES = sorted(ALGORITHMS)
# Rank 0 adds rank 1's contribution twice, and rank 2's never.
WRONG = Schedule("wrong", "allreduce", 3, 1, (0,), 2 * ((Transfer(1, 0, 0, "add"),),))
few = examples(25, 50)
schedules = st.builds(lambda name, ranks: ALGORITHMS[name](ranks), st.sampled_from(NAMES), st.integers(1, 9))


@st.composite
def any_schedules(draw):
    """Draw any transfers that keep the rules of a step, right or wrong."""
    ranks, chunks = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    steps = []
    for _ in range(draw(st.integers(0, 3))):
        readers = draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=ranks - 1))
        writers = sorted(set(range(ranks)) - readers)
        copied = {(dst, chunk) for dst in writers for chunk in range(chunks) if draw(st.booleans())}
        ends = st.tuples(*map(st.sampled_from, (sorted(readers), writers, range(chunks))))
        step, written = [], set()
        for src, dst, chunk in sorted(draw(st.sets(ends, min_size=1))):
            if (dst, chunk) not in copied or (dst, chunk) not in written:
                step.append(Transfer(src, dst, chunk, "copy" if (dst, chunk) in copied else "add"))
            written.add((dst, chunk))
        steps.append(tuple(step))
    return Schedule("any", "allreduce", ranks, chunks, (0,) * chunks, tuple(steps))


def expand_ranges(text):
    """Yield 0, 1, 2, 5 for ``0-2,5``."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def sort_transfers(transfers):
    return sorted(map(tuple, transfers))


@given(st.sets(st.integers(0, 40), min_size=1))
@example({0, 1, 2, 5, 7, 8})
def test_format_ranges_lists_every_number_once(values):
    assert list(expand_ranges(format_ranges(values))) == sorted(values)
    assert len(format_ranges(values).split(",")) == sum(value - 1 not in values for value in values)


def test_contributions_in_words():
    assert describe_contributions((0, 1, 0)) == "rank 1"
    assert describe_contributions((1, 1, 0, 2)) == "ranks 0, 1 and 3 (2 times)"
    assert describe_contributions((0, 0)) == "nothing"


def parse_text(text):
    """Yield the transfers of each step of a text, and the grid below as {chunk: cells}."""
    for block in text.split("\n\nstep ")[1:]:
        sent = re.findall(r"([\d,-]+) -> ([\d,-]+): chunks? ([\d,-]+) ([+=])", block)
        transfers = [
            (src, dst, chunk, {"+": "add", "=": "copy"}[sign])
            for sources, targets, chunks, sign in sent
            for src in expand_ranges(sources)
            for dst in expand_ranges(targets)
            for chunk in expand_ranges(chunks)
        ]
        _, _, grid = block.partition("\nchunk ")
        yield transfers, {int(row.split()[0]): row.split()[1:] for row in grid.splitlines()[1:]}


@given(any_schedules() | schedules)
@few
def test_the_text_names_every_transfer_of_every_step(schedule):
    transfers = [sort_transfers(transfers) for transfers, _ in parse_text(as_text(schedule, 200))]
    assert transfers == [sort_transfers(step) for step in schedule.steps]


@given(any_schedules() | schedules)
@few
def test_messages_are_in_the_order_of_their_sender_or_of_the_receiver_of_many(schedule):
    for step in schedule.steps:
        ends = [re.fullmatch(r"(\S+) -> (\S+): .*", line).groups() for line in describe_step(step)]
        firsts = [int(src) if src.isdigit() else int(dst) for src, dst in ends]
        assert firsts == sorted(firsts)


@pytest.mark.parametrize(
    ("name", "world_size"), [*((name, ranks) for name in NAMES for ranks in (2, 3, 8)), ("ring", 12)]
)
def test_the_grid_names_or_counts_the_ranks_whose_contributions_are_held(name, world_size):
    schedule = ALGORITHMS[name](world_size)
    for (_, grid), state in zip(parse_text(as_text(schedule)), list(simulate_contributions(schedule))[1:]):
        for chunk in range(schedule.chunks):
            column = [counts[chunk] for counts in state]
            names = ["".join(str(rank) if count else "." for rank, count in enumerate(counts)) for counts in column]
            assert grid[chunk] == (names if world_size <= 8 else [str(sum(counts)) for counts in column])


@pytest.mark.parametrize("world_size", [4, 11])
def test_the_grid_counts_only_if_names_do_not_fit(world_size):
    width = len("chunk") + world_size * (1 + world_size)
    for columns, words in ((width, "A cell names the ranks"), (width - 1, "A cell is the number")):
        assert words in " ".join(as_text(ALGORITHMS["star"](world_size), columns).split())


def test_without_room_for_a_grid_the_text_reports_it():
    too_many = ALGORITHMS["tree"](2, chunks=33)
    for schedule, width in ((ALGORITHMS["ring"](30), 80), (too_many, 80), (too_many, 20)):
        text = as_text(schedule, width)
        assert "The grids are omitted" in " ".join(text.split())
        assert "\nchunk " not in text


@given(schedules | any_schedules(), st.integers(20, 130))
@few
@example(ALGORITHMS["sharded"](17), 20)
@example(ALGORITHMS["hierarchical"](4, chunks=80), 25)
def test_no_line_of_the_text_is_wider_than_asked(schedule, width):
    text = as_text(schedule, width)
    assert max(map(len, text.splitlines())) <= width
    if width >= 80:  # a terminal's: no message is broken over two lines
        messages = [message for line in text.splitlines() if "->" in line for message in line.split("   ") if message]
        assert all(re.fullmatch(r" *\S+ -> \S+: chunks? \S+ [+=]", message) for message in messages)
    assert text.isascii()
    assert not re.search(r"[^\S\n]$", text, re.M)


def test_a_contribution_that_is_added_twice_stands_out_in_the_text():
    [_, (_, grid)] = parse_text(as_text(WRONG))
    assert grid == {0: ["0!.", ".1.", "..2"]}


def test_one_rank_sends_nothing():
    assert as_text(ALGORITHMS["ring"](1)).endswith("\nNothing is sent.\nchunk 0\n    0 0")


@given(any_schedules() | schedules)
@few
def test_no_two_arrows_lie_on_each_other(schedule):
    for step in schedule.steps:
        taken = Counter()
        for bus in bundle_transfers(step):
            ends = (bus.hub, *bus.others)
            taken.update((bus.chunk, bus.lane, rank) for rank in range(min(ends), max(ends) + 1))
        assert max(taken.values()) == 1


def find_panels(svg):
    groups = ElementTree.fromstring(svg).findall(f"{SVG}g")
    return [group for group in groups if group.find(f"{SVG}text[@class='panel']") is not None]


def find_box(panel):
    """Return left, top, right and bottom of a panel's texts."""
    left, top = map(float, re.findall(r"[-\d.]+", panel.get("transform")))
    width, height = (max(float(text.get(axis)) for text in panel.iter(f"{SVG}text")) for axis in "xy")
    return left, top, left + width, top + height


@given(any_schedules() | schedules)
@few
def test_panels_lie_side_by_side_and_row_by_row_within_the_picture(schedule):
    svg = as_svg(schedule)
    width, height = map(float, ElementTree.fromstring(svg).get("viewBox").split()[2:])
    boxes = list(map(find_box, find_panels(svg)))
    for (_, top, right, bottom), (next_left, next_top, *_) in zip(boxes, boxes[1:]):
        if next_top == top:
            assert next_left > right
        else:
            assert next_left == boxes[0][0] and next_top > bottom
    assert min(left for left, *_ in boxes) > 0 and max(right for _, _, right, _ in boxes) < width
    assert boxes[0][1] > 0 and boxes[-1][3] < height


def read_transfers(panel):
    """Yield the transfers that the ends of arrows show, by the labels of columns and rows."""
    texts = panel.findall(f"{SVG}text")
    ranks = {float(text.get("x")): int(text.text) for text in texts if text.get("class") == "middle"}
    chunks = {float(text.get("y")): int(text.text[6:]) for text in texts if text.text.startswith("chunk ")}
    for line in panel.findall(f"{SVG}path"):
        kind, *copy = line.get("class").split()
        if kind == "line":
            for way in line.get("d").split("M")[1:]:
                [(x, y, turn, back, end)] = re.findall(r"^(\S+) (\S+?)V\S+ \S+ (\S+) \S+?H(\S+?)Q\S+ \S+ (\S+) ", way)
                between = [float(part) for part in (x, turn, back, end)]
                assert between in (sorted(between), sorted(between)[::-1])  # straight there
                row = min(row for row in chunks if row > float(y))  # an arrow ends above its row
                yield ranks[float(x)], ranks[float(end)], chunks[row], "copy" if copy else "add"


@given(any_schedules() | schedules)
@few
def test_the_picture_has_a_panel_a_step_and_an_arrow_a_transfer(schedule):
    start, *steps = find_panels(as_svg(schedule))
    assert [sort_transfers(read_transfers(panel)) for panel in steps] == [
        sort_transfers(step) for step in schedule.steps
    ]
    assert list(read_transfers(start)) == []


@given(any_schedules() | schedules)
@few
def test_the_picture_shows_what_every_rank_holds(schedule):
    """In words, and by as many filled segments as contributions."""
    states = list(simulate_contributions(schedule))
    for panel, before, state in zip(find_panels(as_svg(schedule)), [states[0], *states], states):
        cells = {cell.find(f"{SVG}title").text: cell for cell in panel.findall(f"{SVG}g")}
        assert len(cells) == schedule.world_size * schedule.chunks
        for rank, row in enumerate(state):
            for chunk, held in enumerate(row):
                cell = cells[f"rank {rank}, chunk {chunk}: {describe_contributions(held)}"]
                segments = {path.get("class"): path.get("d").count("M") for path in cell.findall(f"{SVG}path")}
                kinds = Counter(
                    "empty" if not now else "often" if now > 1 else "held" if was else "new"
                    for was, now in zip(before[rank][chunk], held)
                )
                assert segments == kinds


@pytest.mark.parametrize(
    ("schedule", "is_complete"),
    [
        (ALGORITHMS["ring"](4), lambda rank, owner: True),
        (HALVES["ring"][0](4), lambda rank, owner: rank == owner),
        (HALVES["ring"][1](4), lambda rank, owner: True),
        (WRONG, lambda rank, owner: False),
    ],
)
def test_complete_chunks_are_marked_as_complete(schedule, is_complete):
    for cell in find_panels(as_svg(schedule))[-1].findall(f"{SVG}g"):
        rank, chunk = map(int, re.findall(r"\d+", cell.find(f"{SVG}title").text)[:2])
        is_marked = "whole" in cell.find(f"{SVG}rect").get("class").split()
        assert is_marked == is_complete(rank, schedule.owner[chunk])


def test_the_picture_is_self_contained_and_has_a_title():
    svg = as_svg(ALGORITHMS["hierarchical"](8))
    root = ElementTree.fromstring(svg)
    title, described = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert not re.search(r"href|url\(|@import|<script|<image", svg)
    assert svg.count("http") == svg.count("http://www.w3.org/2000/svg") == 1
    assert title.text == "hierarchical: allreduce, 8 ranks, 4 chunks, 4 steps, 56 transfers"
    assert "Sum within each group" in described.text
    assert root.get("aria-labelledby").split() == [title.get("id"), described.get("id")]


def test_the_name_of_a_schedule_is_escaped():
    name = '</svg><script>alert("1")</script> & more'
    root = ElementTree.fromstring(as_svg(Schedule(name, "allreduce", 1, 1, (0,), ())))
    assert root.find(f"{SVG}text").text == name
    assert root.find(f"{SVG}title").text.startswith(name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: as_svg(ALGORITHMS["ring"](17)), "up to 16 ranks and 64 chunks, or print it as te"),
        (lambda: as_svg(ALGORITHMS["tree"](2, chunks=65)), "too large to draw"),
        (lambda: as_text(ALGORITHMS["ring"](2), 19), "use at least 20 columns for a schedule"),
    ],
)
def test_schedules_that_are_too_large_to_draw_are_refused(make, words):
    with pytest.raises(ScheduleError, match=words):
        make()
