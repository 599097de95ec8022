"""The folder of a run, read back: what it was asked for, and how it went."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from gluonlab.errors import DataError
from gluonlab.metrics import METRICS, read_metrics

Line = Dict[str, Any]
CONFIG = "config.json"


@dataclass(frozen=True)
class Run:
    """A run's settings (`gluonlab.training.plan.Plan.settings`) and the lines of its metrics.jsonl, by kind."""

    name: str
    path: Path
    version: str
    settings: Dict[str, Any]
    steps: List[Line]
    epochs: List[Line]

    @property
    def devices(self) -> int:
        """How many devices it trained on."""
        devices = self.settings.get("devices")
        return len(devices) if isinstance(devices, list) else 0

    @property
    def accuracy(self) -> Optional[float]:
        """Of the last epoch that was finished."""
        return self.epochs[-1]["accuracy"] if self.epochs else None

    @property
    def best_accuracy(self) -> Optional[float]:
        """Of the best epoch."""
        return max((epoch["accuracy"] for epoch in self.epochs), default=None)

    @property
    def seconds(self) -> float:
        """Of training, without evaluation."""
        return float(sum(epoch["seconds"] for epoch in self.epochs))

    @property
    def images_per_second(self) -> Optional[float]:
        """Over all epochs."""
        return sum(epoch["images"] for epoch in self.epochs) / self.seconds if self.seconds else None

    @property
    def unfinished(self) -> str:
        """``3 of 10 epochs``, or nothing when all were finished."""
        wanted = self.settings.get("epochs")
        return f"{len(self.epochs)} of {wanted} epochs" if isinstance(wanted, int) and len(self.epochs) < wanted else ""

    def summary(self) -> Dict[str, Any]:
        """The results as plain values."""
        return {
            "run": str(self.path),
            "devices": self.devices,
            "epochs": len(self.epochs),
            "accuracy": self.accuracy,
            "best_accuracy": self.best_accuracy,
            "images_per_second": self.images_per_second,
            "seconds": self.seconds,
        }


def read_runs(paths: Sequence[Path]) -> List[Run]:
    """All of them, each with a name of its own: its folder's, or as much of its path as tells it from the others.

    Raises DataError for a folder that is no run's, or whose files are damaged, and for a run that is given twice.
    """
    resolved = [path.resolve() for path in paths]
    for path, place in zip(paths, resolved):
        if resolved.count(place) > 1:
            raise DataError(f"{path} is given twice: give each run once")
    return [_read(path, name) for path, name in zip(paths, _names(resolved))]


def _names(paths: Sequence[Path]) -> List[str]:
    """The shortest ends of the paths that are all different."""
    depth = 1
    while True:
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
        depth += 1


def _read(path: Path, name: str) -> Run:
    for file in (CONFIG, METRICS):
        if not (path / file).is_file():
            raise DataError(
                f"{path} is no run: there is no {file} in it: give folders that gluonlab.run has written (--out, runs/...)"
            )
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        settings, version = dict(config["settings"]), str(config["gluonlab"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path / CONFIG} is damaged ({type(error).__name__}: {error}): leave this run out") from None
    metrics = read_metrics(path)
    kinds = {kind: [line for line in metrics if line["kind"] == kind] for kind in ("step", "epoch")}
    _check_lines(path, kinds)
    return Run(name, path, version, settings, kinds["step"], kinds["epoch"])


_NUMBERS = {"step": ("step", "loss", "lr"), "epoch": ("epoch", "step", "images", "seconds", "loss", "accuracy")}


def _check_lines(path: Path, kinds: Dict[str, List[Line]]) -> None:
    for kind, lines in kinds.items():
        for line in lines:
            wrong = [name for name in _NUMBERS[kind] if not _is_number(line.get(name))]
            if not wrong and kind == "epoch" and line["seconds"] <= 0:
                wrong = ["seconds"]
            if wrong:
                raise DataError(
                    f"{path / METRICS}: a line of kind {kind!r} has no number for {', '.join(wrong)}: leave this run out"
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
