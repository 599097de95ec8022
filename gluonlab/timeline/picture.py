"""A timeline as one SVG picture: a row for each device and one for the host, by phase."""

from __future__ import annotations

import textwrap
from typing import List, Sequence, Tuple
from xml.etree.ElementTree import Element, SubElement

from gluonlab.drawing.svg import document, finished, group, text
from gluonlab.drawing.words import in_language
from gluonlab.timeline.intervals import Interval
from gluonlab.timeline.phases import PHASES
from gluonlab.timeline.recorder import HOST, INPUT
from gluonlab.timeline.shares import WAITING, Timeline
from gluonlab.timeline.trace import phases_of
from gluonlab.timeline.words import WORDS, Words

# All lengths are px.
WIDTH, MARGIN, LABELS = 960, 28, 74
ROW, APART = 30, 8
STEPS = 4  # as long as so many takes is drawn; more would be too narrow to see
LEAST = 0.25  # of a bar that is drawn; what is shorter would only make the file large

# The colours differ in lightness, too; nobody has to tell red from green.
STYLE = """
text { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 13px;
  fill: #1c2430 }
.name { font-size: 22px; font-weight: 600 } .quiet { fill: #566072 } .middle { text-anchor: middle }
.end { text-anchor: end } .paper { fill: #ffffff } .row { fill: #eef1f5 }
.edge { stroke: #566072; stroke-dasharray: 3 3 } .tick { stroke: #9aa4b2 }
.other { fill: #8b95a5 } .forward { fill: #2c66c9 } .backward { fill: #8fb8f6 }
.sum { fill: #c2410c } .copy { fill: #f0a878 } .update { fill: #6b3fa0 } .stages { fill: #5b8fe0 }
.input { fill: #2f7d5b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaf1 } .quiet { fill: #a3adbd } .paper { fill: #0d1117 } .row { fill: #1b222d }
  .edge { stroke: #a3adbd } .tick { stroke: #566072 }
  .other { fill: #7d8796 } .forward { fill: #4f8ef0 } .backward { fill: #b6d3ff }
  .sum { fill: #ff8a4c } .copy { fill: #ffd0b0 } .update { fill: #cba6f7 } .stages { fill: #8ab4f8 }
  .input { fill: #7fd0ab }
}
"""


def as_svg(timeline: Timeline, title: str, language: str = "en") -> str:
    """The first milliseconds; shares and the overlap, printed below, are of all that was recorded.

    The picture is complete in itself, and has a dark form. Raises ConfigError for a ``language``
    that it does not speak.
    """
    words = in_language(WORDS, language)
    begin, count, first = timeline.begin, len(timeline.starts), timeline.first_step
    end = begin + (timeline.end - begin) * min(1, STEPS / count)
    sentences = in_words(timeline, language)
    root = document(title, sentences, STYLE)
    text(root, MARGIN, 44, title, "name")
    which = words.steps[count > 1].format(
        first=first, last=first + count - 1, each=timeline.step_s * 1e3
    )
    part = words.drawn.format(drawn=(end - begin) / 1e3) if count > STEPS else ""
    text(root, MARGIN, 68, f"{which}{part}{words.host_only}", "quiet")
    _legend(group(root, MARGIN, 94), words)
    at = group(root, MARGIN + LABELS, 118)
    width = WIDTH - 2 * MARGIN - LABELS
    scale = width / (end - begin)
    rows = [*timeline.rows, HOST]
    for number, row in enumerate(rows):
        own = group(at, 0, number * (ROW + APART))
        text(own, -10, ROW / 2 + 4.5, words.host if row == HOST else row, "end")
        SubElement(own, "rect", {"class": "row", "width": f"{width:g}", "height": f"{ROW}"})
        _bars(own, timeline, row, (begin, end), scale)
    height = len(rows) * (ROW + APART)
    for start in timeline.starts:
        if start < end:
            _line(at, (start - begin) * scale, height - ROW - APART, height, "edge")
    _axis(group(at, 0, height), (end - begin) / 1e3, width)
    y = 118 + height + 56
    for sentence in sentences:
        for line in textwrap.wrap(sentence, words.columns):
            text(root, MARGIN, y, line, "quiet")
            y += 19
    return finished(root, WIDTH, y + 4)


def in_words(timeline: Timeline, language: str = "en") -> List[str]:
    """What each device did, and how much of the sums lies beside backward: a sentence each."""
    words = in_language(WORDS, language)
    lines = []
    for row in timeline.rows:
        shares = timeline.shares(row)
        told = words.comma.join(
            f"{words.names[name]} {share:.0%}" for name, share in shares.items() if share >= 0.005
        )
        lines.append(f"{row}{words.colon}{told}")
    overlap = timeline.overlap()
    if overlap is not None:
        lines.append(words.beside.format(overlap=overlap))
    return lines


def _legend(parent: Element, words: Words) -> None:
    x = 0.0
    for name in (*PHASES, INPUT, WAITING):
        SubElement(parent, "rect", {"class": name if name != WAITING else "row", "x": f"{x:g}",
                                    "y": "-10", "width": "14", "height": "14"})  # fmt: skip
        text(parent, x + 20, 2, words.names[name])
        x += 52 + words.letter * len(words.names[name])


def _bars(parent: Element, timeline: Timeline, row: str, drawn: Interval, scale: float) -> None:
    begin, end = drawn
    for phase, (since, until) in _joined(phases_of(timeline, row), LEAST / scale):
        since, until = max(since, begin), min(until, end)
        if since < until:
            x, width = (since - begin) * scale, (until - since) * scale
            bar = {"class": phase, "x": f"{x:.2f}", "width": f"{width:.2f}", "height": f"{ROW}"}
            SubElement(parent, "rect", bar)


def _joined(bars: Sequence[Tuple[str, Interval]], gap: float) -> List[Tuple[str, Interval]]:
    """Neighbours of one phase with less than ``gap`` between them as one."""
    found: List[Tuple[str, Interval]] = []
    for phase, (begin, end) in bars:
        if found and found[-1][0] == phase and begin - found[-1][1][1] < gap:
            found[-1] = (phase, (found[-1][1][0], max(end, found[-1][1][1])))
        else:
            found.append((phase, (begin, end)))
    return found


def _axis(parent: Element, milliseconds: float, width: float) -> None:
    pitch = _pitch(milliseconds)
    for number in range(int(milliseconds / pitch) + 1):
        x = number * pitch / milliseconds * width
        _line(parent, x, 0, 6, "tick")
        unit = " ms" if number == 0 else ""
        text(parent, x, 20, f"{number * pitch:g}{unit}", "quiet middle")


def _pitch(milliseconds: float) -> float:
    """1, 2 or 5 times a power of ten, such that there are 4 to 10 of them."""
    pitch = 10.0**-6
    for factor in (2, 2.5, 2) * 20:
        if milliseconds / pitch <= 10:
            break
        pitch *= factor
    return float(f"{pitch:.3g}")


def _line(parent: Element, x: float, top: float, bottom: float, kind: str) -> None:
    ends = {"x1": f"{x:.2f}", "x2": f"{x:.2f}", "y1": f"{top:g}", "y2": f"{bottom:g}"}
    SubElement(parent, "line", {"class": kind, **ends})
