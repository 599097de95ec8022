"""Charts as SVG: curves with intervals over linear or logarithmic axes, with regions behind them.

Colours are those of Okabe and Ito, "Color universal design", 2008, which people see apart whatever
their colour vision, lighter ones on dark paper; each curve has a mark of its own, too.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

from gluonlab.drawing.matplotlib_figures import as_svg as figure_as_svg
from gluonlab.drawing.matplotlib_figures import as_written, import_matplotlib, new_figure

# All lengths are px.
WIDTH, MARGIN, LEFT, RIGHT = 760, 24, 74, 24
HEIGHT, ABOVE, BELOW, LINE = 330, 20, 58, 20
TITLE, SIZE = 19, 13  # of letters
COLUMNS = 100  # of the sentences
LETTER, WIDE_LETTER = 7.3, 13.5  # widths, in Latin and in Japanese script

INK, QUIET, PAPER, GRID, AXIS = "#1c2430", "#566072", "#ffffff", "#e3e7ee", "#8a94a4"
COLOURS = ("#0072b2", "#d55e00", "#00805d", "#a8457f", "#7a5c00", INK)
AREAS = ("#dff1ea", "#fdf3d6", "#fbe2d5")
DARK = {
    INK: "#e6eaf1", QUIET: "#a3adbd", PAPER: "#0d1117", GRID: "#262e3a", AXIS: "#6b7688",
    **dict(zip(COLOURS, ("#56b4e9", "#ff9d5c", "#3fd0a0", "#ee9cc8", "#f0d060", "#e6eaf1"))),
    **dict(zip(AREAS, ("#10291f", "#2c2612", "#331c13"))),
}  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P")
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


def as_svg(chart: Chart) -> str:
    """The picture, complete in itself, with a dark form."""
    import_matplotlib()
    from matplotlib.lines import Line2D

    notes = [line for note in chart.notes for line in [*_wrapped(note), ""]]
    named = [curve for curve in chart.curves if curve.name]
    wide = max((_width(curve.name) for curve in named), default=0.0)
    columns = max(1, int((WIDTH - 2 * MARGIN) // (60 + wide)))
    top = 64 + LINE * math.ceil(len(named) / columns)  # above the plot
    height = top + ABOVE + HEIGHT + BELOW + LINE * sum(map(bool, notes)) + 6 * notes.count("") + 8
    figure = new_figure(WIDTH / 72, height / 72)
    figure.text(MARGIN / WIDTH, 1 - 36 / height, as_written(chart.title), size=TITLE,
                weight=600, color=INK)  # fmt: skip
    if named:
        look = [Line2D([], [], **_look(curve)) for curve in named]
        # matplotlib takes wide letters to be narrower than they are
        more = max(sum(ord(each) > 0x2E80 for each in curve.name) for curve in named)
        figure.legend(
            look, [as_written(curve.name) for curve in named], loc="upper left", ncol=columns,
            bbox_to_anchor=((MARGIN - 5) / WIDTH, 1 - 50 / height), frameon=False, fontsize=SIZE,
            labelcolor=INK, columnspacing=2 + 0.45 * more, handlelength=2.2, borderpad=0,
            borderaxespad=0, labelspacing=0.4,
        )  # fmt: skip
    axes: Any = figure.add_axes((
        LEFT / WIDTH, 1 - (top + ABOVE + HEIGHT) / height,
        (WIDTH - LEFT - RIGHT) / WIDTH, (ABOVE + HEIGHT) / height,
    ))  # fmt: skip
    _axes(axes, chart)
    for region in chart.regions:
        _region(axes, region)
    for place, curve in [*enumerate(chart.curves)][::-1]:  # the first on top
        _draw(axes, curve, f"curve-{place}")
    y = top + ABOVE + HEIGHT + BELOW + 12
    for line in notes:
        figure.text(MARGIN / WIDTH, 1 - y / height, as_written(line), size=SIZE, color=QUIET)
        y += LINE if line else 6
    description = " ".join([*chart.notes, *map(_in_words, chart.curves)])
    return figure_as_svg(figure, chart.title, description, DARK)


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


def _width(words: str) -> float:
    return sum(WIDE_LETTER if ord(letter) > 0x2E80 else LETTER for letter in words)


def _wrapped(words: str) -> List[str]:
    """Lines as long as the picture is wide; Japanese has no spaces to break at."""
    if all(ord(letter) <= 0x2E80 for letter in words):
        return textwrap.wrap(words, COLUMNS)
    lines, line = [], ""
    for letter in words:
        if _width(line + letter) > WIDTH - 2 * MARGIN and letter not in "、。)」":
            lines.append(line)
            line = ""
        line += letter
    return [*lines, line]


def _axes(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    values: Tuple[List[float], List[float]] = ([], [])
    for curve in chart.curves:
        values[0].extend(x for x, _ in curve.points)
        values[1].extend(y for _, y in curve.points)
        values[1].extend(end for interval in curve.intervals if interval for end in interval)
    for name, own, shown in (("x", chart.x, values[0]), ("y", chart.y, values[1])):
        low, high, ticks = _scale(own, shown)
        axes.set(**{f"{name}scale": "log" if own.log else "linear", f"{name}lim": (low, high)})
        line = getattr(axes, f"{name}axis")
        line.set_major_locator(FixedLocator(ticks))
        line.set_minor_locator(NullLocator())
        names = own.names
        line.set_major_formatter(
            FuncFormatter(
                lambda value, _, names=names: names[int(value)] if names else number(value)
            )
        )
    axes.set_xlabel(as_written(chart.x.label), size=SIZE, color=INK, labelpad=8)
    axes.set_ylabel(as_written(chart.y.label), size=SIZE, color=INK, rotation_mode="anchor")
    axes.yaxis.set_label_coords(-(LEFT - 18) / (WIDTH - LEFT - RIGHT), 0.5)
    axes.tick_params(labelsize=SIZE, labelcolor=QUIET, color=AXIS)
    axes.tick_params(axis="y", length=0, pad=8)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(AXIS)


def _scale(axis: Axis, values: Sequence[float]) -> Tuple[float, float, List[float]]:
    """Where an axis begins and ends, and its ticks: round ones, unless they are given."""
    if axis.names:  # with room beside the first and the last
        return -0.5, len(axis.names) - 0.5, list(range(len(axis.names)))
    within = [*values, *axis.ticks]
    within += [each for each in (axis.lowest, axis.highest) if each is not None]
    if axis.log:
        within = [each for each in within if each > 0]
    within = within or [1.0, 10.0]  # there is nothing to show
    low, high = min(within), max(within)
    if low == high:
        spread = abs(low) or 1.0
        low, high = low - spread / 2, high + spread / 2
    if axis.ticks:
        return low, high, list(axis.ticks)
    ticks = _decades(low, high) if axis.log else _steps(low, high)
    return min(low, *ticks), max(high, *ticks), ticks


def _region(axes: Any, region: Region) -> None:
    axes.axvspan(region.left, region.right, color=AREAS[region.kind], lw=0, zorder=0)
    left, right = axes.transData.transform([(region.left, 1), (region.right, 1)])[:, 0]
    middle = axes.transData.inverted().transform([((left + right) / 2, 0)])[0, 0]
    narrow = 1.1 * _width(region.name) > (right - left) * 72 / axes.figure.dpi
    axes.text(
        middle, 0.985, region.name, transform=axes.get_xaxis_transform(), size=SIZE, color=INK,
        weight=600, ha="center", va="top", rotation=90 if narrow else 0,
    )  # fmt: skip


def _draw(axes: Any, curve: Curve, name: str) -> None:
    lowest = axes.get_xlim()[0], axes.get_ylim()[0]  # nothing is left of a logarithm's axis
    xs, ys = ([max(each, low) for each in of] for of, low in zip(zip(*curve.points), lowest))
    found = [(x, ends) for x, ends in zip(xs, curve.intervals) if ends is not None]
    if found:
        at, colour = [x for x, _ in found], _look(curve)["color"]
        lows, highs = ([ends[place] for _, ends in found] for place in (0, 1))
        axes.vlines(at, lows, highs, color=colour, lw=1.6, gid=f"{name}-intervals")
        axes.plot(at * 2, lows + highs, ls="", marker="_", ms=8, color=colour)
    axes.plot(xs, ys, clip_on=False, gid=name, **_look(curve))


def _look(curve: Curve) -> "dict[str, Any]":
    quiet = curve.kind is None
    return {
        "color": QUIET if curve.kind is None else COLOURS[curve.kind],
        "marker": "" if curve.kind is None else MARKS[curve.kind], "ms": 8,
        "mew": 0, "ls": "" if not curve.joined else (0, (3.3, 2.2)) if curve.dashed else "-",
        "lw": 1.8 if curve.dashed or quiet else 2.2,
    }  # fmt: skip


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
