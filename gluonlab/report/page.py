"""The page: what differs, how it went, what came of it.

Its template is beside it; the page needs no other file and no network.
"""

from __future__ import annotations

from typing import Sequence

from markupsafe import Markup

from gluonlab.drawing.templates import environment
from gluonlab.report.charts import charts, colour, dash
from gluonlab.report.tables import (
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
from gluonlab.runs.reader import Run

MANY = 8  # runs, from which on a filter helps
_STROKES = {"-": "", "--": "6 3", ":": "2 2", "-.": "6 2 2 2"}


def as_page(runs: Sequence[Run]) -> str:
    """An HTML page about ``runs``, in their order."""
    templates = environment("gluonlab.report", trim_blocks=True)
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
