"""A priced pipeline as text and as SVG: what is drawn is read back, and compared with the price."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.drawn_pages import contrast, themes
from support.examples import examples
from support.pipeline_reference import NAMES, made

from gluonlab import drawing
from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline import render
from gluonlab.parallel.pipeline.price import Costs, equal_shares, price
from gluonlab.parallel.pipeline.render import as_svg, as_text
from gluonlab.parallel.pipeline.render.pictures import (
    DIGIT,
    LABELS,
    LOW,
    MARGIN,
    MOST_COLUMNS,
    RIGHT,
    STYLE,
    WIDEST,
    WIDTH,
    axis,
    clock,
    gaps,
    levels,
    size,
    ticks,
)
from gluonlab.parallel.pipeline.schedule import SCHEDULES

SVG = "{http://www.w3.org/2000/svg}"
few = examples(20, 40)
schedules = st.builds(
    made, st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 12), st.integers(1, 3)
)


@st.composite
def priced(draw):
    """A schedule and its price, in whole milliseconds."""
    schedule = draw(schedules)
    each = [tuple(draw(st.integers(1, 4)) * 1e-3 for _ in range(schedule.stages)) for _ in "fbu"]
    transfers = ((draw(st.sampled_from([0, 1e-3])),) * 2,) * (schedule.stages - 1)
    return schedule, price(schedule, Costs(each[0], each[1], transfers, each[2]))


def drawn_boxes(root):
    """The rectangle, and the text if there is one, of each computation in the picture."""
    groups = [each for each in root.iter(f"{SVG}g") if each.find(f"{SVG}title") is not None]
    return [(each.find(f"{SVG}rect"), each.find(f"{SVG}text")) for each in groups]


def in_ms(seconds):
    return round(seconds * 1e3)


def computations(timeline, device):
    """(op, stage, microbatch, begin, end) in milliseconds of what takes time."""
    return [
        (*event.instruction, in_ms(event.begin_s), in_ms(event.end_s))
        for event in timeline.events
        if event.device == device and event.instruction.op in ("forward", "backward", "update")
    ]


# --- what all forms share


@given(priced())
@few
def test_a_device_is_idle_where_it_computes_nothing(drawn):
    schedule, timeline = drawn
    for device in range(schedule.devices):
        busy = {t for *_, begin, end in computations(timeline, device) for t in range(begin, end)}
        idle = {t for begin, end in gaps(timeline, device) for t in range(in_ms(begin), in_ms(end))}
        assert idle == set(range(in_ms(timeline.seconds))) - busy


@given(priced())
@few
def test_levels_are_what_is_kept_at_each_time(drawn):
    schedule, timeline = drawn
    for device in range(schedule.devices):
        for t in range(in_ms(timeline.seconds)):
            middle = (t + 0.5) * 1e-3
            exact = [many for at, many in timeline.kept[device] if at <= middle][-1]
            assert [many for at, many in levels(timeline, device) if at <= middle][-1] == exact
        counts = [many for _, many in levels(timeline, device)]
        assert all(one != other for one, other in zip(counts, counts[1:]))


@pytest.mark.parametrize(
    ("name", "sizes", "steps"), [("1f1b", (4, 8, 1), 33), ("interleaved", (4, 8, 2), 57)]
)
def test_a_step_is_as_long_as_the_shortest_computation(name, sizes, steps):
    schedule = SCHEDULES[name](*sizes)
    timeline = price(schedule, equal_shares(schedule))
    times = ticks(timeline)
    assert len(times) == steps + 1
    assert (times[0], times[-1]) == (0, pytest.approx(timeline.seconds))


def test_a_long_schedule_has_a_limited_number_of_steps():
    schedule = SCHEDULES["gpipe"](2, 50)
    fine = Costs((1e-3, 1.0), (1e-3, 1.0), ((0, 0),), (0, 0))
    assert len(ticks(price(schedule, fine))) == 201


@pytest.mark.parametrize(
    ("seconds", "unit", "shown"),
    [(2.5, "s", 15), (1e-3, "ms", 6), (2e-4, "ms", 1.2), (1e-8, "\N{MICRO SIGN}s", 0.06)],
)
def test_times_are_shown_in_the_largest_unit_of_which_there_is_one(seconds, unit, shown):
    timeline = price(SCHEDULES["gpipe"](1, 3), Costs((seconds,), (seconds,), (), (0,)))
    of = clock(timeline)
    assert (of.unit, of.shown(timeline.seconds)) == (unit, shown)


@given(priced(), st.integers(4, 20))
@few
def test_the_axis_has_round_times_and_not_too_many(drawn, most):
    _, timeline = drawn
    times = axis(timeline, most)
    step = times[1] - times[0] if len(times) > 1 else 1
    assert times[0] == 0 and len(times) <= most + 1
    assert f"{step:.0e}"[0] in "125" and times[-1] <= clock(timeline).shown(timeline.seconds)


def test_nothing_that_takes_no_time_is_too_little_to_draw():
    schedule = SCHEDULES["gpipe"](2, 2)
    timeline = price(schedule, Costs.equal(2, 0, 0))
    assert "gpipe: 2 devices, 2 stages, 2 microbatches, 0" in as_text(schedule, timeline)
    picture = ElementTree.fromstring(as_svg(schedule, timeline))
    sizes = [each.get(name) for each in picture.iter() for name in ("x", "y", "width", "height")]
    numbers = [float(size) for size in sizes if size is not None and not size.endswith("%")]
    assert len(numbers) > 8 and all(0 <= number < 10_000 for number in numbers)


# --- text


def read_line(line, names):
    """The boxes of a device's line: (op, name, begin column, end column)."""
    pattern = rf"({names})(=+|-+)|(u+)|\.+"
    end = 0
    for box in re.finditer(pattern, line):
        assert box.start() == end  # nothing else stands between them
        end = box.end()
        if box[2]:
            op = {"=": "backward", "-": "forward"}[box[2][0]]
            yield op, box[1], box.start(), box.end()
        elif box[3]:
            yield "update", "", box.start(), box.end()
    assert end == len(line)


@given(priced())
@few
def test_the_text_has_every_computation_in_its_time(drawn):
    schedule, timeline = drawn
    several = schedule.stages > schedule.devices
    # two digits and a letter at most, and what fills a box; as_text gives numbers up beyond that
    assume(in_ms(timeline.seconds) * 4 <= MOST_COLUMNS)
    text = as_text(schedule, timeline, 2100)
    blocks = re.split(r"\n\nfrom .*\n", text)
    assert len(blocks) == 2  # so wide, it is one
    lines = re.findall(r"^device (\d+) +(\S+)$", blocks[1].split("\n\n")[0], re.M)
    assert len(lines) == schedule.devices
    scale = len(lines[0][1]) / timeline.seconds / 1e3
    for device, line in lines:
        boxes = list(read_line(line, r"\d+[a-z]" if several else r"\d+"))
        names = [
            f"{m}{'abc'[stage // schedule.devices]}" if several else str(m)
            for _, stage, m, *_ in computations(timeline, int(device))
        ]
        expected = [
            (op, "" if op == "update" else name, begin, end)
            for (op, _, _, begin, end), name in zip(computations(timeline, int(device)), names)
        ]
        # updates of one device lie side by side, as one run of letters
        compute = [box for box in boxes if box[0] != "update"]
        wanted = [box for box in expected if box[0] != "update"]
        assert [box[:2] for box in compute] == [box[:2] for box in wanted]
        for (*_, begin, end), (*_, from_ms, to_ms) in zip(compute, wanted):
            assert begin == pytest.approx(from_ms * scale, abs=1)
            assert end == pytest.approx(to_ms * scale, abs=1)


def test_the_text_of_1f1b_in_a_terminal():
    schedule = SCHEDULES["1f1b"](2, 3)
    assert as_text(schedule, price(schedule, equal_shares(schedule)), 50).splitlines() == [
        "1f1b: 2 devices, 2 stages, 3 microbatches, 12 ms,",
        "bubble 25%",
        "After a few forwards, one forward and one backward",
        "in turns: GPipe's time in less memory.",
        "",
        "0-- microbatch 0 goes forward, 0== backward, ..",
        "idle.",
        "",
        "from 0 to 12 ms",
        "device 0  0--1--......0=====2--1=====...2=====",
        "device 1  ...0--0=====1--1=====2--2=====......",
        "keeps 0   1  2                       1",
        "keeps 1   0  1                          0",
        "",
        "device  stages  bubble  keeps at most",
        "     0       0     25%              2",
        "     1       1     25%              1",
    ]


@given(priced(), st.integers(40, 130))
@few
def test_no_line_of_the_text_is_wider_than_asked(drawn, width):
    text = as_text(*drawn, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii()
    assert not re.search(r"[^\S\n]$", text, re.M)


def test_a_terminal_that_is_too_narrow_is_refused():
    schedule = SCHEDULES["gpipe"](2, 2)
    with pytest.raises(ScheduleError, match="a pipeline in 39 columns: give it at least 40"):
        as_text(schedule, price(schedule, equal_shares(schedule)), 39)


# --- a picture


@given(priced())
@few
def test_the_picture_has_every_computation_in_its_time_and_row(drawn):
    schedule, timeline = drawn
    root = ElementTree.fromstring(as_svg(schedule, timeline))
    rows, boxes = {}, {}
    [digit] = re.findall(r"\.number { font-size: (\d+)px }", STYLE)
    for box in root.iter(f"{SVG}g"):
        title = box.find(f"{SVG}title")
        if title is None:
            continue
        device, _, words = title.text.partition(": ")
        rect = box.find(f"{SVG}rect")
        x, y, wide, high = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        rows.setdefault(device, set()).add(y)
        number = box.find(f"{SVG}text")
        boxes[words] = (x, x + wide, rect.get("class"), number)
        if number is not None:  # in the middle: 0.7 of a digit's size is above its line
            assert float(number.get("x")) == pytest.approx(x + wide / 2, abs=0.1)
            above = float(number.get("y")) - 0.35 * int(digit)
            assert above == pytest.approx(y + high / 2, abs=1)
    assert all(len(tops) == 1 for tops in rows.values())
    assert len({top for tops in rows.values() for top in tops}) == schedule.devices
    events = [e for d in range(schedule.devices) for e in computations(timeline, d)]
    by_words = {
        (f"{op} of microbatch {m}, stage {s}" if op != "update" else f"update, stage {s}"): (
            op,
            m,
            begin,
            end,
        )
        for op, s, m, begin, end in events
    }
    assert set(boxes) == set(by_words)
    begin_x = min(x for x, *_ in boxes.values()) - 0.5
    scale = (max(end for _, end, *_ in boxes.values()) + 0.5 - begin_x) / in_ms(timeline.seconds)
    for words, (x, to, kind, number) in boxes.items():
        op, m, begin, end = by_words[words]
        assert kind.split()[0] == op
        assert (x - 0.5 - begin_x, to + 0.5 - begin_x) == pytest.approx(
            (begin * scale, end * scale), abs=0.1
        )
        assert number is None or number.text == str(m)


@pytest.mark.parametrize(
    ("microbatches", "shortest", "unit", "fits"),
    [
        (1, 1.0, 1e-6, "page"), (12, 1.0, 1e-3, "page"), (12, 0.5, 1e3, "page"),
        (30, 0.5, 1e-3, "wider"), (30, 0.5, 1e3, "wider"), (40, 0.01, 1e-3, "widest"),
    ],
)  # fmt: skip
def test_a_picture_is_as_wide_as_a_page_or_as_the_shortest_computations_number_needs(
    microbatches, shortest, unit, fits
):
    """Up to a limit, where not all computations have their numbers."""
    schedule = SCHEDULES["gpipe"](2, microbatches)
    costs = Costs((unit, shortest * unit), (unit, unit), ((0, 0),), (0, 0))
    root = ElementTree.fromstring(as_svg(schedule, price(schedule, costs)))
    boxes = drawn_boxes(root)
    wide = float(root.get("width"))
    narrowest = min(float(rect.get("width")) for rect, _ in boxes) + 1  # a px is between two
    last = max(float(rect.get("x")) + float(rect.get("width")) for rect, _ in boxes) + 0.5
    assert wide == round(last + 2 * MARGIN + RIGHT)
    assert all(number is not None for _, number in boxes) == (fits != "widest")
    if fits == "wider":
        needed = len(str(microbatches - 1)) * DIGIT
        assert wide > WIDTH and needed <= narrowest <= needed + 4
    else:
        assert wide == (WIDTH if fits == "page" else WIDEST + 2 * MARGIN + LABELS + RIGHT)


def lengths(words):
    return [float(word) for word in words]


@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize(("name", "sizes"), [("1f1b", (3, 5, 1)), ("interleaved", (2, 4, 2))])
def test_the_picture_tells_the_time_and_how_much_each_device_keeps(name, sizes, unit):
    """All devices keep their microbatches in one scale, in which the most of all is LOW high."""
    schedule = SCHEDULES[name](*sizes)
    timeline = price(schedule, Costs.equal(schedule.stages, unit, 2 * unit))
    root = ElementTree.fromstring(as_svg(schedule, timeline))
    a_second = (float(root.get("width")) - 2 * MARGIN - LABELS - RIGHT) / timeline.seconds

    def of_class(tag, kind):
        return [each for each in root.iter(f"{SVG}{tag}") if each.get("class") == kind]

    lines = lengths(re.match(r"M([\d.]+) ", each.get("d"))[1] for each in of_class("path", "scale"))
    shown = of_class("text", "quiet small middle")
    of_unit = a_second / clock(timeline).per_second
    for places in (lines, lengths(each.get("x") for each in shown)):
        wanted = [LABELS + float(each.text) * of_unit for each in shown]
        assert len(wanted) > 3 and places == pytest.approx(wanted, abs=1)
    most = [max(many for _, many in timeline.kept[device]) for device in range(schedule.devices)]
    told = [each for each in of_class("text", "small end") if each.text.isdigit()]
    assert lengths(each.text for each in told) == most
    below = 0.0
    for device, level in enumerate(of_class("path", "level")):
        x, base, changes, end = re.fullmatch(
            r"M([\d.]+) ([\d.]+)((?:H[\d.]+V[\d.]+)*)H([\d.]+)", level.get("d")
        ).groups()
        at, tops = zip(*(lengths(each) for each in re.findall(r"H([\d.]+)V([\d.]+)", changes)))
        kept = levels(timeline, device)
        assert (float(x), float(end)) == pytest.approx(
            (LABELS, LABELS + a_second * timeline.seconds), abs=1
        )
        assert at == pytest.approx([LABELS + moment * a_second for moment, _ in kept], abs=1)
        high = [LOW * many / max(most) for _, many in kept]
        assert [float(base) - top for top in tops] == pytest.approx(high, abs=0.1)
        assert below < min(tops) and below < float(told[device].get("y")) < float(base)
        below = float(base)


@given(priced())
@few
def test_the_picture_hatches_what_is_idle(drawn):
    schedule, timeline = drawn
    root = ElementTree.fromstring(as_svg(schedule, timeline))
    # but for the legend's
    idle = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "idle"][1:]
    counts = [len(list(gaps(timeline, device))) for device in range(schedule.devices)]
    assert len(idle) == sum(counts)


def test_a_picture_that_is_too_large_is_refused():
    schedule = SCHEDULES["gpipe"](17, 2)
    with pytest.raises(ScheduleError, match="gpipe with 17 devices, 17 stages and 2 microbatches"):
        as_svg(schedule, price(schedule, equal_shares(schedule)))
    schedule = SCHEDULES["gpipe"](8, 257)
    with pytest.raises(ScheduleError, match="choose up to 16 devices and 2048 stages x microb"):
        as_svg(schedule, price(schedule, equal_shares(schedule)))


def test_the_size_is_told_in_words():
    schedule = SCHEDULES["1f1b"](1, 1)
    assert size(schedule, price(schedule, equal_shares(schedule))) == (
        "1 device, 1 stage, 1 microbatch, 3 ms, bubble 0%"
    )


# --- colours: WCAG 2.1, 1.4.3 and 1.4.11


def test_the_colours_of_the_picture_have_contrast():
    fills = dict(re.findall(r"\.(\w+\.shade-\d) { fill: (#\w{6}) }", STYLE))
    assert len(fills) == 6
    for kind, colour in fills.items():
        on = "#ffffff" if kind.endswith("0") else "#1c2430"
        assert contrast(on, colour) >= 4.5
    for edge in re.findall(r"stroke: (#\w{6}) }", STYLE)[:2]:
        assert contrast(edge, "#ffffff") >= 3


def test_the_colours_of_the_page_have_contrast_in_the_light_and_in_the_dark():
    for theme in themes(drawing, render):
        for op in ("forward", "backward"):
            for shade in range(3):
                name = f"{op}-{shade}"
                assert contrast(theme[f"on-{name}"], theme[name]) >= 4.5
            # a box is told apart by its edge, which is the first shade for all
            assert contrast(theme[f"{op}-0"], theme["card"]) >= 3
        for mark in ("update", "stripe", "kept", "ink", "quiet"):
            assert contrast(theme[mark], theme["card"]) >= 3
