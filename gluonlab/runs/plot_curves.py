"""Curves of loss, accuracy, learning rate and throughput during a run (curves.png).

The x axis counts epochs, as in reports and live plots: epoch N extends from N - 1 to N. The mean
over an epoch is drawn in the middle of the epoch. The evaluation after an epoch is drawn at the end
of the epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Sequence, Tuple

from gluonlab.drawing.matplotlib_figures import new_figure, reused_figure
from gluonlab.runs.run_schema import Epoch, MetricsLine, Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 400  # of a curve; more points would not be visible

Curve = Tuple[List[float], List[float]]


def epoch_middles(epochs: Sequence[Epoch]) -> List[float]:
    """Return the positions of the middles of the epochs on the x axis."""
    return [line.epoch - 0.5 for line in epochs]


def mean_steps_per_epoch(steps: Sequence[Step], epochs: Sequence[Epoch]) -> float:
    """Return the mean number of steps per epoch, or the number so far if no epoch has finished."""
    return epochs[-1].step / len(epochs) if epochs else max(1, len(steps))


def step_positions(steps: Sequence[Step], epochs: Sequence[Epoch]) -> List[float]:
    """Return the positions of steps on the epoch axis."""
    per_epoch = mean_steps_per_epoch(steps, epochs)
    return [line.step / per_epoch for line in steps]


def downsample(xs: List[float], ys: List[float]) -> Curve:
    """Return at most MAX_POINTS points: the means of x and y over equal intervals."""
    interval = -(-len(xs) // MAX_POINTS) or 1
    intervals = [slice(start, start + interval) for start in range(0, len(xs), interval)]
    xs, ys = ([sum(values[s]) / len(values[s]) for s in intervals] for values in (xs, ys))
    return xs, ys


class CurveDownsampler:
    """A growing curve that is reduced to means over equal intervals.

    The curve has fewer than 2 * MAX_POINTS points: when it reaches this number, neighboring
    intervals are merged in pairs.
    """

    def __init__(self) -> None:
        self._xs: List[float] = []
        self._ys: List[float] = []
        self._size = 1  # points per interval
        self._sums = [0.0, 0.0, 0.0]  # of x, y and 1 over the last interval

    def add(self, x: float, y: float) -> None:
        """Add a point. If there are many points, the means of groups of points are stored."""
        sums = self._sums
        sums[0], sums[1], sums[2] = sums[0] + x, sums[1] + y, sums[2] + 1
        if sums[2] < self._size:
            return
        self._xs.append(sums[0] / self._size)
        self._ys.append(sums[1] / self._size)
        self._sums = [0.0, 0.0, 0.0]
        if len(self._xs) == 2 * MAX_POINTS:
            self._xs, self._ys = downsample(self._xs, self._ys)
            self._size *= 2

    @property
    def curve(self) -> Curve:
        """The means over all complete intervals."""
        return self._xs, self._ys


BLUE, ORANGE, GREEN, GRAY = "#1f5fa8", "#d9730d", "#2f7d4f", "#8a8a8a"


def draw_curves(lines: Sequence[MetricsLine], path: Path) -> None:
    """Draw curves from the lines of metrics.jsonl, and write the curves as PNG."""
    with reused_figure(_make_panels) as figure:
        _draw_panels(figure, lines)
        figure.savefig(path, format="png", dpi=110)


def make_figure(lines: Sequence[MetricsLine]) -> "Figure":
    """Draw four panels: training loss, validation accuracy, learning rate, images per second.

    ``lines``: the lines of metrics.jsonl.
    """
    figure = _make_panels()
    _draw_panels(figure, lines)
    return figure


def _make_panels() -> "Figure":
    """Return a figure with four empty axes, in two rows and two columns."""
    figure = new_figure(9, 6)
    figure.subplots(2, 2)
    # fixed margins, because matplotlib's constrained layout takes a third of the drawing time
    figure.subplots_adjust(left=0.08, right=0.98, bottom=0.09, top=0.94, wspace=0.2, hspace=0.42)
    return figure


def _draw_panels(figure: "Figure", lines: Sequence[MetricsLine]) -> None:
    """Draw the four panels of `make_figure` into an empty figure."""
    steps = [line for line in lines if isinstance(line, Step)]
    epochs = [line for line in lines if isinstance(line, Epoch)]
    panels: Any = figure.axes
    loss_axes, accuracy_axes, rate_axes, speed_axes = panels
    step_xs = step_positions(steps, epochs)
    draw_loss(loss_axes, (step_xs, [line.loss for line in steps]), epochs)
    draw_accuracy(accuracy_axes, epochs)

    # a step's learning rate is valid from the end of the previous step to its own end
    per_epoch = mean_steps_per_epoch(steps, epochs)
    step_edges = [(line.step - end) / per_epoch for line in steps for end in (1, 0)]
    rate_axes.plot(step_edges, [line.lr for line in steps for _ in range(2)], color=GREEN, lw=1.4)
    _label_axes(rate_axes, "learning rate", "each step")
    rate_axes.yaxis.get_major_locator().set_params(nbins=5)

    speeds = [line.images_per_second for line in epochs]
    speed_axes.bar(epoch_middles(epochs), speeds, color=BLUE, width=0.7)
    _label_axes(speed_axes, "images per second", "training only")
    for axes in (loss_axes, accuracy_axes, rate_axes, speed_axes):
        axes.set_xlim(0, (epochs[-1].epoch if epochs else max(step_xs, default=1)) + 0.05)


def draw_loss(axes: Any, steps: Curve, epochs: Sequence[Epoch]) -> None:
    """Draw the training loss: each step, and the mean of each epoch."""
    axes.plot(*steps, color=BLUE, alpha=0.35, lw=0.8)
    means = [line.loss for line in epochs]
    # clip_on=False: dots near a loss of 0 are drawn completely
    axes.plot(epoch_middles(epochs), means, color=BLUE, marker="o", ms=4, clip_on=False, zorder=3)
    _label_axes(axes, "training loss", "each step; dots: mean of the epoch")


def draw_accuracy(axes: Any, epochs: Sequence[Epoch]) -> None:
    """Draw the validation accuracy after each epoch, in percent."""
    percentages = [100 * line.val_accuracy for line in epochs]
    ends = [line.epoch for line in epochs]
    axes.plot(ends, percentages, color=ORANGE, marker="o", ms=4, clip_on=False, zorder=3)
    note = "its end"
    if percentages:
        note = f"best {max(percentages):.2f} %"
        axes.axhline(max(percentages), color=GRAY, lw=0.8, ls=":")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 99), min(high, 100))
    _label_axes(axes, "validation accuracy, %", note)


def _label_axes(axes: Any, title: str, note: str) -> None:
    """Set the title and the ticks of a panel, and label its x axis with ``epoch (note)``."""
    axes.set_title(title, fontsize=10, y=1.0)  # a fixed y saves matplotlib a search for overlapping ticks
    axes.set_xlabel(f"epoch ({note})", fontsize=8)
    axes.xaxis.set_label_coords(0.5, -0.12)  # saves measuring all tick labels
    axes.tick_params(labelsize=8)
    axes.set_ylim(bottom=0 if "accuracy" not in title else None)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
