"""The folder of a run, read back: what it was asked for, and how it went."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from gluonlab.errors import DataError
from gluonlab.runs.description import CONFIG, Description, read_description
from gluonlab.runs.metrics import METRICS, read_metrics

Line = Dict[str, Any]
REMEDY = "give folders that gluonlab.run has written (--out, runs/...), and leave this one out"


@dataclass(frozen=True)
class Run:
    """A run's settings (`gluonlab.runs.description.Description.settings`) and the lines of its
    metrics.jsonl, by kind.
    """

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
        return (
            sum(epoch["images"] for epoch in self.epochs) / self.seconds if self.seconds else None
        )

    @property
    def unfinished(self) -> str:
        """``3 of 10 epochs``, or nothing when all were finished."""
        wanted = self.settings.get("epochs")
        return (
            f"{len(self.epochs)} of {wanted} epochs"
            if isinstance(wanted, int) and len(self.epochs) < wanted
            else ""
        )

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
    """All of them, each with a name of its own: its folder's, or as much of its path as tells it
    from the others.

    The folder of a comparison stands for the runs in it. Raises DataError for a folder that is no
    run's, or whose files are damaged, and for a run that is given twice.
    """
    described = [found for path in paths for found in _described(path)]
    places = [path.resolve() for path, _ in described]
    for (path, _), place in zip(described, places):
        if places.count(place) > 1:
            raise DataError(f"{path} is given twice: give each run once")
    return [_read(path, name, found) for (path, found), name in zip(described, _names(places))]


def _names(paths: Sequence[Path]) -> List[str]:
    """The shortest ends of the paths that are all different."""
    depth = 1
    while True:
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            # a folder's may be any bytes
            return [name.encode("utf-8", "replace").decode() for name in names]
        depth += 1


def _described(path: Path) -> List[Tuple[Path, Description]]:
    """A run's folder with its description; for a comparison those of its runs, by numbers of
    devices.
    """
    found = read_description(path, REMEDY)
    if not found.is_comparison:
        return [(path, found)]
    try:
        folders = sorted(
            (folder for folder in path.iterdir() if (folder / CONFIG).exists()), key=_by_number
        )
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {REMEDY}") from None
    if not folders:
        raise DataError(f"{path} is a comparison in which no run has begun: leave it out")
    runs = [(folder, read_description(folder, REMEDY)) for folder in folders]
    for folder, inner in runs:
        if inner.is_comparison:
            raise DataError(f"{folder} is a comparison within another: give it by itself")
    return runs


def _by_number(folder: Path) -> List[Any]:
    """2-devices comes before 10-devices."""
    return [
        int(part) if place % 2 else part
        for place, part in enumerate(re.split("([0-9]+)", folder.name))
    ]


def _read(path: Path, name: str, found: Description) -> Run:
    if not (path / METRICS).is_file():
        raise DataError(f"{path} holds no {METRICS}: {REMEDY}")
    metrics = read_metrics(path)
    kinds = {kind: [line for line in metrics if line["kind"] == kind] for kind in ("step", "epoch")}
    _check_lines(path, kinds)
    return Run(name, path, found.version, found.settings, kinds["step"], kinds["epoch"])


LARGEST = 1e39  # beyond float32, so that no run writes it; and sums of such numbers are finite
COUNT = (1, 2**53)
# What a line must hold, and between which bounds; a whole number where both bounds are.
_STEP = {"step": COUNT, "loss": (-LARGEST, LARGEST), "lr": (0.0, LARGEST)}
_EPOCH = {
    "epoch": COUNT,
    "step": COUNT,
    "images": COUNT,
    "seconds": (1e-9, LARGEST),
    "loss": (-LARGEST, LARGEST),
    "accuracy": (0.0, 1.0),
}
_OPTIONAL = {"validation_loss": (-LARGEST, LARGEST)}


def _check_lines(path: Path, kinds: Dict[str, List[Line]]) -> None:
    """Raise DataError for a number that is missing or cannot be."""
    for kind, needed in (("step", _STEP), ("epoch", _EPOCH)):
        for line in kinds[kind]:
            bounds = {
                **needed,
                **{
                    name: bounds for name, bounds in _OPTIONAL.items() if line.get(name) is not None
                },
            }
            wrong = [
                name
                for name, (least, most) in bounds.items()
                if not _lies_within(line.get(name), least, most)
            ]
            if wrong:
                raise DataError(
                    f"{path / METRICS}: a line of kind {kind!r} has no possible number for "
                    f"{', '.join(wrong)}: leave this run out"
                )


def _lies_within(value: Any, least: float, most: float) -> bool:
    wanted = int if isinstance(least, int) else (int, float)
    # not for NaN
    return isinstance(value, wanted) and not isinstance(value, bool) and least <= value <= most
