"""Makes the HTML page of a report about runs: results, curves, and differences in settings.

`make_page` fills the template in the folder ``template``, and `draw_charts` draws the curves as SVG.
The page needs no other file.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Callable, Dict, Sequence, Tuple

from markupsafe import Markup

from gluonlab.drawing.matplotlib_figures import as_svg, new_figure, reused_figure
from gluonlab.drawing.page_template import template_environment
from gluonlab.report.run_tables import (
    EPOCH_HEADINGS,
    HEADINGS,
    STALENESS_HEADINGS,
    best_epoch_index,
    epoch_rows,
    result_rows,
    setting_differences,
    shared_settings,
    staleness_rows,
)
from gluonlab.runs.plot_curves import Curve, downsample, epoch_middles, step_positions
from gluonlab.runs.run_reader import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY_RUNS = 8  # the page then has a filter
_STROKES = {"-": "", "--": "6 3", ":": "2 2", "-.": "6 2 2 2"}
# People with any color vision can distinguish these colors (Okabe and Ito, "Color universal
# design", 2008). Yellow is left out. Gray replaces black, which is invisible in dark mode.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#767676")
AXES_COLOR = "#8a8a8a"  # visible on white and in dark mode
DASHES = ("-", "--", ":", "-.")
PERCENT = (0.0, 100.0)


def make_page(runs: Sequence[RunRecord]) -> str:
    """Return an HTML page about ``runs``, in the given order."""
    templates = template_environment("gluonlab.report", trim_blocks=True)
    keys = [
        {"name": run.name, "color": run_color(number), "stroke": _STROKES[run_dash(number)]}
        for number, run in enumerate(runs)
    ]
    return templates.get_template("page.html").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        keys=keys,
        headings=HEADINGS,
        results=result_rows(runs),
        staleness_headings=STALENESS_HEADINGS,
        staleness=staleness_rows(runs),
        differences=setting_differences(runs),
        common=shared_settings(runs),
        # safe as Markup, because matplotlib escapes all text
        charts={title: Markup(svg) for title, svg in draw_charts(runs).items()},
        scripts=True,
        many=MANY_RUNS,
        confusions=[(run.name, run.confusion_picture()) for run in runs],
        wrongs=[(run.name, run.wrong_picture()) for run in runs],
        timelines=[(run.name, run.timeline_picture()) for run in runs],
        epoch_headings=EPOCH_HEADINGS,
        epochs=[epoch_rows(run) for run in runs],
        bests=[best_epoch_index(run) for run in runs],
        versions=sorted({run.version for run in runs}),
    )


def run_color(number: int) -> str:
    """Return the color of the run with this number."""
    return COLORS[number % len(COLORS)]


def run_dash(number: int) -> str:
    """Return the line style of the run with this number. Runs of the same color differ in style."""
    return DASHES[number // len(COLORS) % len(DASHES)]


def draw_charts(runs: Sequence[RunRecord]) -> Dict[str, str]:
    """Return charts as title -> SVG: losses, accuracy, throughput, learning rate, staleness.

    The mean over an epoch is drawn in the middle of the epoch. The evaluation after an epoch is
    drawn at the end of the epoch. Charts without points, and a constant learning rate, are left
    out.
    """
    accuracy = {"bounds": PERCENT, "best": True}
    chart_options = [
        ("Training loss", any(run.steps or run.epochs for run in runs),
         _loss_curve, "epoch", {"faint": _step_loss_curve}),
        ("Validation loss", any(_val_loss_curve(run)[0] for run in runs), _val_loss_curve, "epoch", {}),
        ("Validation accuracy, %", any(run.epochs for run in runs), _accuracy_curve, "epoch", accuracy),
        ("Validation accuracy, %, by time", any(run.epochs for run in runs),
         _accuracy_over_time, "seconds of training", accuracy),
        ("Images per second", any(run.epochs for run in runs),
         _speed_curve, "epoch", {"from_zero": True}),
        ("Learning rate", any(len({step.lr for step in run.steps}) > 1 for run in runs),
         _learning_rate_curve, "epoch", {"from_zero": True}),
        ("Staleness: pushes, %, by updates of other workers", any(any(run.staleness) for run in runs),
         _staleness_curve, "updates of other workers", {"from_zero": True}),
    ]  # fmt: skip
    return {
        title: _draw_chart(runs, curve, axis, **options)  # type: ignore[arg-type]
        for title, has_points, curve, axis, options in chart_options
        if has_points
    }


def _loss_curve(run: RunRecord) -> Curve:
    return epoch_middles(run.epochs), [line.loss for line in run.epochs]


def _step_loss_curve(run: RunRecord) -> Curve:
    return downsample(step_positions(run.steps, run.epochs), [line.loss for line in run.steps])


def _val_loss_curve(run: RunRecord) -> Curve:
    epochs = [line for line in run.epochs if line.val_loss is not None]
    return [line.epoch for line in epochs], [float(line.val_loss or 0) for line in epochs]


def _accuracy_curve(run: RunRecord) -> Curve:
    return [line.epoch for line in run.epochs], [100 * line.val_accuracy for line in run.epochs]


def _accuracy_over_time(run: RunRecord) -> Curve:
    return list(accumulate(line.training_seconds for line in run.epochs)), _accuracy_curve(run)[1]


def _speed_curve(run: RunRecord) -> Curve:
    return epoch_middles(run.epochs), [line.images_per_second for line in run.epochs]


def _learning_rate_curve(run: RunRecord) -> Curve:
    return downsample(step_positions(run.steps, run.epochs), [line.lr for line in run.steps])


def _staleness_curve(run: RunRecord) -> Curve:
    total = sum(run.staleness)
    shares = [100 * pushes / total for pushes in run.staleness if total]
    return [*range(len(shares))], shares


def _last_epoch(run: RunRecord) -> float:
    if run.epochs:
        return run.epochs[-1].epoch
    return max(step_positions(run.steps, run.epochs), default=1)


def _draw_chart(
    runs: Sequence[RunRecord],
    curve: Callable[[RunRecord], Curve],
    axis: str,
    faint: "Callable[[RunRecord], Curve] | None" = None,
    from_zero: bool = False,
    bounds: Tuple[float, float] = (-math.inf, math.inf),
    best: bool = False,
) -> str:
    """Return a chart with a curve for each run, as SVG.

    The ids of a run's elements end in -run- and the run's number, so that the page can hide them.

    Args:
        runs: The runs.
        curve: Function that returns the curve of a run.
        axis: Label of the x axis.
        faint: Function that returns a faint curve, which is drawn behind the curve of a run.
        from_zero: Whether the y axis starts at 0.
        bounds: Limits of the y axis.
        best: Whether to mark the best point.
    """
    with reused_figure(_make_panel) as figure:
        from matplotlib.ticker import ScalarFormatter, StrMethodFormatter

        axes: Any = figure.axes[0]
        for number, run in enumerate(runs):
            style: Dict[str, Any] = {"color": run_color(number), "ls": run_dash(number)}
            if faint is not None:
                axes.plot(*faint(run), alpha=0.3, lw=0.8, gid=f"faint-run-{number}", **style)
            xs, ys = curve(run)
            style.update(clip_on=False, gid=f"curve-run-{number}")
            axes.plot(xs, ys, lw=1.6, marker="o" if len(xs) <= 40 else None, ms=3.5, **style)
            if best and ys:
                best_index = ys.index(max(ys))
                style.update(gid=f"best-run-{number}", marker="o", ms=8, mfc="none", ls="")
                axes.plot(xs[best_index : best_index + 1], ys[best_index : best_index + 1], **style)
        axes.set_xlabel(axis, fontsize=9)
        if from_zero:
            axes.set_ylim(bottom=0)
        has_thousands = axes.get_ylim()[1] >= 1000
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}") if has_thousands else ScalarFormatter())
        axes.set_xlim(left=0, right=1.03 * max(map(_last_epoch, runs)) if axis == "epoch" else None)
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, bounds[0]), min(high, bounds[1]))
        axes.xaxis.get_major_locator().set_params(integer=axis in ("epoch", "updates of other workers"))
        return as_svg(figure)  # with a transparent background, because the page may be dark


def _make_panel() -> "Figure":
    """Return a figure with empty axes in the style of the page."""
    figure = new_figure(5.6, 3.3)
    axes: Any = figure.subplots()
    figure.subplots_adjust(left=0.12, right=0.98, bottom=0.15, top=0.97)
    axes.tick_params(labelsize=9, color=AXES_COLOR)
    axes.grid(color=AXES_COLOR, alpha=0.3, lw=0.6)
    axes.spines[:].set_color(AXES_COLOR)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
