"""The curves of several runs in one picture, as SVG."""

from __future__ import annotations

import math
from io import StringIO
from itertools import accumulate
from typing import Any, Callable, Dict, List, Sequence, Tuple

from gluonlab.runs.reader import Run

# Okabe and Ito's colours, which people see apart whatever their colour vision; "Color universal
# design", 2008. No yellow on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("-", "--", ":", "-.")
PERCENT = (0.0, 100.0)
MOST_POINTS = 400  # of a curve: more cannot be seen, and make the page heavy

Curve = Tuple[List[float], List[float]]


def colour(number: int) -> str:
    """The colour of the run with this number."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> str:
    """Its line style: colours come again after some runs."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def charts(runs: Sequence[Run]) -> Dict[str, str]:
    """Title -> SVG: losses, accuracy over epochs and over time, speed, learning rate.

    The learning rate's is there when it is not constant, and one of staleness for processes that do
    not wait for each other. A chart without a point is left out.
    """
    drawn: Dict[str, str] = {}
    if any(run.steps or run.epochs for run in runs):
        drawn["Training loss"] = _svg(runs, _loss, "epoch", faint=_losses)
    if any(run.epochs for run in runs):
        drawn["Test accuracy, %"] = _svg(runs, _accuracy, "epoch", bounds=PERCENT)
        drawn["Test accuracy, %, against time"] = _svg(
            runs, _accuracy_in_time, "seconds of training", bounds=PERCENT
        )
        drawn["Images per second"] = _svg(runs, _speed, "epoch", from_zero=True)
    if any(len({step.lr for step in run.steps}) > 1 for run in runs):
        drawn["Learning rate"] = _svg(runs, _rate, "epoch", from_zero=True)
    if any(any(run.staleness) for run in runs):
        drawn["Staleness: pushes, %, by updates of others"] = _svg(
            runs, _staleness, "updates of others", from_zero=True
        )
    return drawn


def _loss(run: Run) -> Curve:
    return [line.epoch for line in run.epochs], [line.loss for line in run.epochs]


def _losses(run: Run) -> Curve:
    return _thinned(_positions(run), [line.loss for line in run.steps])


def _accuracy(run: Run) -> Curve:
    return [line.epoch for line in run.epochs], [100 * line.accuracy for line in run.epochs]


def _accuracy_in_time(run: Run) -> Curve:
    return list(accumulate(line.training_seconds for line in run.epochs)), [
        100 * line.accuracy for line in run.epochs
    ]


def _speed(run: Run) -> Curve:
    return [line.epoch for line in run.epochs], [line.images_per_second for line in run.epochs]


def _rate(run: Run) -> Curve:
    return _thinned(_positions(run), [line.lr for line in run.steps])


def _staleness(run: Run) -> Curve:
    total = sum(run.staleness)
    return [*range(len(run.staleness))] if total else [], [
        100 * pushes / total for pushes in run.staleness if total
    ]


def _positions(run: Run) -> List[float]:
    """Where each step lies on the axis of epochs."""
    per_epoch = run.epochs[-1].step / len(run.epochs) if run.epochs else max(1, len(run.steps))
    return [line.step / per_epoch for line in run.steps]


def _thinned(xs: List[float], ys: List[float]) -> Curve:
    """Means over equal stretches, at most MOST_POINTS of them."""
    size = -(-len(xs) // MOST_POINTS) or 1
    stretches = [slice(begin, begin + size) for begin in range(0, len(xs), size)]
    return [_mean(xs[stretch]) for stretch in stretches], [
        _mean(ys[stretch]) for stretch in stretches
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _svg(
    runs: Sequence[Run],
    curve: Callable[[Run], Curve],
    axis: str,
    faint: "Callable[[Run], Curve] | None" = None,
    from_zero: bool = False,
    bounds: Tuple[float, float] = (-math.inf, math.inf),
) -> str:
    """One picture: a curve with dots for each run, ``faint`` ones behind.

    The axis never leaves ``bounds``.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.3))
    FigureCanvasSVG(figure)
    axes: Any = figure.subplots()
    figure.subplots_adjust(left=0.12, right=0.98, bottom=0.15, top=0.97)
    for number, run in enumerate(runs):
        look = {"color": colour(number), "ls": dash(number)}
        if faint is not None:
            axes.plot(*faint(run), alpha=0.3, lw=0.8, **look)
        xs, ys = curve(run)
        axes.plot(
            xs, ys, lw=1.6, marker="o" if len(xs) <= 40 else None, ms=3.5, clip_on=False, **look
        )
    axes.set_xlabel(axis, fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if from_zero:
        axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, bounds[0]), min(high, bounds[1]))
    if axis in ("epoch", "updates of others"):
        axes.xaxis.get_major_locator().set_params(integer=True)
    text = StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "gluonlab", "font.family": "sans-serif"}
    ):
        figure.savefig(
            text,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return text.getvalue()
