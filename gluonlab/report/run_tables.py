"""The numbers of several runs side by side, and the settings in which they differ."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, List, Optional, Sequence, Tuple

from gluonlab.plain_text import format_decimals
from gluonlab.runs.run_reader import Run

MOST_STALE = 62  # updates of others; a push that met more is counted here, too
HEADINGS = ("run", "devices", "accuracy", "best", "images/s", "per device", "seconds", "")
STALENESS_HEADINGS = ("run", "pushes", "mean", "median", "largest")
EPOCH_HEADINGS = ("epoch", "loss", "test loss", "accuracy", "images/s", "seconds")


def results(runs: Sequence[Run]) -> List[Tuple[str, ...]]:
    """A row per run, for HEADINGS."""
    return [
        (
            run.name,
            str(run.devices),
            _number(run.accuracy, ".4f"),
            _number(run.best_accuracy, ".4f"),
            _number(run.images_per_second, ",.0f"),
            _number(
                run.images_per_second and run.devices and run.images_per_second / run.devices,
                ",.0f",
            ),
            f"{run.seconds:,.1f}",
            run.unfinished,
        )
        for run in runs
    ]


def staleness(runs: Sequence[Run]) -> List[Tuple[str, ...]]:
    """A row for STALENESS_HEADINGS per run whose processes did not wait; empty for another."""
    return [(run.name, *_staleness(run.staleness)) if any(run.staleness) else () for run in runs]


def _staleness(pushes: Sequence[int]) -> Tuple[str, ...]:
    """How many there are, and the mean, the median and the largest number of updates they met."""
    reached = list(accumulate(pushes))
    total, most = reached[-1], max(met for met, times in enumerate(pushes) if times)
    mean = sum(met * times for met, times in enumerate(pushes)) / total
    half = next(met for met, done in enumerate(reached) if 2 * done >= total)
    above = " or more" if most >= MOST_STALE else ""
    return f"{total:,}", f"{mean:.2f}{above}", str(half), f"{most}{above}"


def differences(runs: Sequence[Run]) -> List[Tuple[str, ...]]:
    """(setting, value of each run) for the settings that are not the same in all."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    rows = [(name, *(in_words(run.settings.get(name)) for run in runs)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def in_common(runs: Sequence[Run]) -> List[Tuple[str, str]]:
    """(setting, value) for the settings that all runs share, without those that none was given."""
    different = {row[0] for row in differences(runs)}
    shared = [(name, value) for name, value in runs[0].settings.items() if name not in different]
    return [(name, in_words(value)) for name, value in shared if value is not None]


def epochs(run: Run) -> List[Tuple[str, ...]]:
    """A row per epoch, for EPOCH_HEADINGS."""
    return [
        (
            str(line.epoch),
            format_decimals(line.loss, 4),
            "-" if line.validation_loss is None else format_decimals(line.validation_loss, 4),
            f"{line.accuracy:.4f}",
            f"{line.images_per_second:,.0f}",
            f"{line.training_seconds:.2f}",
        )
        for line in run.epochs
    ]


def best_epoch(run: Run) -> Optional[int]:
    """Which of its epochs had the best test accuracy, from 0 on; the first of several."""
    accuracies = [line.accuracy for line in run.epochs]
    return accuracies.index(max(accuracies)) if accuracies else None


def in_words(value: Any) -> str:
    """A setting as people write it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(in_words(item) for item in value)
    # 0.1 * 3 is 0.3, and no rate is rounded to another
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def as_text(runs: Sequence[Run], width: int = 80) -> str:
    """The results in at most ``width`` columns; long names lose their beginnings."""
    rows = [HEADINGS, *results(runs)]
    columns = [column for column in zip(*rows) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    widths[0] = min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1))
    lines = []
    for row in zip(*columns):
        name = row[0] if len(row[0]) <= widths[0] else f"...{row[0][-(widths[0] - 3) :]}"
        lines.append(
            "  ".join(
                [
                    f"{name:<{widths[0]}}",
                    *(f"{cell:>{size}}" for cell, size in zip(row[1:], widths[1:])),
                ]
            ).rstrip()
        )
    return "\n".join(lines)


def _number(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
