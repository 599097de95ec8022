"""A pipeline with its costs as text and as SVG: what is read_picture is read back and compared."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.drawn_pages import contrast_ratio, theme_colors
from support.examples import examples
from support.pipeline_reference import SCHEDULE_NAMES, make_schedule

from gluonlab import drawing
from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline import render
from gluonlab.parallel.pipeline.pipeline_cost import Costs, equal_shares, predict_timeline
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES
from gluonlab.parallel.pipeline.render import as_svg, as_text
from gluonlab.parallel.pipeline.render.pipeline_pictures import (
    DIGIT_WIDTH,
    LABEL_WIDTH,
    MARGIN,
    MAX_CHART_WIDTH,
    MAX_COLUMNS,
    RIGHT_MARGIN,
    STASH_HEIGHT,
    STYLE,
    WIDTH,
    axis_ticks,
    idle_gaps,
    page_times,
    stashed_levels,
    time_unit,
)

SVG = "{http://www.w3.org/2000/svg}"
few = examples(20, 40)
schedules = st.builds(
    make_schedule, st.sampled_from(SCHEDULE_NAMES), st.integers(1, 6), st.integers(1, 12), st.integers(1, 3)
)


@st.composite
def priced(draw):
    """A schedule and its price, in whole milliseconds."""
    schedule = draw(schedules)
    each = [tuple(draw(st.integers(1, 4)) * 1e-3 for _ in range(schedule.stages)) for _ in "fbu"]
    transfers = ((draw(st.sampled_from([0, 1e-3])),) * 2,) * (schedule.stages - 1)
    return schedule, predict_timeline(schedule, Costs(each[0], each[1], transfers, each[2]))


def price_of(name, *sizes):
    schedule = SCHEDULES[name](*sizes)
    return schedule, predict_timeline(schedule, equal_shares(schedule))


def read_picture(schedule, timeline):
    """The picture, and {(device, what): (kind, rectangle, number or None)} of its computations."""
    root = ElementTree.fromstring(as_svg(schedule, timeline))
    boxes = {}
    for box in root.iter(f"{SVG}g"):
        title = box.find(f"{SVG}title")
        if title is not None:
            rect = box.find(f"{SVG}rect")
            sides = [float(rect.get(name)) for name in ("x", "y", "width", "height")]
            boxes[tuple(title.text.split(": "))] = (rect.get("class").split()[0], sides, box.find(f"{SVG}text"))
    return root, boxes


def find_class(root, tag, kind):
    return [each for each in root.iter(f"{SVG}{tag}") if each.get("class") == kind]


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
def test_a_device_is_idle_where_it_computes_nothing(case):
    schedule, timeline = case
    for device in range(schedule.devices):
        busy = {t for *_, begin, end in computations(timeline, device) for t in range(begin, end)}
        idle = {t for begin, end in idle_gaps(timeline, device) for t in range(in_ms(begin), in_ms(end))}
        assert idle == set(range(in_ms(timeline.seconds))) - busy


@given(priced())
@few
def test_levels_are_what_is_kept_at_each_time(case):
    schedule, timeline = case
    for device in range(schedule.devices):
        levels = stashed_levels(timeline, device)
        for t in range(in_ms(timeline.seconds)):
            expected, level = (
                [count for time, count in counts if time <= (t + 0.5) * 1e-3][-1]
                for counts in (timeline.kept[device], levels)
            )
            assert level == expected
        assert all(one != other for (_, one), (_, other) in zip(levels, levels[1:]))


@pytest.mark.parametrize(
    ("timeline", "steps"),
    [
        (price_of("1f1b", 4, 8, 1)[1], 33),
        (price_of("interleaved", 4, 8, 2)[1], 57),
        (
            predict_timeline(SCHEDULES["gpipe"](2, 50), Costs((1e-3, 1.0), (1e-3, 1.0), ((0, 0),), (0, 0))),
            200,
        ),  # the limit
    ],
    ids=["1f1b", "interleaved", "long"],
)
def test_a_step_is_as_long_as_the_shortest_computation_up_to_a_number_of_steps(timeline, steps):
    times = page_times(timeline)
    assert (len(times), times[0], times[-1]) == (steps + 1, 0, pytest.approx(timeline.seconds))


@pytest.mark.parametrize(
    ("seconds", "unit", "shown"), [(2.5, "s", 15), (1e-3, "ms", 6), (2e-4, "ms", 1.2), (1e-8, "\N{MICRO SIGN}s", 0.06)]
)
def test_times_are_shown_in_the_largest_unit_of_which_there_is_one(seconds, unit, shown):
    timeline = predict_timeline(SCHEDULES["gpipe"](1, 3), Costs((seconds,), (seconds,), (), (0,)))
    result = time_unit(timeline)
    assert (result.unit, result.convert(timeline.seconds)) == (unit, shown)


@given(priced(), st.integers(4, 20))
@few
def test_the_axis_has_round_times_and_not_too_many(case, most):
    _, timeline = case
    times = axis_ticks(timeline, most)
    step = times[1] - times[0] if len(times) > 1 else 1
    assert times[0] == 0 and len(times) <= most + 1
    assert f"{step:.0e}"[0] in "125" and times[-1] <= time_unit(timeline).convert(timeline.seconds)


def test_a_schedule_that_takes_no_time_can_be_drawn():
    schedule = SCHEDULES["gpipe"](2, 2)
    timeline = predict_timeline(schedule, Costs.uniform(2, 0, 0))
    assert "gpipe: 2 devices, 2 stages, 2 microbatches, 0" in as_text(schedule, timeline)
    numbers = to_floats(re.findall(r' (?:x|y|width|height)="([^"%]+)"', as_svg(schedule, timeline)))
    assert len(numbers) > 8 and all(0 <= number < 10_000 for number in numbers)


# --- text


def read_line(line, names):
    """The passes of a device's line: (op, name, begin column, end column)."""
    boxes = rf"({names})(=+|-+)|u+|\.+"
    assert re.fullmatch(f"({boxes})*", line)
    for box in re.finditer(boxes, line):
        if box[2]:
            yield {"=": "backward", "-": "forward"}[box[2][0]], box[1], box.start(), box.end()


@given(priced())
@few
def test_the_text_has_every_computation_in_its_time(case):
    schedule, timeline = case
    several = schedule.stages > schedule.devices
    # two digits and a letter at most, and what fills a box; as_text gives numbers up beyond that
    assume(in_ms(timeline.seconds) * 4 <= MAX_COLUMNS)
    _, block = re.split(r"\n\nfrom .*\n", as_text(schedule, timeline, 2100))  # so wide, it is one
    lines = re.findall(r"^device (\d+) +(\S+)$", block.split("\n\n")[0], re.M)
    assert len(lines) == schedule.devices
    scale = len(lines[0][1]) / timeline.seconds / 1e3
    for device, line in lines:
        # updates of one device lie side by side, as one run of letters
        work = [each for each in computations(timeline, int(device)) if each[0] != "update"]
        names = [f"{m}{'abc'[stage // schedule.devices]}" if several else str(m) for _, stage, m, *_ in work]
        boxes = list(read_line(line, r"\d+[a-z]" if several else r"\d+"))
        assert [box[:2] for box in boxes] == [(each[0], name) for each, name in zip(work, names)]
        for (*_, begin, end), (*_, from_ms, to_ms) in zip(boxes, work):
            assert (begin, end) == pytest.approx((from_ms * scale, to_ms * scale), abs=1)


def test_the_text_of_1f1b_in_a_terminal():
    assert as_text(*price_of("1f1b", 2, 3), 50).splitlines() == [
        "1f1b: 2 devices, 2 stages, 3 microbatches, 12 ms,",
        "bubble 25%",
        "After a few forwards, forwards and backwards",
        "alternate: as fast as GPipe, with less memory.",
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
def test_no_line_of_the_text_is_wider_than_asked(case, width):
    text = as_text(*case, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii()
    assert not re.search(r"[^\S\n]$", text, re.M)


@pytest.mark.parametrize(
    ("draw", "sizes", "message"),
    [
        (lambda *case: as_text(*case, 39), (2, 2), "width=39: must be at least 40 columns for a pipeline"),
        (as_svg, (17, 2), "gpipe with 17 devices, 17 stages and 2 microbatches"),
        (as_svg, (8, 257), "choose at most 16 devices, and at most 2048 for stages"),
    ],
)
def test_drawings_that_are_too_large_are_refused(draw, sizes, message):
    with pytest.raises(ScheduleError, match=message):
        draw(*price_of("gpipe", *sizes))


# --- a picture


@given(priced())
@few
def test_the_picture_has_every_computation_in_its_time_and_row_and_hatches_what_is_idle(case):
    schedule, timeline = case
    root, boxes = read_picture(schedule, timeline)
    expected = {}
    for device in range(schedule.devices):
        for op, stage, m, begin, end in computations(timeline, device):
            what = op if op == "update" else f"{op} of microbatch {m}"
            expected[f"device {device}", f"{what}, stage {stage}"] = op, m, begin, end
    assert set(boxes) == set(expected)
    rows = {(device, y) for (device, _), (_, (_, y, _, _), _) in boxes.items()}
    assert len(rows) == len({y for _, y in rows}) == schedule.devices
    begin_x = min(x for _, (x, *_), _ in boxes.values()) - 0.5
    end_x = max(x + wide for _, (x, _, wide, _), _ in boxes.values()) + 0.5
    scale = (end_x - begin_x) / in_ms(timeline.seconds)
    [digit] = re.findall(r"\.number { font-size: (\d+)px }", STYLE)
    for place, (kind, (x, y, wide, high), number) in boxes.items():
        op, m, begin, end = expected[place]
        assert kind == op
        assert (x - 0.5 - begin_x, x + wide + 0.5 - begin_x) == pytest.approx((begin * scale, end * scale), abs=0.1)
        if number is not None:  # in the middle: 0.7 of a digit's size is above its line
            assert number.text == str(m)
            assert float(number.get("x")) == pytest.approx(x + wide / 2, abs=0.1)
            above = float(number.get("y")) - 0.35 * int(digit)
            assert above == pytest.approx(y + high / 2, abs=1)
    counts = [len(list(idle_gaps(timeline, device))) for device in range(schedule.devices)]
    assert len(find_class(root, "rect", "idle")) == sum(counts) + 1  # and the legend's


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
    """Up to a limit; then not all computations have their numbers."""
    schedule = SCHEDULES["gpipe"](2, microbatches)
    costs = Costs((unit, shortest * unit), (unit, unit), ((0, 0),), (0, 0))
    root, boxes = read_picture(schedule, predict_timeline(schedule, costs))
    wide = float(root.get("width"))
    narrowest = min(width for _, (_, _, width, _), _ in boxes.values()) + 1  # a px is between two
    last = max(x + width for _, (x, _, width, _), _ in boxes.values()) + 0.5
    assert wide == round(last + 2 * MARGIN + RIGHT_MARGIN)
    assert all(number is not None for *_, number in boxes.values()) == (fits != "widest")
    if fits == "wider":
        needed = len(str(microbatches - 1)) * DIGIT_WIDTH
        assert wide > WIDTH and needed <= narrowest <= needed + 4
    else:
        assert wide == (WIDTH if fits == "page" else MAX_CHART_WIDTH + 2 * MARGIN + LABEL_WIDTH + RIGHT_MARGIN)


def to_floats(words):
    return [float(word) for word in words]


@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize(("name", "sizes"), [("1f1b", (3, 5, 1)), ("interleaved", (2, 4, 2))])
def test_the_picture_tells_the_time_and_how_much_each_device_keeps(name, sizes, unit):
    """All devices keep their microbatches in one scale, in which the largest number is STASH_HEIGHT high."""
    schedule = SCHEDULES[name](*sizes)
    timeline = predict_timeline(schedule, Costs.uniform(schedule.stages, unit, 2 * unit))
    root = ElementTree.fromstring(as_svg(schedule, timeline))
    a_second = (float(root.get("width")) - 2 * MARGIN - LABEL_WIDTH - RIGHT_MARGIN) / timeline.seconds

    lines = to_floats(re.match(r"M([\d.]+) ", each.get("d"))[1] for each in find_class(root, "path", "scale"))
    shown = find_class(root, "text", "quiet small middle")
    of_unit = a_second / time_unit(timeline).per_second
    expected = [LABEL_WIDTH + float(label.text) * of_unit for label in shown]
    assert len(expected) > 3
    for places in (lines, to_floats(label.get("x") for label in shown)):
        assert places == pytest.approx(expected, abs=1)
    most = [max(many for _, many in timeline.kept[device]) for device in range(schedule.devices)]
    labels = [label for label in find_class(root, "text", "small end") if label.text.isdigit()]
    assert to_floats(label.text for label in labels) == most
    below = 0.0
    for device, level in enumerate(find_class(root, "path", "level")):
        x, base, changes, end = re.fullmatch(
            r"M([\d.]+) ([\d.]+)((?:H[\d.]+V[\d.]+)*)H([\d.]+)", level.get("d")
        ).groups()
        at, tops = zip(*(to_floats(each) for each in re.findall(r"H([\d.]+)V([\d.]+)", changes)))
        kept = stashed_levels(timeline, device)
        assert (float(x), float(end)) == pytest.approx((LABEL_WIDTH, LABEL_WIDTH + a_second * timeline.seconds), abs=1)
        assert at == pytest.approx([LABEL_WIDTH + moment * a_second for moment, _ in kept], abs=1)
        high = [STASH_HEIGHT * many / max(most) for _, many in kept]
        assert [float(base) - top for top in tops] == pytest.approx(high, abs=0.1)
        assert below < min(tops) and below < float(labels[device].get("y")) < float(base)
        below = float(base)


# --- colors: WCAG 2.1, 1.4.3 and 1.4.11


def test_the_colors_of_the_picture_have_contrast():
    fills = dict(re.findall(r"\.(\w+\.shade-\d) { fill: (#\w{6}) }", STYLE))
    assert len(fills) == 6
    for kind, color in fills.items():
        on = "#ffffff" if kind.endswith("0") else "#1c2430"
        assert contrast_ratio(on, color) >= 4.5
    for edge in re.findall(r"stroke: (#\w{6}) }", STYLE)[:2]:
        assert contrast_ratio(edge, "#ffffff") >= 3


def test_the_colors_of_the_page_have_contrast_in_the_light_and_in_the_dark():
    for theme in theme_colors(drawing, render):
        for op in ("forward", "backward"):
            for shade in range(3):
                name = f"{op}-{shade}"
                assert contrast_ratio(theme[f"on-{name}"], theme[name]) >= 4.5
            # a box is told apart by its edge, which is the first shade for all
            assert contrast_ratio(theme[f"{op}-0"], theme["card"]) >= 3
        for mark in ("update", "stripe", "kept", "ink", "quiet"):
            assert contrast_ratio(theme[mark], theme["card"]) >= 3
