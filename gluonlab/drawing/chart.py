"""Charts as SVG: curves with intervals over linear or logarithmic axes, with regions behind them.

Colours are those of Okabe and Ito, "Color universal design", 2008, which people see apart whatever
their colour vision, lighter ones on dark paper; each curve has a mark of its own, too.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple
from xml.etree.ElementTree import Element, SubElement

from gluonlab.drawing.svg import document, finished, group, text

# All lengths are px.
WIDTH, MARGIN, LEFT, RIGHT = 760, 24, 74, 24
HEIGHT, ABOVE, BELOW, LINE = 330, 20, 58, 20
COLUMNS = 100  # of the sentences
LETTER, WIDE_LETTER = 7.3, 13.5  # of the legend, in Latin and in Japanese script

STYLE = """
text { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, "Hiragino Sans", "Yu Gothic",
  Meiryo, "Noto Sans CJK JP", sans-serif; font-size: 13px; fill: #1c2430 }
.name { font-size: 19px; font-weight: 600 } .quiet { fill: #566072 } .middle { text-anchor: middle }
.end { text-anchor: end } .paper { fill: #ffffff } .grid { stroke: #e3e7ee }
.axis { stroke: #8a94a4; fill: none } .region { font-weight: 600; text-anchor: middle }
.curve { fill: none; stroke-width: 2.2; stroke-linejoin: round } .interval { stroke-width: 1.6 }
.dashed { stroke-dasharray: 6 4; stroke-width: 1.8 }
.area0 { fill: #dff1ea } .area1 { fill: #fdf3d6 } .area2 { fill: #fbe2d5 }
.line0 { stroke: #0072b2 } .mark0 { fill: #0072b2 } .line1 { stroke: #d55e00 }
.mark1 { fill: #d55e00 } .line2 { stroke: #00805d } .mark2 { fill: #00805d }
.line3 { stroke: #a8457f } .mark3 { fill: #a8457f } .line4 { stroke: #7a5c00 }
.mark4 { fill: #7a5c00 } .line5 { stroke: #1c2430 } .mark5 { fill: #1c2430 }
.linenone { stroke: #566072 } .marknone { fill: #566072 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaf1 } .quiet { fill: #a3adbd } .paper { fill: #0d1117 } .grid { stroke: #262e3a }
  .axis { stroke: #6b7688 } .area0 { fill: #10291f } .area1 { fill: #2c2612 }
  .area2 { fill: #331c13 }
  .line0 { stroke: #56b4e9 } .mark0 { fill: #56b4e9 } .line1 { stroke: #ff9d5c }
  .mark1 { fill: #ff9d5c } .line2 { stroke: #3fd0a0 } .mark2 { fill: #3fd0a0 }
  .line3 { stroke: #ee9cc8 } .mark3 { fill: #ee9cc8 } .line4 { stroke: #f0d060 }
  .mark4 { fill: #f0d060 } .line5 { stroke: #e6eaf1 } .mark5 { fill: #e6eaf1 }
  .linenone { stroke: #a3adbd } .marknone { fill: #a3adbd }
}
"""
MARKS = (  # around (0, 0): a disc, a square, a triangle, a diamond, a triangle on its tip, a cross
    "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "m-4 -4h8v8h-8z",
    "m-5 4.2h10l-5 -9z",
    "m0 -5.6l5.6 5.6l-5.6 5.6l-5.6 -5.6z",
    "m-5 -4.2h10l-5 9z",
    "m-1.5 -5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
)
KINDS = len(MARKS)  # of curves that can be told apart

Point = Tuple[float, float]
Interval = Optional[Tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """Points (x, y), from left to right, with an interval of y at each, where it is known.

    ``kind``: its colour and mark, below KINDS; None for a quiet one without marks. Without a
    ``name`` it is not in the legend. ``points``: at least one; without ``joined`` there is no line.
    """

    name: str
    points: Sequence[Point]
    kind: Optional[int] = 0
    intervals: Sequence[Interval] = ()
    dashed: bool = False
    joined: bool = True


@dataclass(frozen=True)
class Region:
    """A part of the x axis with a name of its own; ``kind``: its colour, from 0 to 2."""

    name: str
    left: float
    right: float
    kind: int


@dataclass(frozen=True)
class Axis:
    """What it shows, with the unit. ``ticks``: where numbers stand, else at round ones.

    ``lowest`` and ``highest`` stretch it to there, at least. ``names``: what has names instead of
    numbers, at 0, 1, 2, ...
    """

    label: str
    log: bool = False
    ticks: Sequence[float] = ()
    lowest: Optional[float] = None
    highest: Optional[float] = None
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """One picture. ``notes``: sentences below it, which also describe it to those who listen."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    regions: Sequence[Region] = ()
    notes: Sequence[str] = ()


class _Scale:
    """Where values of an axis lie: ``begin`` and ``end`` px."""

    def __init__(self, axis: Axis, values: Sequence[float], begin: float, end: float) -> None:
        self.axis, self.begin, self.end = axis, begin, end
        given: Tuple[Optional[float], ...] = (axis.lowest, axis.highest)
        if axis.names:  # with room beside the first and the last
            given = (-0.5, len(axis.names) - 0.5)
        within = [*values, *axis.ticks, *(each for each in given if each is not None)]
        if axis.log:
            within = [each for each in within if each > 0]
        within = within or [1.0, 10.0]  # there is nothing to show
        self.low, self.high = min(within), max(within)
        if self.low == self.high:
            spread = abs(self.low) or 1.0
            self.low, self.high = self.low - spread / 2, self.high + spread / 2
        self.ticks = list(axis.ticks or range(len(axis.names))) or self._round_ones()
        if not axis.ticks and not axis.names:
            self.low = min(self.low, *self.ticks)
            self.high = max(self.high, *self.ticks)

    def __call__(self, value: float) -> float:
        of = math.log if self.axis.log else float
        low, high = of(self.low), of(self.high)
        value = max(value, self.low) if self.axis.log else value
        return self.begin + (self.end - self.begin) * (of(value) - low) / (high - low)

    def _round_ones(self) -> List[float]:
        return _decades(self.low, self.high) if self.axis.log else _steps(self.low, self.high)


def _decades(low: float, high: float) -> List[float]:
    """Powers of ten, with 2 and 5 times these where there are few, around what is shown."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, (last - first) // 8)
    all_ = [f * 10.0**power for power in range(first, last + 1, every) for f in factors]
    begin = max((n for n, tick in enumerate(all_) if tick <= low * 1.001), default=0)
    end = min((n for n, tick in enumerate(all_) if tick >= high / 1.001), default=len(all_) - 1)
    return all_[begin : end + 1]


def _steps(low: float, high: float) -> List[float]:
    """Multiples of 1, 2 or 5 times a power of ten, five or so of them."""
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def as_svg(chart: Chart) -> str:
    """The picture, complete in itself, with a dark form."""
    root = document(chart.title, [*chart.notes, *map(_in_words, chart.curves)], STYLE)
    text(root, MARGIN, 36, chart.title, "name")
    y = 82 + _legend(group(root, MARGIN, 62), chart.curves)
    plot = group(root, 0, y)
    xs = [x for curve in chart.curves for x, _ in curve.points]
    ys = [y for curve in chart.curves for _, y in curve.points]
    ys += [end for curve in chart.curves for each in curve.intervals if each for end in each]
    across = _Scale(chart.x, xs, LEFT, WIDTH - RIGHT)
    up = _Scale(chart.y, ys, ABOVE + HEIGHT, ABOVE)
    _regions(plot, chart.regions, across)
    _axes(plot, chart, across, up)
    for curve in [*chart.curves][::-1]:  # the first on top
        _draw(plot, curve, across, up)
    y += ABOVE + HEIGHT + BELOW + 12
    for note in chart.notes:
        for line in _wrapped(note):
            text(root, MARGIN, y, line, "quiet")
            y += LINE
        y += 4
    return finished(root, WIDTH, y + 4)


def number(value: float) -> str:
    """``1,024``, ``0.25``, ``1e-05``: short, for a tick or a sentence."""
    if value == round(value) and abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _in_words(curve: Curve) -> str:
    """Its values, for those who do not see them."""
    if not curve.name:
        return ""
    return f"{curve.name}: {', '.join(f'{number(x)}: {number(y)}' for x, y in curve.points)}."


def _is_wide(words: str) -> bool:
    return any(ord(letter) > 0x2E80 for letter in words)


def _width(words: str) -> float:
    return sum(WIDE_LETTER if ord(letter) > 0x2E80 else LETTER for letter in words)


def _wrapped(words: str) -> List[str]:
    """Lines as long as the picture is wide; Japanese has no spaces to break at."""
    if not _is_wide(words):
        return textwrap.wrap(words, COLUMNS)
    lines, line = [], ""
    for letter in words:
        if _width(line + letter) > WIDTH - 2 * MARGIN and letter not in "、。)」":
            lines.append(line)
            line = ""
        line += letter
    return [*lines, line]


def _legend(parent: Element, curves: Sequence[Curve]) -> float:
    """A sample of each curve and its name, in rows; the height of all but the first."""
    x = y = 0.0
    for curve in filter(lambda each: each.name, curves):
        wide = _width(curve.name)
        if x and x + 38 + wide > WIDTH - 2 * MARGIN:
            x, y = 0.0, y + LINE
        if curve.joined:
            _line(parent, [(x, y), (x + 28, y)], curve)
        _mark(parent, curve.kind, x + 14, y)
        text(parent, x + 36, y + 4.5, curve.name)
        x += 60 + wide
    return y


def _regions(parent: Element, regions: Sequence[Region], across: _Scale) -> None:
    for each in regions:
        left, right = across(each.left), across(each.right)
        size = {"x": f"{left:.1f}", "width": f"{right - left:.1f}", "height": f"{HEIGHT + ABOVE}"}
        SubElement(parent, "rect", {"class": f"area{each.kind}", **size})
        text(parent, (left + right) / 2, 16, each.name, "region")


def _axes(parent: Element, chart: Chart, across: _Scale, up: _Scale) -> None:
    left, right, foot = LEFT, WIDTH - RIGHT, ABOVE + HEIGHT
    for tick in up.ticks:
        y = up(tick)
        ends = {"x1": f"{left}", "x2": f"{right}", "y1": f"{y:.1f}", "y2": f"{y:.1f}"}
        SubElement(parent, "line", {"class": "grid", **ends})
        text(parent, left - 8, y + 4.5, number(tick), "quiet end")
    for tick in across.ticks:
        x = across(tick)
        ends = {"x1": f"{x:.1f}", "x2": f"{x:.1f}", "y1": f"{foot}", "y2": f"{foot + 5}"}
        SubElement(parent, "line", {"class": "axis", **ends})
        shown = chart.x.names[int(tick)] if chart.x.names else number(tick)
        text(parent, x, foot + 20, shown, "quiet middle")
    SubElement(parent, "path", {"class": "axis", "d": f"M{left} {foot}H{right}"})
    text(parent, (left + right) / 2, foot + 44, chart.x.label, "middle")
    turned = SubElement(parent, "g", transform=f"translate(18 {ABOVE + HEIGHT / 2}) rotate(-90)")
    text(turned, 0, 0, chart.y.label, "middle")


def _draw(parent: Element, curve: Curve, across: _Scale, up: _Scale) -> None:
    places = [(across(x), up(y)) for x, y in curve.points]
    for (x, _), interval in zip(places, curve.intervals):
        if interval is not None:
            low, high = (f"{up(end):.1f}" for end in interval)
            way = f"M{x:.1f} {low}V{high}M{x - 4:.1f} {low}h8M{x - 4:.1f} {high}h8"
            SubElement(parent, "path", {"class": f"interval {_colour(curve)}", "d": way})
    if curve.joined:
        _line(parent, places, curve)
    for x, y in places:
        _mark(parent, curve.kind, x, y)


def _colour(curve: Curve) -> str:
    return "linenone" if curve.kind is None else f"line{curve.kind}"


def _line(parent: Element, places: Sequence[Point], curve: Curve) -> None:
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    kinds = " ".join(["curve", _colour(curve), *["dashed"] * curve.dashed])
    SubElement(parent, "path", {"class": kinds, "d": f"M{way}"})


def _mark(parent: Element, kind: Optional[int], x: float, y: float) -> None:
    if kind is not None:
        way = f"M{x:.1f} {y:.1f}{MARKS[kind]}"
        SubElement(parent, "path", {"class": f"mark{kind}", "d": way})
