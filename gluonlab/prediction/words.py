"""The table of published speeds and their predictions, as text of 80 columns."""

from __future__ import annotations

from statistics import median
from typing import List, Sequence

from gluonlab.prediction.outcome import wrapped
from gluonlab.prediction.validate import Row, summaries


def validation_text(found: Sequence[Row]) -> str:
    """Every published figure beside its prediction, and the errors by group.

    Fitted figures have a star.
    """
    columns = (
        f"{'GPUs':<13}{'batch':>6} {'store':<10}{'published':>11}{'predicted':>11}{'ratio':>8}"
    )
    lines = ["Published speeds and their predictions, images/s.", "", columns]
    order = list(dict.fromkeys(map(_head, found)))
    head = None
    for row in sorted(found, key=lambda row: order.index(_head(row))):
        figure = row.figure
        if _head(row) != head:
            head = _head(row)
            lines += ["", *wrapped(head, "")]
        gpus = f"{figure.gpus} x {figure.gpu or 'unnamed'}"
        lines.append(
            f"{gpus:<13}{figure.batch:>6.4g} {figure.store:<10}{figure.value:>11,.1f}"
            f"{row.predicted:>11,.1f}{row.ratio:>8.2f}{' *' if figure.fitted else ''}"
        )
    return "\n".join([*lines, "", *_errors(found)])


def _head(row: Row) -> str:
    return f"{' '.join(row.figure.series)}: {row.figure.source}"


def _errors(found: Sequence[Row]) -> List[str]:
    fitted = sum(row.figure.fitted for row in found)
    held_out = [row.ratio for row in found if not row.figure.fitted]
    lines = [
        *wrapped(
            f"{len(found)} figures; {fitted}, with a star, were fitted, {len(held_out)} held out, "
            f"of which predicted/published has the median {median(held_out):.2f}. Errors of those:",
            "",
        ),
        "",
        f"{'':<52}{'figures':>8}{'mean':>6}{'median':>7}{'most':>6}",
    ]
    for one in summaries(found):
        lines.append(
            f"{one.group:<52}{one.figures:>8}{_percent(one.mean):>6}{_percent(one.median):>7}"
            f"{_percent(one.largest):>6}"
        )
    return lines


def _percent(error: float) -> str:
    return f"{error * 100:.0f} %"
