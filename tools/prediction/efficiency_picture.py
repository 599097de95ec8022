"""Predicted efficiency by number of hosts, as an SVG picture that includes its assumptions."""

from __future__ import annotations

import math
import textwrap
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple
from xml.etree.ElementTree import Element, SubElement

from gluonlab.drawing.svg_parts import add_group, add_text, finish_document, new_document
from prediction.efficiency import MULTI_HOST_SUMS, GpuStep, ScalingPrediction, describe_host, select_way

# All lengths are in px.
WIDTH, MARGIN, ACROSS = 960, 28, 3  # panels side by side
AXIS, VALUES = 40, 46  # left of a plot, and right of it, for the values at the end of curves
HEIGHT, ABOVE, BELOW = 230, 52, 64  # of a plot, its title, and its axis
LINE, VALUE_PITCH = 19, 15  # line height of texts, and of the values at the end of curves
COLUMNS = 124  # of the assumptions

# Colors also differ in lightness, and each algorithm has its own mark.
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

Rows = Mapping[str, Sequence[ScalingPrediction]]


class _Plot(NamedTuple):
    """The scales of a panel: ``lowest`` efficiency at the bottom, 1 at the top."""

    width: float
    most_hosts: int
    lowest: float

    def x(self, hosts: int) -> float:
        return AXIS + self.width * (hosts - 1) / max(1, self.most_hosts - 1)

    def y(self, efficiency: float) -> float:
        return ABOVE + HEIGHT * (1 - efficiency) / (1 - self.lowest)


def as_svg(steps: Mapping[str, GpuStep], rows: Rows, assumption_texts: Sequence[str]) -> str:
    """Return the picture of all machines, with the assumptions below the panels.

    Solid curves: the sum starts after backward. Dashed curves: it overlaps with backward.
    """
    most_hosts = max(row.hosts for predictions in rows.values() for row in predictions)
    title = f"Training on up to {most_hosts} hosts: predicted efficiency, not measured"
    root = new_document(title, [_describe_values(rows), *assumption_texts], STYLE)
    add_text(root, MARGIN, 44, title, "name")
    _draw_legend(add_group(root, MARGIN, 70))
    lowest = min(row.efficiency_after for predictions in rows.values() for row in predictions)
    pitch = (WIDTH - 2 * MARGIN) / ACROSS
    plot = _Plot(pitch - AXIS - VALUES, most_hosts, min(0.9, math.floor(lowest * 10) / 10))
    y, panel_height = 128, ABOVE + HEIGHT + BELOW
    for index, name in enumerate(rows):
        panel_row, panel_column = divmod(index, ACROSS)
        panel_group = add_group(root, MARGIN + panel_column * pitch, y + panel_row * panel_height)
        _draw_panel(panel_group, plot, name, describe_host(name, steps[name]), rows[name])
    y += math.ceil(len(rows) / ACROSS) * panel_height + 10
    for sentence in assumption_texts:
        for line in textwrap.wrap(sentence, COLUMNS):
            add_text(root, MARGIN, y, line, "quiet")
            y += LINE
        y += 5
    return finish_document(root, WIDTH, y + 4)


def _describe_values(rows: Rows) -> str:
    """Return the last values of the curves as text, for screen readers."""
    parts = []
    for name, predictions in rows.items():
        last = [select_way(predictions, way)[-1] for way in MULTI_HOST_SUMS]
        values = (f"{row.way} {row.efficiency_after:.2f}, or {row.efficiency_behind:.2f} with overlap" for row in last)
        hosts = last[0].hosts
        parts.append(f"{name}, {hosts} host{'s' * (hosts > 1)}: {', '.join(values)}.")
    return " ".join(parts)


def _draw_legend(parent: Element) -> None:
    x = 0
    for number, way in enumerate(MULTI_HOST_SUMS):
        _draw_curve(parent, [(x, 0), (x + 28, 0)], f"line{number}")
        _draw_mark(parent, number, x + 14, 0)
        add_text(parent, x + 36, 4.5, way)
        x += 62 + 7 * len(way)
    x = 0
    for words, kind in (
        ("the allreduce starts after backward", "sample"),
        ("the allreduce overlaps with all of backward", "sample behind"),
    ):
        _draw_curve(parent, [(x, 26), (x + 28, 26)], kind)
        add_text(parent, x + 36, 30.5, words)
        x += 62 + 7 * len(words)


def _draw_panel(parent: Element, plot: _Plot, name: str, description: str, rows: Sequence[ScalingPrediction]) -> None:
    add_text(parent, AXIS, 14, name, "panel")
    add_text(parent, AXIS, 34, description, "quiet")
    _draw_axes(parent, plot)
    _draw_dashed_curves(parent, plot, rows)
    ends: Dict[int, float] = {}
    for number, way in reversed(list(enumerate(MULTI_HOST_SUMS))):  # the best one last, on top
        points = [(plot.x(row.hosts), plot.y(row.efficiency_after)) for row in select_way(rows, way)]
        _draw_curve(parent, points, f"line{number}")
        for x, y in points:
            _draw_mark(parent, number, x, y)
        ends[number] = select_way(rows, way)[-1].efficiency_after
    by_efficiency = sorted(ends, key=lambda number: -ends[number])
    ys = _spread_labels([plot.y(ends[number]) for number in by_efficiency])
    for number, y in zip(by_efficiency, ys):
        words = f"{ends[number]:.2f}"
        add_text(parent, AXIS + plot.width + 9, y + 4.5, words, f"value value{number}")


def _draw_dashed_curves(parent: Element, plot: _Plot, rows: Sequence[ScalingPrediction]) -> None:
    """Draw the dashed curves; if all are equal, a single one in a neutral color."""
    curves = [
        [(plot.x(row.hosts), plot.y(row.efficiency_behind)) for row in select_way(rows, way)] for way in MULTI_HOST_SUMS
    ]
    if all(curve == curves[0] for curve in curves):
        _draw_curve(parent, curves[0], "sample behind")
        return
    for number, curve in reversed(list(enumerate(curves))):
        _draw_curve(parent, curve, f"behind line{number}")


def _draw_axes(parent: Element, plot: _Plot) -> None:
    tenths = range(round(plot.lowest * 10), 11)
    for tenth in tenths[:: 2 if len(tenths) > 6 else 1]:
        y = plot.y(tenth / 10)
        ends = {"x1": f"{AXIS}", "x2": f"{AXIS + plot.width:g}", "y1": f"{y:g}", "y2": f"{y:g}"}
        SubElement(parent, "line", {"class": "grid", **ends})
        add_text(parent, AXIS - 8, y + 4.5, f"{tenth / 10:.1f}", "quiet end")
    step = 1 if plot.most_hosts <= 8 else 3
    for hosts in range(1, plot.most_hosts + 1, step):
        add_text(parent, plot.x(hosts), ABOVE + HEIGHT + 20, f"{hosts}", "quiet middle")
    add_text(parent, AXIS + plot.width / 2, ABOVE + HEIGHT + 40, "hosts", "quiet middle")


def _spread_labels(ys: Sequence[float]) -> List[float]:
    """Return positions of labels, moved apart where they would touch, and all centered."""
    spread: List[float] = []
    for y in ys:
        spread.append(max(y, spread[-1] + VALUE_PITCH) if spread else y)
    largest_shift = max((new - old for new, old in zip(spread, ys)), default=0.0)
    return [y - largest_shift / 2 for y in spread]


def _draw_curve(parent: Element, points: Sequence[Tuple[float, float]], kind: str) -> None:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    SubElement(parent, "path", {"class": f"curve {kind}", "d": f"M{path}"})


def _draw_mark(parent: Element, number: int, x: float, y: float) -> None:
    path = f"M{x:.1f} {y:.1f}{MARKS[number]}"
    SubElement(parent, "path", {"class": f"mark{number}", "d": path})
