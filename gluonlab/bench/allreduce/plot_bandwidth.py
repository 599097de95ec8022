"""Plots measured and predicted time and bus bandwidth against size."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Sequence, Tuple

from gluonlab.bench.allreduce.candidate_schedules import HIERARCHICAL
from gluonlab.collectives.algorithms import ACROSS_HOSTS
from gluonlab.collectives.cost_model import algbw, bus_factor
from gluonlab.collectives.schedule import ALLREDUCE
from gluonlab.collectives.synthesis.precomputed_schedules import SYNTHESIZED
from gluonlab.drawing.matplotlib_figures import new_figure
from gluonlab.plain_text import format_size

if TYPE_CHECKING:
    from gluonlab.bench.allreduce.measure_allreduce import AllreduceRow
    from gluonlab.bench.allreduce.predicted_costs import PredictedRow

Rows = Sequence["AllreduceRow | PredictedRow"]
Point = Tuple[int, float]  # bytes, seconds

# A color and a marker for each algorithm. The colors are Okabe and Ito's, which color-blind people
# can distinguish, with a darker yellow, and further colors.
STYLES = {
    "star": ("#0072B2", "o"),
    "sharded": ("#E69F00", "s"),
    "tree": ("#009E73", "D"),
    "double_tree": ("#D55E00", "^"),
    "ring": ("#56B4E9", "v"),
    "bidirectional_ring": ("#CC79A7", "P"),
    "halving_doubling": ("#8A7600", "X"),
    "hierarchical": ("#5E3C99", "*"),
    "multi_ring": ("#B0003A", "p"),
    "synthesized": ("#004D40", "H"),
    "auto": ("#7A4B00", "8"),
    "chapter": ("#000000", "<"),
    "local": ("#6E6E6E", "d"),
    "device": ("#444444", ">"),
    "nccl": ("#A0A0A0", "h"),
}
DASHES = ("-", "--", "-.")  # line styles of hierarchical, by the algorithm across hosts
OTHER_STYLE = ("#8a8a8a", "o")
LIMIT_COLOR = "#8a8a8a"


class AlgorithmCurve(NamedTuple):
    """The points (bytes, seconds) of one algorithm."""

    label: str
    measured: List[Point]
    predicted: List[Point]


def make_curves(rows: Rows) -> List[AlgorithmCurve]:
    """Return a curve for each algorithm. Rows may be measured, or only predicted."""
    curves: Dict[str, AlgorithmCurve] = {}
    for row in rows:
        curve = curves.setdefault(row.algorithm, AlgorithmCurve(row.algorithm, [], []))
        if row.time_s:
            curve.measured.append((row.size_bytes, row.time_s))
        if row.predicted_s:
            curve.predicted.append((row.size_bytes, row.predicted_s))
    return [curve for curve in curves.values() if curve.measured or curve.predicted]


def make_figure(rows: Rows, world_size: int, title: str) -> Any:
    """Return a matplotlib Figure of time and busbw against size, with logarithmic axes.

    Measured curves are solid, and predicted curves are dashed. The memory limit is dotted if it is
    known.
    """
    figure = new_figure(13, 6.2)
    curves = make_curves(rows)
    limit = sorted({(row.size_bytes, median(row.limit_s)) for row in rows if row.limit_s})
    panels = time, bus = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.055, right=0.81, bottom=0.1, top=0.88, wspace=0.15)

    def plot(points: Sequence[Point], **style: Any) -> None:
        """Plot points (size, seconds) in both diagrams: time and bus bandwidth."""
        sizes, factor = [size for size, _ in points], bus_factor(ALLREDUCE, world_size)
        if points:
            time.plot(sizes, [seconds * 1e6 for _, seconds in points], **style)
        if points and factor:
            bandwidths = [algbw(size, seconds) * factor / 1e9 for size, seconds in points]
            bus.plot(sizes, bandwidths, **style)

    for curve in curves:
        color, marker, face = curve_style(curve.label)
        marked = {"marker": marker, "ms": 6, "markerfacecolor": face, "label": curve.label}
        dash = _single_point_marker(curve.predicted) if curve.measured else marked
        plot(curve.measured, color=color, ls="-", lw=1.6, **marked)
        plot(curve.predicted, color=color, ls="--", lw=1.0, **dash)
    plot(limit, color=LIMIT_COLOR, ls=":", lw=3.0, label="memory limit", **_single_point_marker(limit))
    sizes = sorted({size for curve in curves for size, _ in curve.measured + curve.predicted})
    for panel, panel_title in zip(panels, ("time, microseconds", "busbw, GB/s")):
        _format_axes(panel, panel_title, sizes)
    figure.suptitle(title, fontsize=11, x=0.055, ha="left")
    lines = (any(curve.measured for curve in curves), any(curve.predicted for curve in curves))
    words = ("solid: measured", "dashed: predicted")
    figure.legend(
        *time.get_legend_handles_labels(),
        title=", ".join(word for word, is_present in zip(words, lines) if is_present), fontsize=9,
        title_fontsize=9, loc="upper left", bbox_to_anchor=(0.82, 0.89), frameon=False,
        handlelength=3.5,
    )  # fmt: skip
    return figure


def curve_style(label: str) -> Tuple[str, str, str]:
    """Return the color, the marker and the marker's fill color for the row ``label``.

    A variant, such as "ring placed", has the algorithm's color and hollow markers. The marker of
    "synthesized, 4 steps" is the digit 4.
    """
    steps = re.fullmatch(r"(\w+), (\d+) steps", label)
    if steps:
        color = STYLES[steps[1]][0]
        return color, f"${steps[2]}$", color
    if label in STYLES:
        return (*STYLES[label], STYLES[label][0])
    base = next((name for name in STYLES if re.match(rf"{name}\b", label)), "")
    return (*STYLES.get(base, OTHER_STYLE), "white")


def _single_point_marker(points: Sequence[Point]) -> Dict[str, str]:
    """Return a marker if there is only one point, because a line would be invisible."""
    return {"marker": "_" if len(points) == 1 else ""}


def _format_axes(axes: Any, title: str, sizes: Sequence[int]) -> None:
    """Set logarithmic axes, a title, and tick labels for some of ``sizes``."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sizes[:: max(1, -(-len(sizes) // 9))]  # at most 9, which fit below the axis
    axes.set_xticks(ticks, [format_size(size) for size in ticks], fontsize=8, rotation=30)
    axes.minorticks_on()
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.tick_params(axis="y", labelsize=8)
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.grid(True, which="major", lw=0.4, color="#dddddd")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("bytes on each device", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def make_ranks_figure(rows: "Sequence[PredictedRow]", title: str) -> Any:
    """Return a matplotlib Figure of predicted time against the number of ranks.

    The figure also shows the lower bound.
    """
    figure = new_figure(9.5, 6.2)
    axes: Any = figure.subplots()
    figure.subplots_adjust(left=0.12, right=0.69, bottom=0.1, top=0.9)
    for label, points in _seconds_by_ranks(rows).items():
        color, marker, face = curve_style(label)
        times = [seconds * 1e6 for seconds in points.values()]
        across = ACROSS_HOSTS.index(label.split(", ")[-1]) if label.startswith(f"{HIERARCHICAL}, ") else 0
        style = {"color": color, "marker": marker, "markerfacecolor": face, "ls": DASHES[across]}
        axes.plot(list(points), times, label=label, markersize=6, linewidth=1.4, **style)
    lower_bounds = sorted({(row.cost.world_size, row.lower_bound_s * 1e6) for row in rows})
    axes.plot(*zip(*lower_bounds), color=LIMIT_COLOR, ls=":", lw=3.0, label="lower bound of all schedules")
    ranks = [count for count, _ in lower_bounds]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ranks, [str(count) for count in ranks], fontsize=8)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(True, which="major", lw=0.4, color="#dddddd")
    axes.set_xlabel("ranks", fontsize=8)
    axes.set_ylabel("predicted time, microseconds", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)
    return figure


def _seconds_by_ranks(rows: "Sequence[PredictedRow]") -> Dict[str, Dict[int, float]]:
    """Return {algorithm: {number of ranks: predicted seconds}}.

    The fastest synthesized schedule represents all synthesized schedules.
    """
    curves: Dict[str, Dict[int, float]] = {}
    for row in rows:
        label = SYNTHESIZED if row.algorithm.startswith(SYNTHESIZED) else row.algorithm
        points, ranks = curves.setdefault(label, {}), row.cost.world_size
        points[ranks] = min(points.get(ranks, row.predicted_s), row.predicted_s)
    return curves
