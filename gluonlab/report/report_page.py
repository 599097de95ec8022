"""The page: what differs, how it went as curves, what came of it.

Its template is beside it; the page needs no other file and no network.
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
    best_epoch,
    differences,
    epochs,
    in_common,
    results,
    staleness,
)
from gluonlab.runs.plot_curves import Curve, middles, positions, thinned
from gluonlab.runs.run_reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY = 8  # runs, from which on a filter helps
_STROKES = {"-": "", "--": "6 3", ":": "2 2", "-.": "6 2 2 2"}
# Okabe and Ito's colours, which people see apart whatever their colour vision; "Color universal
# design", 2008. No yellow on white, and grey for black, which is not seen in the dark.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#767676")
AXES = "#8a8a8a"  # seen on white and in the dark
DASHES = ("-", "--", ":", "-.")
PERCENT = (0.0, 100.0)


def as_page(runs: Sequence[Run]) -> str:
    """An HTML page about ``runs``, in their order."""
    templates = template_environment("gluonlab.report", trim_blocks=True)
    keys = [
        {"name": run.name, "colour": colour(number), "stroke": _STROKES[dash(number)]}
        for number, run in enumerate(runs)
    ]
    return templates.get_template("page.html").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        keys=keys,
        headings=HEADINGS,
        results=results(runs),
        staleness_headings=STALENESS_HEADINGS,
        staleness=staleness(runs),
        differences=differences(runs),
        common=in_common(runs),
        # matplotlib's own XML, in which it has escaped every text
        charts={title: Markup(svg) for title, svg in charts(runs).items()},
        scripts=True,
        many=MANY,
        confusions=[(run.name, run.confusion()) for run in runs],
        wrongs=[(run.name, run.wrong()) for run in runs],
        timelines=[(run.name, run.timeline()) for run in runs],
        epoch_headings=EPOCH_HEADINGS,
        epochs=[epochs(run) for run in runs],
        bests=[best_epoch(run) for run in runs],
        versions=sorted({run.version for run in runs}),
    )


def colour(number: int) -> str:
    """The colour of the run with this number."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> str:
    """Its line style: colours come again after some runs."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def charts(runs: Sequence[Run]) -> Dict[str, str]:
    """Title -> SVG: losses, accuracy over epochs and over time, speed, learning rate.

    A mean over an epoch lies in the middle of it, as its steps do on the average; what is evaluated
    after an epoch lies at its end. The loss of the test split is there where it is known, the
    learning rate's when it is not constant, and one of staleness for processes that do not wait for
    each other. A chart without a point is left out.
    """
    accuracy = {"bounds": PERCENT, "best": True}
    wanted = [
        ("Training loss", any(run.steps or run.epochs for run in runs),
         _loss, "epoch", {"faint": _losses}),
        ("Test loss", any(_test_loss(run)[0] for run in runs), _test_loss, "epoch", {}),
        ("Test accuracy, %", any(run.epochs for run in runs), _accuracy, "epoch", accuracy),
        ("Test accuracy, %, against time", any(run.epochs for run in runs),
         _accuracy_in_time, "seconds of training", accuracy),
        ("Images per second", any(run.epochs for run in runs),
         _speed, "epoch", {"from_zero": True}),
        ("Learning rate", any(len({step.lr for step in run.steps}) > 1 for run in runs),
         _rate, "epoch", {"from_zero": True}),
        ("Staleness: pushes, %, by updates of others", any(any(run.staleness) for run in runs),
         _staleness, "updates of others", {"from_zero": True}),
    ]  # fmt: skip
    return {
        title: _svg(runs, curve, axis, **more)  # type: ignore[arg-type]
        for title, is_known, curve, axis, more in wanted
        if is_known
    }


def _loss(run: Run) -> Curve:
    return middles(run.epochs), [line.loss for line in run.epochs]


def _losses(run: Run) -> Curve:
    return thinned(positions(run.steps, run.epochs), [line.loss for line in run.steps])


def _test_loss(run: Run) -> Curve:
    known = [line for line in run.epochs if line.validation_loss is not None]
    return [line.epoch for line in known], [float(line.validation_loss or 0) for line in known]


def _accuracy(run: Run) -> Curve:
    return [line.epoch for line in run.epochs], [100 * line.accuracy for line in run.epochs]


def _accuracy_in_time(run: Run) -> Curve:
    return list(accumulate(line.training_seconds for line in run.epochs)), _accuracy(run)[1]


def _speed(run: Run) -> Curve:
    return middles(run.epochs), [line.images_per_second for line in run.epochs]


def _rate(run: Run) -> Curve:
    return thinned(positions(run.steps, run.epochs), [line.lr for line in run.steps])


def _staleness(run: Run) -> Curve:
    total = sum(run.staleness)
    shares = [100 * pushes / total for pushes in run.staleness if total]
    return [*range(len(shares))], shares


def _last_epoch(run: Run) -> float:
    if run.epochs:
        return run.epochs[-1].epoch
    return max(positions(run.steps, run.epochs), default=1)


def _svg(
    runs: Sequence[Run],
    curve: Callable[[Run], Curve],
    axis: str,
    faint: "Callable[[Run], Curve] | None" = None,
    from_zero: bool = False,
    bounds: Tuple[float, float] = (-math.inf, math.inf),
    best: bool = False,
) -> str:
    """One picture: a curve with dots for each run, ``faint`` ones behind, a ring around the best.

    All of a run's have an id that ends in -run- and its number, by which the page hides them. The
    axis never leaves ``bounds``.
    """
    with reused_figure(_make_panel) as figure:
        from matplotlib.ticker import ScalarFormatter, StrMethodFormatter

        axes: Any = figure.axes[0]
        for number, run in enumerate(runs):
            look: Dict[str, Any] = {"color": colour(number), "ls": dash(number)}
            if faint is not None:
                axes.plot(*faint(run), alpha=0.3, lw=0.8, gid=f"faint-run-{number}", **look)
            xs, ys = curve(run)
            look.update(clip_on=False, gid=f"curve-run-{number}")
            axes.plot(xs, ys, lw=1.6, marker="o" if len(xs) <= 40 else None, ms=3.5, **look)
            if best and ys:
                at = ys.index(max(ys))
                look.update(gid=f"best-run-{number}", marker="o", ms=8, mfc="none", ls="")
                axes.plot(xs[at : at + 1], ys[at : at + 1], **look)
        axes.set_xlabel(axis, fontsize=9)
        if from_zero:
            axes.set_ylim(bottom=0)
        is_large = axes.get_ylim()[1] >= 1000
        axes.yaxis.set_major_formatter(
            StrMethodFormatter("{x:,.0f}") if is_large else ScalarFormatter()
        )
        axes.set_xlim(left=0, right=1.03 * max(map(_last_epoch, runs)) if axis == "epoch" else None)
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, bounds[0]), min(high, bounds[1]))
        axes.xaxis.get_major_locator().set_params(integer=axis in ("epoch", "updates of others"))
        return as_svg(figure)  # on the page's ground, which may be dark


def _make_panel() -> "Figure":
    figure = new_figure(5.6, 3.3)
    axes: Any = figure.subplots()
    figure.subplots_adjust(left=0.12, right=0.98, bottom=0.15, top=0.97)
    axes.tick_params(labelsize=9, color=AXES)
    axes.grid(color=AXES, alpha=0.3, lw=0.6)
    axes.spines[:].set_color(AXES)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
