"""curves.png: how loss, accuracy and speed went during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

BLUE, ORANGE, GREY = "#1f5fa8", "#d9730d", "#8a8a8a"


def draw(metrics: List[Dict[str, Any]], path: Path) -> None:
    """Three panels from the lines of metrics.jsonl: training loss, validation accuracy, images per second."""
    # the figure alone, without pyplot: no display, no global state, and half the time to import
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [line for line in metrics if line["kind"] == "step"]
    epochs = [line for line in metrics if line["kind"] == "epoch"]
    figure = Figure(figsize=(11, 3.4))
    FigureCanvasAgg(figure)
    loss, accuracy, speed = figure.subplots(1, 3)
    # margins by hand: matplotlib's constrained layout would take a third of the time of drawing
    figure.subplots_adjust(left=0.05, right=0.985, bottom=0.16, top=0.9, wspace=0.2)

    per_epoch = max(1, epochs[-1]["step"] // len(epochs)) if epochs else len(steps) or 1
    loss.plot([line["step"] / per_epoch for line in steps], [line["loss"] for line in steps], color=BLUE, alpha=0.35, lw=0.8)
    loss.plot([line["epoch"] for line in epochs], [line["loss"] for line in epochs], color=BLUE, marker="o", ms=4)
    _label(loss, "training loss", "each step; dots: mean of the epoch")

    accuracy.plot([line["epoch"] for line in epochs], [100 * line["accuracy"] for line in epochs], color=ORANGE, marker="o", ms=4)
    best = max((100 * line["accuracy"] for line in epochs), default=0.0)
    accuracy.axhline(best, color=GREY, lw=0.8, ls=":")
    _label(accuracy, "validation accuracy, %", f"best {best:.2f} %")

    rates = [line["images"] / line["seconds"] for line in epochs]
    speed.bar([line["epoch"] for line in epochs], rates, color=BLUE, width=0.7)
    _label(speed, "images per second", "training only")
    figure.savefig(path, format="png", dpi=110)


def _label(axes: Any, title: str, note: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(f"epoch ({note})", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_ylim(bottom=0 if "accuracy" not in title else None)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
