"""metrics.jsonl: what a run notes while it goes on, one JSON object a line.

Does not import MXNet.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

from gluonlab.errors import DataError

METRICS = "metrics.jsonl"


class StepLoss(NamedTuple):
    """A finished step: its number in the run (from 1), its images, and the mean loss of these."""

    step: int
    images: int
    loss: float


def read_metrics(run: Path) -> List[Dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a last line that a kill cut off is left out.

    Raises DataError, naming the line, for one that is no JSON object with a ``kind``, and for a
    file that cannot be read.
    """
    try:
        lines = (run / METRICS).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise DataError(
            f"{run / METRICS} cannot be read ({error.strerror}): "
            "make it readable, or leave this run out"
        ) from None
    return [_parsed(run / METRICS, number, line) for number, line in enumerate(lines[:-1], start=1)]


def _parsed(path: Path, number: int, line: str) -> Dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or "kind" not in values:
        raise DataError(f"{path}, line {number}: {line[:40]!r} is no line of a run's metrics")
    return values
