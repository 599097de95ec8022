"""Time and bus bandwidth against size, measured and predicted, as a picture."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Sequence, Tuple

from gluonlab.bench.allreduce.sizes import in_words
from gluonlab.collectives.cost import algbw, bus_factor
from gluonlab.collectives.schedule import ALLREDUCE

if TYPE_CHECKING:
    from gluonlab.bench.allreduce.measure import Row
    from gluonlab.bench.allreduce.simulate import PricedRow

Point = Tuple[int, float]  # bytes, seconds

# Okabe and Ito's colours, which people tell apart who see fewer, with a darker yellow and a violet;
# and a marker for each as well.
STYLES = {
    "star": ("#0072B2", "o"),
    "sharded": ("#E69F00", "s"),
    "tree": ("#009E73", "D"),
    "double_tree": ("#D55E00", "^"),
    "ring": ("#56B4E9", "v"),
    "bidirectional_ring": ("#CC79A7", "P"),
    "halving_doubling": ("#8A7600", "X"),
    "hierarchical": ("#5E3C99", "*"),
    "chapter": ("#000000", "<"),
    "local": ("#6E6E6E", "d"),
    "device": ("#444444", ">"),
    "nccl": ("#A0A0A0", "h"),
}
OTHER = ("#8a8a8a", "o")
LIMIT = "#8a8a8a"


@dataclass
class Curve:
    """What is drawn of one algorithm."""

    label: str
    measured: List[Point] = field(default_factory=list)
    predicted: List[Point] = field(default_factory=list)


def measured_curves(rows: Iterable[Row]) -> List[Curve]:
    """A curve for each algorithm of a table."""
    curves: Dict[str, Curve] = {}
    for row in rows:
        curve = curves.setdefault(row.algorithm, Curve(row.algorithm))
        curve.measured.append((row.size_bytes, row.time_s))
        if row.predicted_s:
            curve.predicted.append((row.size_bytes, row.predicted_s))
    return list(curves.values())


def priced_curves(rows: Iterable[PricedRow]) -> List[Curve]:
    """The same of a simulation: predicted only."""
    curves: Dict[str, Curve] = {}
    for row in rows:
        if row.price.seconds:
            curve = curves.setdefault(row.algorithm, Curve(row.algorithm))
            curve.predicted.append((int(row.price.size_bytes), row.price.seconds))
    return list(curves.values())


def limit_points(rows: Iterable[Row]) -> List[Point]:
    """The memory limit at each size; none where it is not known."""
    return sorted({(row.size_bytes, statistics.median(row.limit_s)) for row in rows if row.limit_s})


def draw(
    curves: Sequence[Curve], limit: Sequence[Point], world_size: int, title: str, path: Path
) -> None:
    """Write a PNG of two panels with logarithmic axes: time, and busbw, against size."""
    make_figure(curves, limit, world_size, title).savefig(path, format="png", dpi=110)


def make_figure(
    curves: Sequence[Curve], limit: Sequence[Point], world_size: int, title: str
) -> Any:
    """The picture: measured curves solid, predicted ones dashed, the ``limit`` dotted; a matplotlib
    Figure.
    """
    # the figure alone, without pyplot: no display, no global state, and half the time to import
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.2))
    FigureCanvasAgg(figure)
    panels = time, bus = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.055, right=0.81, bottom=0.1, top=0.88, wspace=0.15)
    factor = bus_factor(ALLREDUCE, world_size)
    for curve in curves:
        colour, marker, face = style(curve.label)
        marked = {"marker": marker, "ms": 6, "markerfacecolor": face, "label": curve.label}
        # a line through one point would not be seen
        dash = {"marker": "_" if len(curve.predicted) == 1 else ""}
        _plot(panels, curve.measured, factor, color=colour, ls="-", lw=1.6, **marked)
        _plot(
            panels,
            curve.predicted,
            factor,
            color=colour,
            ls="--",
            lw=1.0,
            **(dash if curve.measured else marked),
        )
    _plot(
        panels,
        limit,
        factor,
        color=LIMIT,
        ls=":",
        lw=3.0,
        marker="_" if len(limit) == 1 else "",
        label="memory limit",
    )
    sizes = sorted({size for curve in curves for size, _ in curve.measured + curve.predicted})
    _axes(time, "time, microseconds", sizes)
    _axes(bus, "busbw, GB/s", sizes)
    figure.suptitle(title, fontsize=11, x=0.055, ha="left")
    solid, dashed = (
        any(curve.measured for curve in curves),
        any(curve.predicted for curve in curves),
    )
    note = ", ".join(["solid: measured"] * solid + ["dashed: predicted"] * dashed)
    handles, labels = time.get_legend_handles_labels()
    fonts = {"fontsize": 9, "title_fontsize": 9}
    place = {
        "loc": "upper left",
        "bbox_to_anchor": (0.82, 0.89),
        "frameon": False,
        "handlelength": 3.5,
    }
    figure.legend(handles, labels, title=note, **fonts, **place)
    return figure


def style(label: str) -> Tuple[str, str, str]:
    """Colour, marker and its filling; what is a variant of an algorithm, as "ring placed", has its
    colour, and hollow markers.
    """
    if label in STYLES:
        return (*STYLES[label], STYLES[label][0])
    base = next((name for name in STYLES if re.match(rf"{name}\b", label)), "")
    return (*STYLES.get(base, OTHER), "white")


def _plot(panels: Sequence[Any], points: Sequence[Point], factor: float, **style: Any) -> None:
    time, bus = panels
    sizes = [size for size, _ in points]
    if points:
        time.plot(sizes, [seconds * 1e6 for _, seconds in points], **style)
    if points and factor:
        bus.plot(sizes, [algbw(size, seconds) * factor / 1e9 for size, seconds in points], **style)


def _axes(axes: Any, title: str, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = sizes[:: max(1, -(-len(sizes) // 9))]  # as many as there is room for
    axes.set_xticks(shown, [in_words(size) for size in shown], fontsize=8, rotation=30)
    axes.minorticks_on()
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.tick_params(axis="y", labelsize=8)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.grid(True, which="major", lw=0.4, color="#dddddd")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("bytes on each device", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
