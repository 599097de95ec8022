"""A timeline's picture: what is drawn is read back, and compared with a made-up timeline."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from gluonlab.timeline.picture import LABELS, LEAST, MARGIN, STEPS, WIDTH, as_svg
from gluonlab.timeline.shares import Timeline
from gluonlab.timeline.spans import Span

SVG = "{http://www.w3.org/2000/svg}"
BEGAN, FIRST = 4e9, 7  # microseconds, and the number of the first step
# what each row does in a step: from which share of it until which
DONE = {
    "cpu(0)": {"forward": (0.1, 0.4), "backward": (0.4, 0.75), "update": (0.9, 0.95)},
    "cpu(1)": {"forward": (0.2, 0.3), "backward": (0.5, 0.8), "sum": (0.8, 0.9)},
    "host": {"input": (0.0, 0.05), "forward": (0.05, 0.25), "backward": (0.25, 0.5)},
}
# steps, and milliseconds of each
LENGTHS = [
    (1, 0.02),
    (2, 3.7),
    (3, 3.55),
    (STEPS, 12.5),
    (STEPS + 1, 750.0),
    (9, 1000.0),
    (40, 31.0),
]


def timeline_of(steps, each_ms):
    """So many steps that are all alike."""
    step_us = 1e3 * each_ms
    starts = [BEGAN + step_us * step for step in range(steps)]
    done = {
        row: [
            Span(row, phase, start + step_us * begin, start + step_us * end)
            for start in starts
            for phase, (begin, end) in DONE[row].items()
        ]
        for row in DONE
    }
    host = done.pop("host")
    spans = [span for row in done.values() for span in row]
    phases = [span.name for span in spans]
    return Timeline(FIRST, starts, BEGAN + step_us * steps, list(done), spans, phases, host)


def numbers(parts, name):
    return [float(part.get(name)) for part in parts]


def of_class(root, tag, kind):
    return [each for each in root.iter(f"{SVG}{tag}") if each.get("class") == kind]


@pytest.mark.parametrize(("steps", "each_ms"), LENGTHS)
def test_each_row_has_what_it_did_in_the_first_steps_at_its_time(steps, each_ms):
    root = ElementTree.fromstring(as_svg(timeline_of(steps, each_ms), "a run"))
    drawn = min(steps, STEPS)
    rows = [group for group in root.iter(f"{SVG}g") if len(group.findall(f"{SVG}text")) == 1]
    assert [row.find(f"{SVG}text").text for row in rows] == list(DONE)
    for name, row in zip(DONE, rows):
        below, *bars = row.findall(f"{SVG}rect")
        whole = float(below.get("width"))
        wanted = [(step, *done) for step in range(drawn) for done in DONE[name].items()]
        assert [bar.get("class") for bar in bars] == [phase for _, phase, _ in wanted]
        begins = [(step + begin) * whole / drawn for step, _, (begin, _) in wanted]
        assert numbers(bars, "x") == pytest.approx(begins, abs=0.01)
        lengths = [(end - begin) * whole / drawn for _, _, (begin, end) in wanted]
        assert numbers(bars, "width") == pytest.approx(lengths, abs=0.01)
        edges = numbers(of_class(root, "line", "edge"), "x1")
        assert edges == pytest.approx([whole * step / drawn for step in range(drawn)], abs=0.01)


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize(("steps", "each_ms"), LENGTHS)
def test_the_words_and_the_axis_tell_the_time_that_is_drawn(steps, each_ms, language):
    root = ElementTree.fromstring(as_svg(timeline_of(steps, each_ms), "a run", language))
    drawn_ms = min(steps, STEPS) * each_ms
    told = [FIRST, FIRST + steps - 1, each_ms, drawn_ms]
    if steps <= STEPS:  # all is drawn, which needs no words
        del told[3]
    if steps == 1:
        del told[1]
    said = list(root.iter(f"{SVG}text"))[1].text
    assert [float(each) for each in re.findall(r"\d+(?:\.\d+)?", said)] == pytest.approx(told)
    ticks = numbers(of_class(root, "line", "tick"), "x1")
    times = [float(each.text.split()[0]) for each in of_class(root, "text", "quiet middle")]
    whole = max(float(row.get("width")) for row in of_class(root, "rect", "row"))
    assert ticks == pytest.approx([time * whole / drawn_ms for time in times], abs=0.01)
    pitch = times[1]
    assert times == pytest.approx([pitch * number for number in range(len(times))])
    assert 4 <= drawn_ms / pitch <= 10 + 1e-9
    assert times[-1] <= drawn_ms * (1 + 1e-9) < times[-1] + pitch
    assert f"{pitch:.0e}"[0] in "125" and float(f"{pitch:.0e}") == pitch


@pytest.mark.parametrize(
    ("other", "apart", "bars"), [("forward", 0.8, 1), ("forward", 1.2, 10), ("sum", 0.8, 10)]
)
def test_operators_of_one_phase_are_one_bar_where_no_gap_could_be_seen(other, apart, bars):
    """Every second one is of the ``other`` phase; gaps are ``apart`` times the least bar."""
    gap = 1000.0 * apart * LEAST / (WIDTH - 2 * MARGIN - LABELS)
    spans = [Span("cpu(0)", "any", (50 + gap) * n, (50 + gap) * n + 50) for n in range(10)]
    timeline = Timeline(FIRST, [0.0], 1000.0, ["cpu(0)"], spans, ["forward", other] * 5, [])
    root = ElementTree.fromstring(as_svg(timeline, "a run"))
    row = next(group for group in root.iter(f"{SVG}g") if len(group.findall(f"{SVG}text")) == 1)
    assert len(row.findall(f"{SVG}rect")[1:]) == bars
