"""A schedule as text and as SVG: what is drawn is read back, and compared with the schedule and
with check's states.
"""

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
WRONG = Schedule("wrong", "allreduce", 3, 1, (0,), ((Transfer(1, 0, 0, "add"),), (Transfer(1, 0, 0, "add"),)))
few = examples(25, 50)
every_algorithm = pytest.mark.parametrize("name", NAMES)
schedules = st.builds(
    lambda name, world_size: ALGORITHMS[name](world_size), st.sampled_from(NAMES), st.integers(min_value=1, max_value=9)
)


@st.composite
def any_schedules(draw):
    """Any transfers that keep the rules of a step, right or wrong."""
    ranks, chunks = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    steps = []
    for _ in range(draw(st.integers(0, 3))):
        readers = draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=ranks - 1))
        writers = sorted(set(range(ranks)) - readers)
        copied = {(dst, chunk) for dst in writers for chunk in range(chunks) if draw(st.booleans())}
        ends = st.tuples(*map(st.sampled_from, (sorted(readers), writers, range(chunks))))
        chosen = draw(st.sets(ends, min_size=1))
        step, written = [], set()
        for src, dst, chunk in sorted(chosen):
            if (dst, chunk) not in copied or (dst, chunk) not in written:
                step.append(Transfer(src, dst, chunk, "copy" if (dst, chunk) in copied else "add"))
            written.add((dst, chunk))
        steps.append(tuple(step))
    return Schedule("any", "allreduce", ranks, chunks, (0,) * chunks, tuple(steps))


def expanded(text):
    """``0-2,5`` -> 0, 1, 2, 5"""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def in_order(transfers):
    return sorted(map(tuple, transfers))


# --- words


@given(st.sets(st.integers(0, 40), min_size=1))
@example({0, 1, 2, 5, 7, 8})
def test_format_ranges_lists_every_number_once(values):
    assert list(expanded(format_ranges(values))) == sorted(values)
    assert len(format_ranges(values).split(",")) == sum(value - 1 not in values for value in values)


def test_contributions_in_words():
    assert describe_contributions((0, 1, 0)) == "rank 1"
    assert describe_contributions((1, 1, 0, 2)) == "ranks 0, 1 and 3 (2 times)"
    assert describe_contributions((0, 0)) == "nothing"


# --- text


def parsed_text(text):
    """The steps of a text: transfers, and the grid below as {chunk: cells}."""
    for block in text.split("\n\nstep ")[1:]:
        sent = re.findall(r"([\d,-]+) -> ([\d,-]+): chunks? ([\d,-]+) ([+=])", block)
        transfers = [
            (src, dst, chunk, {"+": "add", "=": "copy"}[sign])
            for sources, targets, chunks, sign in sent
            for src in expanded(sources)
            for dst in expanded(targets)
            for chunk in expanded(chunks)
        ]
        _, _, grid = block.partition("\nchunk ")
        yield transfers, {int(row.split()[0]): row.split()[1:] for row in grid.splitlines()[1:]}


@given(any_schedules() | schedules)
@few
def test_the_text_names_every_transfer_of_every_step(schedule):
    told = [in_order(transfers) for transfers, _ in parsed_text(as_text(schedule, 200))]
    assert told == [in_order(step) for step in schedule.steps]


@given(any_schedules() | schedules)
@few
def test_messages_are_in_the_order_of_who_sends_or_adds_up_what_many_send(schedule):
    for step in schedule.steps:
        ends = [re.fullmatch(r"(\S+) -> (\S+): .*", line).groups() for line in describe_step(step)]
        firsts = [int(src) if src.isdigit() else int(dst) for src, dst in ends]
        assert firsts == sorted(firsts)


def named(counts):
    return "".join(str(rank) if count else "." for rank, count in enumerate(counts))


@pytest.mark.parametrize(
    ("name", "world_size", "cell"),
    [*((name, ranks, named) for name in NAMES for ranks in (2, 3, 8)),
     ("ring", 12, lambda counts: str(sum(counts)))],  # where names do not fit
)  # fmt: skip
def test_the_grid_names_or_counts_the_ranks_whose_contributions_are_held(name, world_size, cell):
    schedule = ALGORITHMS[name](world_size)
    for (_, grid), state in zip(parsed_text(as_text(schedule)), list(simulate_contributions(schedule))[1:]):
        for chunk in range(schedule.chunks):
            assert grid[chunk] == [cell(state[rank][chunk]) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [4, 11])
def test_the_grid_counts_only_where_names_do_not_fit(world_size):
    width = len("chunk") + world_size * (1 + world_size)
    for columns, words in ((width, "a cell names the ranks"), (width - 1, "a cell is the number")):
        assert words in " ".join(as_text(ALGORITHMS["star"](world_size), columns).split())


def test_without_room_for_a_grid_the_text_reports_it():
    too_many = ALGORITHMS["tree"](2, chunks=33)
    for schedule, width in ((ALGORITHMS["ring"](30), 80), (too_many, 80), (too_many, 20)):
        text = as_text(schedule, width)
        assert "Without grids" in " ".join(text.split())
        assert "\nchunk " not in text


@given(schedules | any_schedules(), st.integers(20, 130))
@few
@example(ALGORITHMS["sharded"](17), 20)
@example(ALGORITHMS["hierarchical"](4, chunks=80), 25)
def test_no_line_of_the_text_is_wider_than_asked(schedule, width):
    text = as_text(schedule, width)
    assert max(map(len, text.splitlines())) <= width
    if width >= 80:  # a terminal's: no message is broken over two lines
        messages = [each for line in text.splitlines() if "->" in line for each in line.split("   ")]
        shape = r" *\S+ -> \S+: chunks? \S+ [+=]"
        assert all(re.fullmatch(shape, message) for message in messages if message)
    assert text.isascii()
    assert not re.search(r"[^\S\n]$", text, re.M)


def test_a_contribution_that_is_added_twice_stands_out_in_the_text():
    [_, (_, grid)] = parsed_text(as_text(WRONG))
    assert grid == {0: ["0!.", ".1.", "..2"]}


def test_one_rank_sends_nothing():
    assert as_text(ALGORITHMS["ring"](1)).endswith("\nNothing is sent.\nchunk 0\n    0 0")


# --- arrows


@given(any_schedules() | schedules)
@few
def test_no_two_arrows_lie_on_each_other(schedule):
    for step in schedule.steps:
        taken = Counter()
        for bus in bundle_transfers(step):
            ends = (bus.hub, *bus.others)
            taken.update((bus.chunk, bus.lane, rank) for rank in range(min(ends), max(ends) + 1))
        assert max(taken.values()) == 1


def panels(svg):
    return [
        group
        for group in ElementTree.fromstring(svg).findall(f"{SVG}g")
        if group.find(f"{SVG}text[@class='panel']") is not None
    ]


def box(panel):
    """Left, top, and how far right and down its texts and cells reach."""
    left, top = map(float, re.findall(r"[-\d.]+", panel.get("transform")))
    ends = [[float(each.get(at)) for each in panel.iter(f"{SVG}text")] for at in ("x", "y")]
    return left, top, left + max(ends[0]), top + max(ends[1])


@given(any_schedules() | schedules)
@few
def test_panels_lie_side_by_side_and_row_by_row_within_the_picture(schedule):
    svg = as_svg(schedule)
    width, height = map(float, ElementTree.fromstring(svg).get("viewBox").split()[2:])
    boxes = list(map(box, panels(svg)))
    for (_, top, right, bottom), (next_left, next_top, *_) in zip(boxes, boxes[1:]):
        if next_top == top:
            assert next_left > right
        else:
            assert next_left == boxes[0][0] and next_top > bottom
    assert min(each[0] for each in boxes) > 0 and max(each[2] for each in boxes) < width
    assert boxes[0][1] > 0 and boxes[-1][3] < height


def drawn_transfers(panel):
    """Read from where arrows begin and end: columns by the ranks above them, rows by the chunks
    beside them.
    """
    texts = [
        (text.text, float(text.get("x")), float(text.get("y")), text.get("class"))
        for text in panel.findall(f"{SVG}text")
    ]
    ranks = {x: int(text) for text, x, _, kind in texts if kind == "middle"}
    chunks = {y: int(text.split()[1]) for text, _, y, _ in texts if text.startswith("chunk ")}
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
    start, *steps = panels(as_svg(schedule))
    assert [in_order(drawn_transfers(panel)) for panel in steps] == [in_order(step) for step in schedule.steps]
    assert list(drawn_transfers(start)) == []


@given(any_schedules() | schedules)
@few
def test_the_picture_shows_what_every_rank_holds(schedule):
    """In words, and by as many filled segments as contributions."""
    kept = list(simulate_contributions(schedule))
    for panel, before, state in zip(panels(as_svg(schedule)), [kept[0], *kept], kept):
        cells = {cell.find(f"{SVG}title").text: cell for cell in panel.findall(f"{SVG}g")}
        assert len(cells) == schedule.world_size * schedule.chunks
        for rank, row in enumerate(state):
            for chunk, held in enumerate(row):
                cell = cells[f"rank {rank}, chunk {chunk}: {describe_contributions(held)}"]
                paths = cell.findall(f"{SVG}path")
                segments = {path.get("class"): path.get("d").count("M") for path in paths}
                kinds = Counter(
                    "empty" if not now else "often" if now > 1 else "held" if was else "new"
                    for was, now in zip(before[rank][chunk], held)
                )
                assert segments == kinds


@pytest.mark.parametrize(
    ("schedule", "whole_at"),
    [
        (ALGORITHMS["ring"](4), lambda schedule, rank, chunk: True),
        (HALVES["ring"][0](4), lambda schedule, rank, chunk: rank == schedule.owner[chunk]),
        (HALVES["ring"][1](4), lambda schedule, rank, chunk: True),
        (WRONG, lambda schedule, rank, chunk: False),
    ],
    ids=["allreduce", "reduce_scatter", "all_gather", "wrong"],
)
def test_complete_chunks_are_marked_as_complete(schedule, whole_at):
    for cell in panels(as_svg(schedule))[-1].findall(f"{SVG}g"):
        rank, chunk = map(int, re.findall(r"\d+", cell.find(f"{SVG}title").text)[:2])
        looks_whole = "whole" in cell.find(f"{SVG}rect").get("class").split()
        assert looks_whole == whole_at(schedule, rank, chunk)


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
        (lambda: as_text(ALGORITHMS["ring"](2), 19), "19 columns: give it at least 20"),
    ],
)
def test_schedules_that_are_too_large_to_draw_are_refused(make, words):
    with pytest.raises(ScheduleError, match=words):
        make()
