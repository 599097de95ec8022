"""Predicted efficiency against hosts, as one SVG picture with its assumptions printed on it."""

from __future__ import annotations

import math
import textwrap
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple
from xml.etree.ElementTree import Element, SubElement

from gluonlab.drawing.svg_parts import document, finished, group, text
from prediction.efficiency import MULTI_HOST_SUMS, Prediction, Step, host_in_words, of_way

# All lengths are px.
WIDTH, MARGIN, ACROSS = 960, 28, 3  # panels side by side
AXIS, BESIDE = 40, 46  # left of a plot, and right of it, for the values at its end
HEIGHT, ABOVE, BELOW = 230, 52, 64  # of a plot, its title, and its axis
LINE, APART = 19, 15  # of texts, and of values at the end of curves
COLUMNS = 124  # of the sentences

# Colours differ in lightness, too, and each way has a mark of its own.
STYLE = """
text { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 13px;
  fill: #1c2430 }
.name { font-size: 22px; font-weight: 600 } .panel { font-size: 15px; font-weight: 600 }
.quiet { fill: #566072 } .middle { text-anchor: middle } .end { text-anchor: end }
.paper { fill: #ffffff } .grid { stroke: #dfe3ea; stroke-width: 1 }
.curve { fill: none; stroke-width: 2.2; stroke-linejoin: round }
.behind { stroke-dasharray: 6 4; stroke-width: 1.6 } .sample { stroke: #566072 }
.line0 { stroke: #2c66c9 } .line1 { stroke: #c2410c } .line2 { stroke: #6b3fa0 }
.mark0, .value0 { fill: #2c66c9 } .mark1, .value1 { fill: #c2410c }
.mark2, .value2 { fill: #6b3fa0 } .value { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaf1 } .quiet { fill: #a3adbd } .paper { fill: #0d1117 }
  .grid { stroke: #2b3340 } .sample { stroke: #a3adbd }
  .line0 { stroke: #79aefc } .line1 { stroke: #ff9d66 } .line2 { stroke: #cba6f7 }
  .mark0, .value0 { fill: #79aefc } .mark1, .value1 { fill: #ff9d66 }
  .mark2, .value2 { fill: #cba6f7 }
}
"""
MARKS = (  # around (0, 0): a disc, a triangle, a square
    "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "m-5 4.2h10l-5 -9z",
    "m-4.2 -4.2h8.4v8.4h-8.4z",
)

Rows = Mapping[str, Sequence[Prediction]]


class _Plot(NamedTuple):
    """Where values are in a panel: ``lowest`` efficiency at its foot, 1 at its top."""

    width: float
    most_hosts: int
    lowest: float

    def x(self, hosts: int) -> float:
        return AXIS + self.width * (hosts - 1) / max(1, self.most_hosts - 1)

    def y(self, efficiency: float) -> float:
        return ABOVE + HEIGHT * (1 - efficiency) / (1 - self.lowest)


def as_svg(steps: Mapping[str, Step], rows: Rows, assumed: Sequence[str]) -> str:
    """The picture of all machines; ``assumed``: sentences that are printed below the panels.

    Solid: the sum begins after backward. Dashed: it hides behind backward.
    """
    most_hosts = max(row.hosts for of in rows.values() for row in of)
    title = f"Training on up to {most_hosts} hosts: predicted efficiency, not measured"
    root = document(title, [_in_words(rows), *assumed], STYLE)
    text(root, MARGIN, 44, title, "name")
    _legend(group(root, MARGIN, 70))
    lowest = min(row.alone for of in rows.values() for row in of)
    pitch = (WIDTH - 2 * MARGIN) / ACROSS
    plot = _Plot(pitch - AXIS - BESIDE, most_hosts, min(0.9, math.floor(lowest * 10) / 10))
    y, panel = 128, ABOVE + HEIGHT + BELOW
    for place, name in enumerate(rows):
        below, beside = divmod(place, ACROSS)
        at = group(root, MARGIN + beside * pitch, y + below * panel)
        _panel(at, plot, name, host_in_words(name, steps[name]), rows[name])
    y += math.ceil(len(rows) / ACROSS) * panel + 10
    for sentence in assumed:
        for line in textwrap.wrap(sentence, COLUMNS):
            text(root, MARGIN, y, line, "quiet")
            y += LINE
        y += 5
    return finished(root, WIDTH, y + 4)


def _in_words(rows: Rows) -> str:
    """The curves' last values, for those who do not see them."""
    parts = []
    for name, of in rows.items():
        last = [of_way(of, way)[-1] for way in MULTI_HOST_SUMS]
        values = (f"{row.way} {row.alone:.2f}, or {row.hidden:.2f} hidden" for row in last)
        hosts = last[0].hosts
        parts.append(f"{name}, {hosts} host{'s' * (hosts > 1)}: {', '.join(values)}.")
    return " ".join(parts)


def _legend(parent: Element) -> None:
    x = 0
    for number, way in enumerate(MULTI_HOST_SUMS):
        _curve(parent, [(x, 0), (x + 28, 0)], f"line{number}")
        _mark(parent, number, x + 14, 0)
        text(parent, x + 36, 4.5, way)
        x += 62 + 7 * len(way)
    x = 0
    for words, kind in (
        ("the sum of gradients begins after backward", "sample"),
        ("it hides behind all of backward", "sample behind"),
    ):
        _curve(parent, [(x, 26), (x + 28, 26)], kind)
        text(parent, x + 36, 30.5, words)
        x += 62 + 7 * len(words)


def _panel(
    parent: Element, plot: _Plot, name: str, described: str, rows: Sequence[Prediction]
) -> None:
    text(parent, AXIS, 14, name, "panel")
    text(parent, AXIS, 34, described, "quiet")
    _axes(parent, plot)
    _hidden(parent, plot, rows)
    ends: Dict[int, float] = {}
    for number, way in reversed(
        list(enumerate(MULTI_HOST_SUMS))
    ):  # what is best comes last, on top
        points = [(plot.x(row.hosts), plot.y(row.alone)) for row in of_way(rows, way)]
        _curve(parent, points, f"line{number}")
        for x, y in points:
            _mark(parent, number, x, y)
        ends[number] = of_way(rows, way)[-1].alone
    wanted = sorted(ends, key=lambda number: -ends[number])
    places = _spread([plot.y(ends[number]) for number in wanted])
    for number, y in zip(wanted, places):
        words = f"{ends[number]:.2f}"
        text(parent, AXIS + plot.width + 9, y + 4.5, words, f"value value{number}")


def _hidden(parent: Element, plot: _Plot, rows: Sequence[Prediction]) -> None:
    """The dashed curves: one for all ways, in no way's colour, where they are the same."""
    curves = [
        [(plot.x(r.hosts), plot.y(r.hidden)) for r in of_way(rows, way)] for way in MULTI_HOST_SUMS
    ]
    if all(curve == curves[0] for curve in curves):
        _curve(parent, curves[0], "sample behind")
        return
    for number, curve in reversed(list(enumerate(curves))):
        _curve(parent, curve, f"behind line{number}")


def _axes(parent: Element, plot: _Plot) -> None:
    tenths = range(round(plot.lowest * 10), 11)
    for tenth in tenths[:: 2 if len(tenths) > 6 else 1]:
        y = plot.y(tenth / 10)
        across = {"x1": f"{AXIS}", "x2": f"{AXIS + plot.width:g}", "y1": f"{y:g}", "y2": f"{y:g}"}
        SubElement(parent, "line", {"class": "grid", **across})
        text(parent, AXIS - 8, y + 4.5, f"{tenth / 10:.1f}", "quiet end")
    step = 1 if plot.most_hosts <= 8 else 3
    for hosts in range(1, plot.most_hosts + 1, step):
        text(parent, plot.x(hosts), ABOVE + HEIGHT + 20, f"{hosts}", "quiet middle")
    text(parent, AXIS + plot.width / 2, ABOVE + HEIGHT + 40, "hosts", "quiet middle")


def _spread(places: Sequence[float]) -> List[float]:
    """Places from top to bottom, moved down where they would touch, and all of them up by half."""
    apart: List[float] = []
    for place in places:
        apart.append(max(place, apart[-1] + APART) if apart else place)
    moved = max((new - old for new, old in zip(apart, places)), default=0.0)
    return [place - moved / 2 for place in apart]


def _curve(parent: Element, points: Sequence[Tuple[float, float]], kind: str) -> None:
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    SubElement(parent, "path", {"class": f"curve {kind}", "d": f"M{way}"})


def _mark(parent: Element, number: int, x: float, y: float) -> None:
    way = f"M{x:.1f} {y:.1f}{MARKS[number]}"
    SubElement(parent, "path", {"class": f"mark{number}", "d": way})
