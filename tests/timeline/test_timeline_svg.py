"""The SVG of a timeline: its bars and ticks equal a made-up timeline."""

import re

import pytest
from support.drawn_charts import SVG, find_group, parse_svg, pixels_to_values, read_ticks, svg_texts

from gluonlab.timeline.mxnet_profiler import Span
from gluonlab.timeline.timeline import Timeline
from gluonlab.timeline.timeline_svg import LABELS, MARGIN, MIN_BAR_WIDTH, STEPS, WIDTH, as_svg

BEGAN, FIRST = 4e9, 7  # microseconds, and the number of the first step
# for each row, the begin and end of each phase, as shares of a step
DONE = {
    "cpu(0)": {"forward": (0.1, 0.4), "backward": (0.4, 0.75), "update": (0.9, 0.95)},
    "cpu(1)": {"forward": (0.2, 0.3), "backward": (0.5, 0.8), "sum": (0.8, 0.9)},
    "host": {"input": (0.0, 0.05), "forward": (0.05, 0.25), "backward": (0.25, 0.5)},
}
# steps, and milliseconds of each
LENGTHS = [(1, 0.02), (2, 3.7), (STEPS, 12.5), (STEPS + 1, 750.0), (40, 31.0)]


def make_timeline(steps, each_ms):
    """Return equal steps of ``each_ms`` milliseconds."""
    step_us = 1e3 * each_ms
    starts = [BEGAN + step_us * step for step in range(steps)]
    spans = [
        Span(row, phase, start + step_us * begin, start + step_us * end)
        for row, done in DONE.items() for start in starts for phase, (begin, end) in done.items()
    ]  # fmt: skip
    devices, host = ([span for span in spans if (span.row == "host") == is_host] for is_host in (False, True))
    phases, rows = [span.name for span in devices], [row for row in DONE if row != "host"]
    return Timeline(FIRST, starts, BEGAN + step_us * steps, rows, devices, phases, host)


def bars(tree, row, phase):
    """(begin, end) of each bar of a phase, in the axis's milliseconds."""
    group = find_group(tree, f"{row}:{phase}")
    if group is None:
        return []
    [path] = group.iter(f"{SVG}path")
    parts = path.get("d").split("z")
    outlines = [list(map(float, re.findall(r"[ML] ([-\d.]+) [-\d.]+", part))) for part in parts]
    return [tuple(pixels_to_values(tree, "x", (min(xs), max(xs)), False)) for xs in outlines if xs]


@pytest.mark.parametrize(("steps", "each_ms"), LENGTHS)
def test_each_row_has_what_it_did_in_the_first_steps_at_its_time(steps, each_ms):
    tree = parse_svg(as_svg(make_timeline(steps, each_ms), "a run"))
    drawn, precise = min(steps, STEPS), 2e-5 * each_ms * STEPS
    assert set(DONE) <= set(svg_texts(tree))
    for row, done in DONE.items():
        for phase in ("forward", "backward", "update", "sum", "input", "copy"):
            begin, end = done.get(phase, (0, 0))
            steps_with_it = range(drawn if phase in done else 0)
            expected = [(each_ms * (step + begin), each_ms * (step + end)) for step in steps_with_it]
            assert bars(tree, row, phase) == [pytest.approx(bar, abs=precise) for bar in expected]
    edges = [path.get("d").split()[1] for path in find_group(tree, "steps").iter(f"{SVG}path")]
    expected = [each_ms * step for step in range(drawn)]
    assert pixels_to_values(tree, "x", map(float, edges), False) == pytest.approx(expected, abs=precise)


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize(("steps", "each_ms"), LENGTHS)
def test_the_words_and_the_axis_tell_the_time_that_is_drawn(steps, each_ms, language):
    tree = parse_svg(as_svg(make_timeline(steps, each_ms), "a run", language))
    drawn_ms = min(steps, STEPS) * each_ms
    # the last step and the drawn time are omitted if the text needs no such words
    expected = [FIRST, *[FIRST + steps - 1] * (steps > 1), each_ms, *[drawn_ms] * (steps > STEPS)]
    subtitle = svg_texts(tree)[svg_texts(tree).index("a run") + 1]
    assert list(map(float, re.findall(r"\d+(?:\.\d+)?", subtitle))) == pytest.approx(expected)
    times = [time for time, _ in read_ticks(tree, "x")]
    pitch = times[1]
    assert times == pytest.approx([pitch * number for number in range(len(times))])
    assert 4 <= drawn_ms / pitch <= 10 + 1e-9
    assert times[-1] <= drawn_ms * (1 + 1e-9) < times[-1] + pitch
    assert f"{pitch:.0e}"[0] in "125" and float(f"{pitch:.0e}") == pitch


@pytest.mark.parametrize(("other", "apart", "count"), [("forward", 0.8, 1), ("forward", 1.2, 10), ("sum", 0.8, 10)])
def test_operators_of_one_phase_are_one_bar_if_the_gap_is_invisible(other, apart, count):
    """Every second operator is of the ``other`` phase. Gaps are ``apart`` times the smallest bar."""
    gap = 1000.0 * apart * MIN_BAR_WIDTH / (WIDTH - 2 * MARGIN - LABELS)
    spans = [Span("cpu(0)", "any", (50 + gap) * n, (50 + gap) * n + 50) for n in range(10)]
    timeline = Timeline(FIRST, [0.0], 1000.0, ["cpu(0)"], spans, ["forward", other] * 5, [])
    tree = parse_svg(as_svg(timeline, "a run"))
    assert sum(len(bars(tree, "cpu(0)", phase)) for phase in {"forward", other}) == count
