"""curves.png: how loss, accuracy, learning rate and speed went during a run.

Reports and live plots share the axis of epochs. An epoch begins at its number less one. A mean over
it lies in its middle, as its steps do on the average; what is evaluated after it lies at its end,
its number.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Sequence, Tuple

from gluonlab.drawing.matplotlib_figures import new_figure, reused_figure
from gluonlab.runs.run_schema import Epoch, MetricsLine, Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 400  # of a curve: more cannot be seen, and make a page heavy

Curve = Tuple[List[float], List[float]]


def epoch_middles(epochs: Sequence[Epoch]) -> List[float]:
    """Where the epochs' means lie."""
    return [line.epoch - 0.5 for line in epochs]


def mean_steps_per_epoch(steps: Sequence[Step], epochs: Sequence[Epoch]) -> float:
    """How many there are on the average; all, where no epoch is finished."""
    return epochs[-1].step / len(epochs) if epochs else max(1, len(steps))


def step_positions(steps: Sequence[Step], epochs: Sequence[Epoch]) -> List[float]:
    """Where each step lies."""
    per_epoch = mean_steps_per_epoch(steps, epochs)
    return [line.step / per_epoch for line in steps]


def downsample(xs: List[float], ys: List[float]) -> Curve:
    """Means over equal stretches, at most MOST_POINTS of them."""
    size = -(-len(xs) // MAX_POINTS) or 1
    stretches = [slice(begin, begin + size) for begin in range(0, len(xs), size)]
    xs, ys = ([sum(each[s]) / len(each[s]) for s in stretches] for each in (xs, ys))
    return xs, ys


class CurveDownsampler:
    """A curve to which points are added: means over equal stretches, however many there are.

    ``curve``: from MOST_POINTS to twice as many of them, fewer for a short one.
    """

    def __init__(self) -> None:
        self._xs: List[float] = []
        self._ys: List[float] = []
        self._size, self._open = 1, [0.0, 0.0, 0.0]  # points of a stretch; sums of the last one

    def add(self, x: float, y: float) -> None:
        """One more point."""
        sums = self._open
        sums[0], sums[1], sums[2] = sums[0] + x, sums[1] + y, sums[2] + 1
        if sums[2] < self._size:
            return
        self._xs.append(sums[0] / self._size)
        self._ys.append(sums[1] / self._size)
        self._open = [0.0, 0.0, 0.0]
        if len(self._xs) == 2 * MAX_POINTS:
            self._xs, self._ys = downsample(self._xs, self._ys)
            self._size *= 2

    @property
    def curve(self) -> Curve:
        """The points, but for those of a stretch that is not full."""
        return self._xs, self._ys


BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#d9730d", "#2f7d4f", "#8a8a8a"


def draw_curves(lines: Sequence[MetricsLine], path: Path) -> None:
    """Write `make_figure` of the lines of metrics.jsonl as a PNG."""
    with reused_figure(_make_panels) as figure:
        _draw_panels(figure, lines)
        figure.savefig(path, format="png", dpi=110)


def make_figure(lines: Sequence[MetricsLine]) -> "Figure":
    """Four panels: training loss, test accuracy, learning rate, images per second.

    They are made of the lines of metrics.jsonl.
    """
    figure = _make_panels()
    _draw_panels(figure, lines)
    return figure


def _make_panels() -> "Figure":
    figure = new_figure(9, 6)
    figure.subplots(2, 2)
    # margins by hand: matplotlib's constrained layout would take a third of the time of drawing
    figure.subplots_adjust(left=0.08, right=0.98, bottom=0.09, top=0.94, wspace=0.2, hspace=0.42)
    return figure


def _draw_panels(figure: "Figure", lines: Sequence[MetricsLine]) -> None:
    steps = [line for line in lines if isinstance(line, Step)]
    epochs = [line for line in lines if isinstance(line, Epoch)]
    panels: Any = figure.axes
    loss, accuracy, rate, speed = panels
    at = step_positions(steps, epochs)
    draw_loss(loss, (at, [line.loss for line in steps]), epochs)
    draw_accuracy(accuracy, epochs)

    # a step's rate holds while the step goes on, from its predecessor's end to its own
    per_epoch = mean_steps_per_epoch(steps, epochs)
    edges = [(line.step - end) / per_epoch for line in steps for end in (1, 0)]
    rate.plot(edges, [line.lr for line in steps for _ in range(2)], color=GREEN, lw=1.4)
    _label_axes(rate, "learning rate", "each step")
    rate.yaxis.get_major_locator().set_params(nbins=5)

    rates = [line.images_per_second for line in epochs]
    speed.bar(epoch_middles(epochs), rates, color=BLUE, width=0.7)
    _label_axes(speed, "images per second", "training only")
    for axes in (loss, accuracy, rate, speed):
        axes.set_xlim(0, (epochs[-1].epoch if epochs else max(at, default=1)) + 0.05)


def draw_loss(axes: Any, steps: Curve, epochs: Sequence[Epoch]) -> None:
    """The training loss: of steps, at their places, and the mean of each epoch."""
    axes.plot(*steps, color=BLUE, alpha=0.35, lw=0.8)
    means = [line.loss for line in epochs]
    # a dot is whole even where the loss is nearly 0
    axes.plot(epoch_middles(epochs), means, color=BLUE, marker="o", ms=4, clip_on=False, zorder=3)
    _label_axes(axes, "training loss", "each step; dots: mean of the epoch")


def draw_accuracy(axes: Any, epochs: Sequence[Epoch]) -> None:
    """The test accuracy after each epoch, in percent."""
    shares = [100 * line.accuracy for line in epochs]
    ends = [line.epoch for line in epochs]
    axes.plot(ends, shares, color=ORANGE, marker="o", ms=4, clip_on=False, zorder=3)
    note = "its end"
    if shares:
        note = f"best {max(shares):.2f} %"
        axes.axhline(max(shares), color=GREY, lw=0.8, ls=":")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 99), min(high, 100))  # nobody is better than 100 %
    _label_axes(axes, "test accuracy, %", note)


def _label_axes(axes: Any, title: str, note: str) -> None:
    axes.set_title(title, fontsize=10, y=1.0)  # else matplotlib looks for ticks in its way
    axes.set_xlabel(f"epoch ({note})", fontsize=8)
    axes.xaxis.set_label_coords(0.5, -0.12)  # else it measures all numbers on the axis first
    axes.tick_params(labelsize=8)
    axes.set_ylim(bottom=0 if "accuracy" not in title else None)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
