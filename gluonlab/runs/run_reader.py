"""Folders of runs and comparisons, read back: config.json and the lines of metrics.jsonl.

Those of older versions are read, too; what is damaged is refused in one line. Does not import
MXNet.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import MISSING, dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type

from gluonlab.config.option_types import is_positive_integer
from gluonlab.errors import DataError
from gluonlab.files.atomic_files import read_bounded
from gluonlab.plain_text import escape_unprintable
from gluonlab.runs.run_schema import (
    CONFIG,
    CONFUSION,
    FORMAT,
    LINES,
    METRICS,
    PARAMETERS,
    TIMELINE,
    WRONG,
    Epoch,
    MetricsLine,
    StalenessEvent,
    Step,
)

REMEDY = "give folders that gluonlab.run has written (--out, runs/...), and leave this one out"
RESUMED = "give the folder of a run of gluonlab.run"
FINISHED = f"give the folder of a finished run, with {CONFIG} and {PARAMETERS}"
# Fields of TrainConfig -> the setting that says what came of them.
RESOLVED = {
    "gpus": "devices", "require_gpu": "devices", "threads": "threads_per_device",
    "image_size": "image_shape", "batch_size": "global_batch_size", "lr": "learning_rate",
    "scale_lr": "learning_rate", "warmup_epochs": "warmup_steps",
    "lr_decay_epochs": "lr_decay_steps",
}  # fmt: skip
OLD_BACKENDS = {"parameter-server": "dist_sync"}  # as settings called them -> as they do now
# Fields that decide only what a run shows and writes.
PRODUCTS = ("memory", "checkpoint_every", "keep", "confusion", "export", "out")
MOST_CONFIG_BYTES = 2**24  # of config.json, which has some kilobytes
DEEPEST = 4  # lists within lists; a run writes less, and Python follows some hundreds only


@dataclass(frozen=True)
class Description:
    """What a folder's config.json says.

    ``asked``: the fields of TrainConfig; ``used``: `gluonlab.training.plan.Plan.settings`; both as
    their gluonlab had them. A comparison uses nothing itself. ``classes``: what
    `gluonlab.data.sets.classes.noted` wrote, or anything; older runs have none.
    """

    folder: Path
    asked: Dict[str, Any]
    used: Dict[str, Any] = field(default_factory=dict)
    version: str = ""
    classes: Any = None
    is_comparison: bool = False
    format: int = FORMAT

    @property
    def file(self) -> Path:
        """The file that says all this."""
        return self.folder / CONFIG

    @property
    def parameters(self) -> Path:
        """Those of the last finished epoch."""
        return self.folder / PARAMETERS

    @property
    def settings(self) -> Dict[str, Any]:
        """All that decides how the run goes: what it uses, and what else was asked for."""
        done = {*self.used, *PRODUCTS}
        beyond = {k: v for k, v in self.asked.items() if RESOLVED.get(k, k) not in done}
        return {**self.used, **beyond}


def read_finished(folder: Path) -> Description:
    """The description of a run that has parameters. Raises DataError for any other folder."""
    found = read_description(folder, FINISHED)
    if found.is_comparison:
        raise DataError(f"{folder} is a comparison: give the folder of one of the runs in it")
    if not isinstance(found.used.get("model"), str):
        raise DataError(f"{found.file} is not what a run writes: {FINISHED}")
    if not found.parameters.is_file():
        raise DataError(f"{folder} holds no {PARAMETERS}, as no epoch was finished: {FINISHED}")
    return found


def read_description(folder: Path, remedy: str = REMEDY) -> Description:
    """What the config.json in this folder says.

    Raises DataError, which ends in the remedy, for a folder that is none, and for a file that is
    missing, damaged, foreign or of a later format.
    """
    file = folder / CONFIG
    try:
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder: {remedy}")
        if not file.exists():
            raise DataError(f"{folder} holds no {CONFIG}: {remedy}")
        text = read_bounded(file, MOST_CONFIG_BYTES)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): {remedy}") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{file} cannot be read (it is no JSON): {remedy}") from None
    return description(folder, content, str(file), remedy)


def description(folder: Path, content: Any, where: str, remedy: str = REMEDY) -> Description:
    """What the content of a config.json says. ``where`` it stands. Raises DataError, as above."""
    content = content if isinstance(content, dict) else {}
    format, version = content.get("format", 1), content.get("gluonlab")
    asked, used = (_settings(content.get(name)) for name in ("config", "settings"))
    if type(format) is not int or asked is None:
        raise DataError(f"{where} is not what a run writes: {remedy}")
    if format > FORMAT:
        raise DataError(
            f"{where} has format {format}, and this gluonlab reads formats up to {FORMAT}: "
            "use the gluonlab that wrote it, or a later one"
        )
    if "compare" in content:
        return Description(folder, asked, is_comparison=True)
    if used is None or not isinstance(version, str):
        raise DataError(f"{where} is not what a run writes: {remedy}")
    if isinstance(used.get("backend"), str):
        used["backend"] = OLD_BACKENDS.get(used["backend"], used["backend"])
    return Description(folder, asked, used, version, content.get("classes"), format=format)


def _settings(value: Any) -> Optional[Dict[str, Any]]:
    """A dictionary of plain values and of lists and dictionaries that are not too deep, or None."""
    return value if isinstance(value, dict) and _depth_up_to(value, DEEPEST) else None


def _depth_up_to(value: Any, levels: int) -> bool:
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_depth_up_to(each, levels - 1) for each in inner)
    return True


MOST_PICTURE_BYTES = 2**23
MOST_METRICS_BYTES = 2**30  # of metrics.jsonl: ten million steps


@dataclass(frozen=True)
class Run:
    """A run: its settings (`Description.settings`), and the lines that it wrote."""

    name: str
    path: Path
    version: str
    settings: Dict[str, Any]
    lines: List[MetricsLine]

    @property
    def steps(self) -> List[Step]:
        """Those whose losses are known."""
        return [line for line in self.lines if isinstance(line, Step)]

    @property
    def epochs(self) -> List[Epoch]:
        """Those that were finished."""
        return [line for line in self.lines if isinstance(line, Epoch)]

    @property
    def devices(self) -> int:
        """How many devices it trained on, of all processes; 0 where that is not known."""
        return device_count(self.settings)

    @property
    def accuracy(self) -> Optional[float]:
        """Of the last epoch that was finished."""
        return self.epochs[-1].accuracy if self.epochs else None

    @property
    def best_accuracy(self) -> Optional[float]:
        """Of the best epoch."""
        return max((epoch.accuracy for epoch in self.epochs), default=None)

    @property
    def seconds(self) -> float:
        """Of training, without evaluation."""
        return float(sum(epoch.training_seconds for epoch in self.epochs))

    @property
    def images_per_second(self) -> Optional[float]:
        """Over all epochs."""
        return sum(epoch.images for epoch in self.epochs) / self.seconds if self.epochs else None

    @property
    def staleness(self) -> List[int]:
        """Over all epochs, pushes by how many updates of others they met; empty if all waited."""
        told = [line.pushes for line in self.lines if isinstance(line, StalenessEvent)]
        return [sum(of_epochs) for of_epochs in zip_longest(*told, fillvalue=0)]

    def timeline(self) -> Optional[str]:
        """The picture of --profile, in base64; None where there is none.

        An image shows what it holds, and runs nothing. Raises DataError for one that is too large.
        """
        return self._picture(TIMELINE)

    def confusion(self) -> Optional[str]:
        """The picture of --confusion, likewise."""
        return self._picture(CONFUSION)

    def wrong(self) -> Optional[str]:
        """The picture of gluonlab.predict --wrong, where it was put into the folder, likewise."""
        return self._picture(WRONG)

    def _picture(self, name: str) -> Optional[str]:
        try:
            picture = read_bounded(self.path / name, MOST_PICTURE_BYTES)
        except OSError:
            return None
        return base64.b64encode(picture).decode()

    @property
    def unfinished(self) -> str:
        """``3 of 10 epochs``, or nothing when all were finished."""
        wanted, done = self.settings.get("epochs"), len(self.epochs)
        return f"{done} of {wanted} epochs" if isinstance(wanted, int) and done < wanted else ""

    def summary(self) -> Dict[str, Any]:
        """The results as plain values."""
        names = ("devices", "accuracy", "best_accuracy", "images_per_second", "seconds")
        results = {name: getattr(self, name) for name in names}
        return {"run": str(self.path), "epochs": len(self.epochs), **results}


def device_count(settings: Mapping[str, Any]) -> int:
    """How many devices a run had, of all processes; 0 where its settings do not say that."""
    devices, copies = settings.get("devices"), settings.get("copies", 0)
    if not isinstance(devices, list):
        return 0
    of_each = len(devices) // copies if is_positive_integer(copies) else 1  # copy of the network
    return copy_count(settings) * max(1, int(of_each))


def copy_count(settings: Mapping[str, Any]) -> int:
    """How many copies of the network shared each batch; 0 where the settings do not say that.

    Each device has one, unless several share one.
    """
    devices, copies = settings.get("devices"), settings.get("copies", 0)
    counts, processes = settings.get("device_counts"), settings.get("processes", 1)
    if isinstance(counts, list) and all(map(is_positive_integer, counts)):
        return int(sum(counts))
    if not isinstance(devices, list) or not is_positive_integer(processes):
        return 0
    return int((copies if is_positive_integer(copies) else len(devices)) * processes)


def read_runs(paths: Sequence[Path]) -> List[Run]:
    """All of the runs, each with a name of its own: the end of its path, as short as may be.

    The folder of a comparison stands for the runs in it, and so does a folder that is no run's but
    holds some, as runs/ does. Raises DataError for a folder that is no
    run's, or whose files are damaged, and for a run that is given twice.
    """
    described = [found for path in paths for inner in _within(path) for found in _described(inner)]
    places = [found.folder.resolve() for found in described]
    for found, place in zip(described, places):
        if places.count(place) > 1:
            raise DataError(f"{found.folder} is given twice: give each run once")
    return [
        Run(
            name,
            found.folder,
            found.version,
            found.settings,
            read_lines(found.folder, found.format),
        )
        for found, name in zip(described, _short_names(places))
    ]


def _short_names(paths: Sequence[Path]) -> List[str]:
    """The shortest ends of the paths that are all different."""
    depth = 1
    while True:
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            # a folder's may be any bytes
            return [escape_unprintable(name.encode("utf-8", "replace").decode()) for name in names]
        depth += 1


def _within(path: Path) -> List[Path]:
    """The folders of runs and comparisons in a folder that is no run's itself; else it alone."""
    try:
        if path.is_dir() and not (path / CONFIG).exists():
            inside = [folder for folder in path.iterdir() if (folder / CONFIG).exists()]
            return sorted(inside, key=_by_number) or [path]
    except OSError:  # who reads it next says what it is
        pass
    return [path]


def _described(path: Path) -> List[Description]:
    """The description of a run; for a comparison those of its runs, by numbers of devices."""
    found = read_description(path)
    if not found.is_comparison:
        return [found]
    try:
        inside = (folder for folder in path.iterdir() if (folder / CONFIG).exists())
        folders = sorted(inside, key=_by_number)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {REMEDY}") from None
    if not folders:
        raise DataError(f"{path} is a comparison in which no run has begun: leave it out")
    runs = [read_description(folder) for folder in folders]
    for inner in runs:
        if inner.is_comparison:
            raise DataError(f"{inner.folder} is a comparison within another: give it by itself")
    return runs


def _by_number(folder: Path) -> List[Any]:
    """2-devices comes before 10-devices."""
    return [
        int(part) if place % 2 else part
        for place, part in enumerate(re.split("([0-9]+)", folder.name))
    ]


def read_lines(folder: Path, format: int = FORMAT) -> List[MetricsLine]:
    """The lines of a run's metrics.jsonl.

    A last line that a kill cut off, and lines of unknown kinds, are left out. Raises DataError,
    naming the line, for one that is damaged, and for a file that is missing or cannot be read.
    """
    file = folder / METRICS
    if not file.is_file():
        raise DataError(f"{folder} holds no {METRICS}: {REMEDY}")
    try:
        content = read_bounded(file, MOST_METRICS_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}): make it readable, or leave this run out"
        ) from None
    texts = content.split("\n")[:-1]
    lines = (_line(file, number, text, format) for number, text in enumerate(texts, start=1))
    return [line for line in lines if line is not None]


def _line(file: Path, number: int, text: str, format: int) -> Optional[MetricsLine]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or "kind" not in values:
        raise DataError(f"{file}, line {number}: {text[:40]!r} is no line of a run's metrics")
    kind = next((kind for kind in LINES if kind.tag.items() <= values.items()), None)
    return None if kind is None else _checked(kind, values, f"{file}, line {number}", format)


def _checked(
    kind: Type[MetricsLine], values: Dict[str, Any], where: str, format: int
) -> MetricsLine:
    """A line of this kind. Raises DataError for a value that is missing or cannot be."""
    known, wrong = {}, []
    for each in fields(kind):
        formerly = each.metadata.get("formerly")
        key = each.name if format > 1 or formerly is None else formerly
        value = values.get(key)
        if value is None and each.default is not MISSING:
            continue
        if not each.metadata["check"](value):
            wrong.append(key)
        known[each.name] = value
    if wrong:
        raise DataError(
            f"{where}: a line of kind {values['kind']!r} has no possible number for "
            f"{', '.join(wrong)}: leave this run out"
        )
    return kind(**known)
