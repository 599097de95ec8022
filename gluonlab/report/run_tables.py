"""Makes the tables of a report about runs: results, epochs, staleness, and settings."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, List, Optional, Sequence, Tuple

from gluonlab.plain_text import format_decimals
from gluonlab.runs.run_reader import RunRecord

MAX_STALENESS = 62  # index of the last counter, which also counts larger values
HEADINGS = ("run", "devices", "val acc.", "best", "images/s", "per device", "seconds", "")
STALENESS_HEADINGS = ("run", "pushes", "mean", "median", "largest")
EPOCH_HEADINGS = ("epoch", "loss", "val loss", "val accuracy", "images/s", "seconds")


def result_rows(runs: Sequence[RunRecord]) -> List[Tuple[str, ...]]:
    """Return a row of results for each run, with the columns HEADINGS."""
    return [
        (
            run.name,
            str(run.devices),
            _format_number(run.val_accuracy, ".4f"),
            _format_number(run.best_val_accuracy, ".4f"),
            _format_number(run.images_per_second, ",.0f"),
            _format_number(run.images_per_second and run.devices and run.images_per_second / run.devices, ",.0f"),
            f"{run.seconds:,.1f}",
            run.unfinished_text,
        )
        for run in runs
    ]


def staleness_rows(runs: Sequence[RunRecord]) -> List[Tuple[str, ...]]:
    """Return a row for each run, with the columns STALENESS_HEADINGS; [] if no push was stale."""
    return [(run.name, *_staleness_row(run.staleness)) if any(run.staleness) else () for run in runs]


def _staleness_row(pushes: Sequence[int]) -> Tuple[str, ...]:
    """Return the number of pushes, and the mean, median and largest staleness.

    ``pushes[s]``: the number of pushes with staleness s.
    """
    cumulative = list(accumulate(pushes))
    total, largest = cumulative[-1], max(staleness for staleness, count in enumerate(pushes) if count)
    mean = sum(staleness * count for staleness, count in enumerate(pushes)) / total
    median = next(staleness for staleness, pushes_so_far in enumerate(cumulative) if 2 * pushes_so_far >= total)
    more_text = " or more" if largest >= MAX_STALENESS else ""
    return f"{total:,}", f"{mean:.2f}{more_text}", str(median), f"{largest}{more_text}"


def setting_differences(runs: Sequence[RunRecord]) -> List[Tuple[str, ...]]:
    """Return (setting, value of each run) for settings that differ between runs."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    rows = [(name, *(format_setting(run.settings.get(name)) for run in runs)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def shared_settings(runs: Sequence[RunRecord]) -> List[Tuple[str, str]]:
    """Return (setting, value) for settings that are equal in all runs and not None."""
    different = {row[0] for row in setting_differences(runs)}
    equal = [(name, value) for name, value in runs[0].settings.items() if name not in different]
    return [(name, format_setting(value)) for name, value in equal if value is not None]


def epoch_rows(run: RunRecord) -> List[Tuple[str, ...]]:
    """Return a row for each epoch of a run, with the columns EPOCH_HEADINGS."""
    return [
        (
            str(line.epoch),
            format_decimals(line.loss, 4),
            "-" if line.val_loss is None else format_decimals(line.val_loss, 4),
            f"{line.val_accuracy:.4f}",
            f"{line.images_per_second:,.0f}",
            f"{line.training_seconds:.2f}",
        )
        for line in run.epochs
    ]


def best_epoch_index(run: RunRecord) -> Optional[int]:
    """Return the index of the first epoch with the best validation accuracy."""
    accuracies = [line.val_accuracy for line in run.epochs]
    return accuracies.index(max(accuracies)) if accuracies else None


def format_setting(value: Any) -> str:
    """Return the value of a setting as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(format_setting(item) for item in value)
    # 0.1 * 3 becomes 0.3, and different learning rates stay different
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def format_results(runs: Sequence[RunRecord], width: int = 80) -> str:
    """Return the results in at most ``width`` columns. Long names are cut at the start."""
    rows = [HEADINGS, *result_rows(runs)]
    columns = [column for column in zip(*rows) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    widths[0] = min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1))
    lines = []
    for row in zip(*columns):
        name = row[0] if len(row[0]) <= widths[0] else f"...{row[0][-(widths[0] - 3) :]}"
        cells = [f"{name:<{widths[0]}}", *(f"{cell:>{size}}" for cell, size in zip(row[1:], widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _format_number(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
