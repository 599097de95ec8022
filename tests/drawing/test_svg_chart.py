"""Charts: every value at its place, on round ticks, in words for those who do not see it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_charts import SVG, find_group, mark_positions, parse_svg, pixels_to_values, read_ticks, svg_texts

from gluonlab.drawing.svg_chart import (
    COLORS,
    CURVE_KINDS,
    DARK,
    LETTER,
    MARKS,
    WIDE_LETTER,
    Axis,
    Chart,
    Curve,
    Region,
    as_svg,
    format_number,
)

VALUES = st.floats(1e-6, 1e7)


def draw_chart(curves, log=False, **more):
    """Return the tree of the picture."""
    axes = Axis("across (s)", log), Axis("up (images)", log)
    return parse_svg(as_svg(Chart("a <title>", *axes, curves, **more)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=9), st.booleans())
def test_values_lie_in_proportion_on_linear_and_logarithmic_axes(points, log):
    points = sorted(set(points))
    marks = mark_positions(draw_chart([Curve("it", points)], log), "curve-0")
    of = math.log if log else float
    for axis in (0, 1):
        values, px = [of(point[axis]) for point in points], [mark[axis] for mark in marks]
        low, high = values.index(min(values)), values.index(max(values))
        spread = values[high] - values[low]
        if spread > 1e-3 * abs(values[high]) and abs(px[high] - px[low]) > 20:
            for value, place in zip(values, px):
                expected = px[low] + (value - values[low]) / spread * (px[high] - px[low])
                assert place == pytest.approx(expected, abs=0.2)
    xs, ys = zip(*marks)
    assert min(xs) >= 73.9 and max(xs) <= 736.1 and max(ys) - min(ys) <= 350.1


@pytest.mark.parametrize(
    ("low", "high", "log", "texts"),
    [
        (0.0, 1.0, False, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (3.0, 97.0, False, ["0", "20", "40", "60", "80", "100"]),
        (3.0, 97.0, True, ["2", "5", "10", "20", "50", "100"]),
        (1.0, 1e6, True, ["1", "10", "100", "1000", "10000", "100000", "1000000"]),
    ],
)
def test_ticks_are_round(low, high, log, texts):
    tree = draw_chart([Curve("", [(1.0, low), (2.0, high)])], log)
    assert [value for value, _ in read_ticks(tree, "y")] == [float(text) for text in texts]
    assert set(texts) <= {text.replace(",", "") for text in svg_texts(tree)}


def test_titles_axes_legend_regions_and_notes_are_there_and_described():
    curves = [Curve("one", [(1, 2), (3, 4)], 0, [(1, 3), None]), Curve("two", [(1, 9)], 1)]
    regions = [Region("calm", 1, 2, 0)]
    tree = draw_chart(curves, regions=regions, notes=["A sentence that says more. " * 9])
    assert {"a <title>", "across (s)", "up (images)", "one", "two", "calm"} <= set(svg_texts(tree))
    description = tree.find(f"{SVG}desc").text
    assert "one: 1: 2, 3: 4." in description and "A sentence" in description
    [path] = find_group(tree, "curve-0-intervals").iter(f"{SVG}path")
    ends = [float(number) for number in path.get("d").split() if number not in "ML"][1::2]
    assert pixels_to_values(tree, "y", ends, log=False) == pytest.approx([1, 3])


def test_a_single_point_and_nothing_at_all_can_be_drawn():
    assert len(mark_positions(draw_chart([Curve("it", [(5, 5)])]), "curve-0")) == 1
    assert len(mark_positions(draw_chart([Curve("it", [(5, 0)])]), "curve-0")) == 1
    draw_chart([])


def test_each_kind_of_curve_has_a_mark_and_colors_for_light_and_dark():
    assert len(set(MARKS)) == len(set(COLORS)) == CURVE_KINDS and set(COLORS) <= set(DARK)
    svg = as_svg(Chart("it", Axis("x"), Axis("y"), [Curve("one", [(1, 2)], 3)]))
    dark = svg[svg.index("(prefers-color-scheme: dark)") : svg.index("</style>")]
    assert f'[style*="fill: {COLORS[3]}"] {{ fill: {DARK[COLORS[3]]} !important }}' in dark


def test_dollar_signs_are_not_mathematics():
    tree = draw_chart([Curve("$a$ and $b", [(1, 2)])], notes=["$x^2$ $"])
    assert {"$a$ and $b", "$x^2$ $"} <= set(svg_texts(tree))


@pytest.mark.parametrize(
    ("value", "text"), [(1024, "1,024"), (0.25, "0.25"), (1e-5, "1e-05"), (0.0, "0"), (12.34, "12.3")]
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text


def notes_of(tree):
    """The lines below the picture, which begin at its margin, behind the title; and where."""
    at_margin = [each for each in tree.iter(f"{SVG}text") if each.get("x") == "24"]
    return [(each.text, float(each.get("y"))) for each in at_margin[1:]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("漢字カ、。」)aB1 "), min_size=1, max_size=9), st.integers(0, 60))
def test_japanese_notes_wrap_at_the_picture_width_but_not_before_closing_marks(words, times):
    note = "注" + "".join(words) * times
    tree = draw_chart([Curve("", [(1, 2)])], notes=[note])
    room = float(tree.get("viewBox").split()[2]) - 2 * 24
    lines = [text for text, _ in notes_of(tree)]
    assert "".join(lines) == note

    def wide(line):
        return sum(WIDE_LETTER if letter in "注漢字カ、。」" else LETTER for letter in line)

    for line, after in zip(lines, lines[1:]):
        # what closes may stand outside, and there is no room for what comes next
        assert wide(line.rstrip("、。」)")) <= room < wide(line + after[0])
        assert after[0] not in "、。」)"
    assert wide(lines[-1].rstrip("、。」)")) <= room


@pytest.mark.parametrize("notes", [1, 5])
def test_the_picture_ends_a_little_below_its_last_line(notes):
    tree = draw_chart([Curve("it", [(1, 2), (3, 4)])], notes=["A sentence. " * 20] * notes)
    height, lines = float(tree.get("viewBox").split()[3]), [y for _, y in notes_of(tree)]
    assert len(lines) > notes and 4 < height - max(lines) < 40
