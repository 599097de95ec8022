"""SVG charts: curves with error intervals, linear or logarithmic axes, and shaded regions.

People with any color vision can distinguish the colors (Okabe and Ito, "Color universal design",
2008). The colors are lighter on dark pages. Each curve also has its own marker.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

from gluonlab.drawing.matplotlib_figures import as_svg as figure_as_svg
from gluonlab.drawing.matplotlib_figures import escape_dollars, import_matplotlib, new_figure

# All lengths are in px. ABOVE and BELOW: space above and below the plot. LINE: height of a line.
WIDTH, MARGIN, LEFT, RIGHT = 760, 24, 74, 24
HEIGHT, ABOVE, BELOW, LINE = 330, 20, 58, 20
TITLE, SIZE = 19, 13  # font sizes
COLUMNS = 100  # line length of the notes
LETTER, WIDE_LETTER = 7.3, 13.5  # widths of Latin and of Japanese letters

INK, QUIET, PAPER, GRID, AXIS = "#1c2430", "#566072", "#ffffff", "#e3e7ee", "#8a94a4"
COLORS = ("#0072b2", "#d55e00", "#00805d", "#a8457f", "#7a5c00", INK)
AREAS = ("#dff1ea", "#fdf3d6", "#fbe2d5")
DARK = {
    INK: "#e6eaf1", QUIET: "#a3adbd", PAPER: "#0d1117", GRID: "#262e3a", AXIS: "#6b7688",
    **dict(zip(COLORS, ("#56b4e9", "#ff9d5c", "#3fd0a0", "#ee9cc8", "#f0d060", "#e6eaf1"))),
    **dict(zip(AREAS, ("#10291f", "#2c2612", "#331c13"))),
}  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P")
CURVE_KINDS = len(MARKS)  # number of curves that can be distinguished

Point = Tuple[float, float]
Interval = Optional[Tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """Points (x, y) from left to right.

    Attributes:
        name: Name in the legend; "" for none.
        points: One or more points.
        kind: Index of the color and marker, below CURVE_KINDS; None for a gray curve without
            markers.
        intervals: Error interval (low, high) of y at each point, or None if unknown.
        dashed: Whether the line is dashed.
        joined: Whether a line joins the points.
    """

    name: str
    points: Sequence[Point]
    kind: Optional[int] = 0
    intervals: Sequence[Interval] = ()
    dashed: bool = False
    joined: bool = True


@dataclass(frozen=True)
class Region:
    """A named interval of the x axis, with a shaded background; ``kind``: index of its color."""

    name: str
    left: float
    right: float
    kind: int


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Attributes:
        label: Quantity and unit.
        log: Whether the axis is logarithmic.
        ticks: Values at which the axis has a number; by default round numbers.
        lowest: The axis starts at this value or lower.
        highest: The axis ends at this value or higher.
        names: Texts at 0, 1, 2, ... instead of numbers.
    """

    label: str
    log: bool = False
    ticks: Sequence[float] = ()
    lowest: Optional[float] = None
    highest: Optional[float] = None
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A chart.

    ``notes``: sentences below the plot, which also describe the plot to screen readers.
    """

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    regions: Sequence[Region] = ()
    notes: Sequence[str] = ()


def as_svg(chart: Chart) -> str:
    """Return the chart as self-contained SVG, with a variant for dark pages."""
    import_matplotlib()
    from matplotlib.lines import Line2D

    notes = [line for note in chart.notes for line in [*_wrap_text(note), ""]]
    named_curves = [curve for curve in chart.curves if curve.name]
    widest = max((_text_width(curve.name) for curve in named_curves), default=0.0)
    columns = max(1, int((WIDTH - 2 * MARGIN) // (60 + widest)))
    top = 64 + LINE * math.ceil(len(named_curves) / columns)  # above the plot
    height = top + ABOVE + HEIGHT + BELOW + LINE * sum(map(bool, notes)) + 6 * notes.count("") + 8
    figure = new_figure(WIDTH / 72, height / 72)
    figure.text(MARGIN / WIDTH, 1 - 36 / height, escape_dollars(chart.title), size=TITLE,
                weight=600, color=INK)  # fmt: skip
    if named_curves:
        handles = [Line2D([], [], **_curve_style(curve)) for curve in named_curves]
        # matplotlib underestimates the width of wide letters
        wide_letters = max(sum(ord(each) > 0x2E80 for each in curve.name) for curve in named_curves)
        figure.legend(
            handles, [escape_dollars(curve.name) for curve in named_curves],
            loc="upper left", ncol=columns,
            bbox_to_anchor=((MARGIN - 5) / WIDTH, 1 - 50 / height), frameon=False, fontsize=SIZE,
            labelcolor=INK, columnspacing=2 + 0.45 * wide_letters, handlelength=2.2, borderpad=0,
            borderaxespad=0, labelspacing=0.4,
        )  # fmt: skip
    axes: Any = figure.add_axes((
        LEFT / WIDTH, 1 - (top + ABOVE + HEIGHT) / height,
        (WIDTH - LEFT - RIGHT) / WIDTH, (ABOVE + HEIGHT) / height,
    ))  # fmt: skip
    _draw_axes(axes, chart)
    for region in chart.regions:
        _draw_region(axes, region)
    for index, curve in [*enumerate(chart.curves)][::-1]:  # the first curve is on top
        _draw_curve(axes, curve, f"curve-{index}")
    y = top + ABOVE + HEIGHT + BELOW + 12
    for line in notes:
        figure.text(MARGIN / WIDTH, 1 - y / height, escape_dollars(line), size=SIZE, color=QUIET)
        y += LINE if line else 6
    description = " ".join([*chart.notes, *map(_describe_curve, chart.curves)])
    return figure_as_svg(figure, chart.title, description, DARK)


def format_number(value: float) -> str:
    """Format a number briefly for a tick or a sentence: "1,024", "0.25", "1e-05"."""
    if value == round(value) and abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _describe_curve(curve: Curve) -> str:
    """Return the values of a curve as text, for screen readers."""
    if not curve.name:
        return ""
    points = ", ".join(f"{format_number(x)}: {format_number(y)}" for x, y in curve.points)
    return f"{curve.name}: {points}."


def _text_width(words: str) -> float:
    """Return the approximate width of a text in px."""
    return sum(WIDE_LETTER if ord(letter) > 0x2E80 else LETTER for letter in words)


def _wrap_text(words: str) -> List[str]:
    """Wrap text to the width of the picture; Japanese has no spaces to break at."""
    if all(ord(letter) <= 0x2E80 for letter in words):
        return textwrap.wrap(words, COLUMNS)
    lines, line = [], ""
    for letter in words:
        if _text_width(line + letter) > WIDTH - 2 * MARGIN and letter not in "、。)」":
            lines.append(line)
            line = ""
        line += letter
    return [*lines, line]


def _draw_axes(axes: Any, chart: Chart) -> None:
    """Set scales, ticks, labels and grid lines, so that all points and intervals are in range."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    values: Tuple[List[float], List[float]] = ([], [])
    for curve in chart.curves:
        values[0].extend(x for x, _ in curve.points)
        values[1].extend(y for _, y in curve.points)
        values[1].extend(end for interval in curve.intervals if interval for end in interval)
    for name, spec, data in (("x", chart.x, values[0]), ("y", chart.y, values[1])):
        low, high, ticks = _axis_scale(spec, data)
        axes.set(**{f"{name}scale": "log" if spec.log else "linear", f"{name}lim": (low, high)})
        mpl_axis = getattr(axes, f"{name}axis")
        mpl_axis.set_major_locator(FixedLocator(ticks))
        mpl_axis.set_minor_locator(NullLocator())
        names = spec.names
        mpl_axis.set_major_formatter(
            FuncFormatter(lambda value, _, names=names: names[int(value)] if names else format_number(value))
        )
    axes.set_xlabel(escape_dollars(chart.x.label), size=SIZE, color=INK, labelpad=8)
    axes.set_ylabel(escape_dollars(chart.y.label), size=SIZE, color=INK, rotation_mode="anchor")
    axes.yaxis.set_label_coords(-(LEFT - 18) / (WIDTH - LEFT - RIGHT), 0.5)
    axes.tick_params(labelsize=SIZE, labelcolor=QUIET, color=AXIS)
    axes.tick_params(axis="y", length=0, pad=8)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(AXIS)


def _axis_scale(axis: Axis, values: Sequence[float]) -> Tuple[float, float, List[float]]:
    """Return start, end and ticks of an axis for data with these ``values``."""
    if axis.names:  # with a margin at both ends
        return -0.5, len(axis.names) - 0.5, list(range(len(axis.names)))
    shown = [*values, *axis.ticks]
    shown += [each for each in (axis.lowest, axis.highest) if each is not None]
    if axis.log:
        shown = [each for each in shown if each > 0]
    shown = shown or [1.0, 10.0]  # no values
    low, high = min(shown), max(shown)
    if low == high:
        spread = abs(low) or 1.0
        low, high = low - spread / 2, high + spread / 2
    if axis.ticks:
        return low, high, list(axis.ticks)
    ticks = _log_ticks(low, high) if axis.log else _linear_ticks(low, high)
    return min(low, *ticks), max(high, *ticks), ticks


def _draw_region(axes: Any, region: Region) -> None:
    """Shade a region and write its name at the top, rotated if the region is too narrow."""
    axes.axvspan(region.left, region.right, color=AREAS[region.kind], lw=0, zorder=0)
    left, right = axes.transData.transform([(region.left, 1), (region.right, 1)])[:, 0]
    middle = axes.transData.inverted().transform([((left + right) / 2, 0)])[0, 0]
    narrow = 1.1 * _text_width(region.name) > (right - left) * 72 / axes.figure.dpi
    axes.text(
        middle, 0.985, region.name, transform=axes.get_xaxis_transform(), size=SIZE, color=INK,
        weight=600, ha="center", va="top", rotation=90 if narrow else 0,
    )  # fmt: skip


def _draw_curve(axes: Any, curve: Curve, name: str) -> None:
    """Draw a curve and its intervals; ``name``: the curve's id in the SVG."""
    lowest = axes.get_xlim()[0], axes.get_ylim()[0]  # a logarithmic axis has no 0
    xs, ys = ([max(each, low) for each in coordinates] for coordinates, low in zip(zip(*curve.points), lowest))
    with_interval = [(x, ends) for x, ends in zip(xs, curve.intervals) if ends is not None]
    if with_interval:
        at, color = [x for x, _ in with_interval], _curve_style(curve)["color"]
        lows, highs = ([ends[i] for _, ends in with_interval] for i in (0, 1))
        axes.vlines(at, lows, highs, color=color, lw=1.6, gid=f"{name}-intervals")
        axes.plot(at * 2, lows + highs, ls="", marker="_", ms=8, color=color)
    axes.plot(xs, ys, clip_on=False, gid=name, **_curve_style(curve))


def _curve_style(curve: Curve) -> "dict[str, Any]":
    """Return matplotlib's arguments for the curve's color, marker and line."""
    quiet = curve.kind is None
    return {
        "color": QUIET if curve.kind is None else COLORS[curve.kind],
        "marker": "" if curve.kind is None else MARKS[curve.kind], "ms": 8,
        "mew": 0, "ls": "" if not curve.joined else (0, (3.3, 2.2)) if curve.dashed else "-",
        "lw": 1.8 if curve.dashed or quiet else 2.2,
    }  # fmt: skip


def _log_ticks(low: float, high: float) -> List[float]:
    """Return ticks that enclose the range: powers of ten, and multiples of them.

    The multiples, 2 and 5 times the powers, are only used if there are few powers.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, (last - first) // 8)
    all_ = [f * 10.0**power for power in range(first, last + 1, every) for f in factors]
    begin = max((n for n, tick in enumerate(all_) if tick <= low * 1.001), default=0)
    end = min((n for n, tick in enumerate(all_) if tick >= high / 1.001), default=len(all_) - 1)
    return all_[begin : end + 1]


def _linear_ticks(low: float, high: float) -> List[float]:
    """Return about five ticks that enclose the range, in steps of 1, 2 or 5 times 10**n."""
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]
