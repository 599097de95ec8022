"""Reads the folders of runs and comparisons: config.json and the lines of metrics.jsonl.

`read_description` reads a config.json, and `read_lines` reads a metrics.jsonl. `read_runs` reads
both files of several runs, for reports. Folders from older versions can also be read. MXNet is not
imported.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import MISSING, dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type

from gluonlab.config.option_checks import is_positive_integer
from gluonlab.config.renamed_settings import current_settings
from gluonlab.errors import DataError
from gluonlab.files.atomic_files import read_bounded
from gluonlab.plain_text import escape_unprintable
from gluonlab.renamed import RenamedMember
from gluonlab.runs.run_schema import (
    CONFIG,
    CONFUSION,
    FORMAT,
    LINES,
    METRICS,
    PARAMETERS,
    TIMELINE,
    WRONG_IMAGES,
    Epoch,
    MetricsLine,
    StalenessEvent,
    Step,
)

RUNS_HINT = "pass only run directories, which gluonlab run writes (see --out)"
RUN_HINT = "use a run directory of gluonlab run"
FINISHED_RUN_HINT = f"use the directory of a finished run, with {CONFIG} and {PARAMETERS}"
# fields of TrainConfig -> the used setting that replaces them
RESOLVED_SETTINGS = {
    "gpus": "devices", "require_gpu": "devices", "threads": "threads_per_device",
    "image_size": "image_shape", "batch_size": "global_batch_size", "lr": "learning_rate",
    "scale_lr": "learning_rate", "warmup_epochs": "warmup_steps",
    "lr_decay_epochs": "lr_decay_steps",
}  # fmt: skip
OLD_BACKENDS = {"parameter-server": "dist_sync"}  # old name -> new name
# fields that affect only the output of a run
OUTPUT_FIELDS = ("estimate_memory", "checkpoint_every", "keep_checkpoints", "confusion", "export", "out")
MAX_CONFIG_BYTES = 2**24  # of config.json, which has some kilobytes
MAX_DEPTH = 4  # of nested lists, more than a run writes; Python's recursion is limited


@dataclass(frozen=True)
class RunDescription:
    """The content of a run's config.json.

    Attributes:
        folder: The run's folder.
        requested: The fields of TrainConfig, as the user set them.
        used: The settings that the run used, from `gluonlab.training.plan.Plan.settings`. Empty for
            a comparison.
        version: The version of gluonlab that wrote the file. ``requested`` and ``used`` contain the
            current names of settings, even if the file is older.
        classes: The recorded result of `gluonlab.data.sets.data_fingerprint.classes_fingerprint`;
            None in older runs.
        is_comparison: Whether the folder is a comparison, which contains several runs.
        format: The format of the run's files.
    """

    folder: Path
    requested: Dict[str, Any]
    used: Dict[str, Any] = field(default_factory=dict)
    version: str = ""
    classes: Any = None
    is_comparison: bool = False
    format: int = FORMAT

    @property
    def file(self) -> Path:
        """The path of config.json."""
        return self.folder / CONFIG

    @property
    def parameters_file(self) -> Path:
        """The path of the network's parameters."""
        return self.folder / PARAMETERS

    @property
    def settings(self) -> Dict[str, Any]:
        """All settings that affect the run.

        These are the used settings, and the requested settings that no used setting replaces.
        """
        covered = {*self.used, *OUTPUT_FIELDS}
        others = {k: v for k, v in self.requested.items() if RESOLVED_SETTINGS.get(k, k) not in covered}
        return {**self.used, **others}


def read_finished_run(folder: Path) -> RunDescription:
    """Read the description of a run that has parameters. Raises DataError for any other folder."""
    description = read_description(folder, FINISHED_RUN_HINT)
    if description.is_comparison:
        raise DataError(f"{folder} is the directory of a comparison: use the directory of one of its runs")
    if not isinstance(description.used.get("model"), str):
        raise DataError(f"{description.file} was not written by gluonlab run: {FINISHED_RUN_HINT}")
    if not description.parameters_file.is_file():
        raise DataError(
            f"{folder} contains no {PARAMETERS}, because the run did not finish an epoch: {FINISHED_RUN_HINT}"
        )
    return description


def read_description(folder: Path, hint: str = RUNS_HINT) -> RunDescription:
    """Read the config.json in this folder.

    Raises DataError if the path is not a folder, or if the file is missing, damaged, not written by
    gluonlab, or in a later format. The message ends with ``hint``.
    """
    file = folder / CONFIG
    try:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder: {hint}")
        if not file.exists():
            raise DataError(f"{folder} contains no {CONFIG}: {hint}")
        text = read_bounded(file, MAX_CONFIG_BYTES)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): {hint}") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{file} is not valid JSON: {hint}") from None
    return parse_description(folder, content, str(file), hint)


def parse_description(folder: Path, content: Any, source: str, hint: str = RUNS_HINT) -> RunDescription:
    """Convert the content of a config.json to a `RunDescription`.

    ``source``: the file's name, for messages. Raises DataError if the content is damaged, not
    written by gluonlab, or in a later format. The message ends with ``hint``.
    """
    content = content if isinstance(content, dict) else {}
    format, version = content.get("format", 1), content.get("gluonlab")
    requested, used = (_plain_settings(content.get(name)) for name in ("config", "settings"))
    if type(format) is not int or requested is None:
        raise DataError(f"{source} was not written by gluonlab run: {hint}")
    if format > FORMAT:
        raise DataError(
            f"{source} has format {format}, but this version of gluonlab reads only formats up to {FORMAT}: use "
            "the version that wrote this format, or a later version"
        )
    requested = current_settings(requested)
    if "compare" in content:
        return RunDescription(folder, requested, is_comparison=True)
    if used is None or not isinstance(version, str):
        raise DataError(f"{source} was not written by gluonlab run: {hint}")
    if isinstance(used.get("backend"), str):
        used["backend"] = OLD_BACKENDS.get(used["backend"], used["backend"])
    return RunDescription(folder, requested, current_settings(used), version, content.get("classes"), format=format)


def _plain_settings(value: Any) -> Optional[Dict[str, Any]]:
    """Return ``value`` if it is a dictionary that is not nested too deeply, else None."""
    return value if isinstance(value, dict) and _is_at_most_deep(value, MAX_DEPTH) else None


def _is_at_most_deep(value: Any, levels: int) -> bool:
    """Return True if lists and dictionaries in a value are nested in at most ``levels`` levels."""
    if isinstance(value, (list, dict)):
        items = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_at_most_deep(item, levels - 1) for item in items)
    return True


MAX_PICTURE_BYTES = 2**23
MAX_METRICS_BYTES = 2**30  # of metrics.jsonl: ten million steps


@dataclass(frozen=True)
class RunRecord:
    """A run with its settings (`RunDescription.settings`) and the lines of its metrics.jsonl."""

    name: str
    path: Path
    version: str
    settings: Dict[str, Any]
    lines: List[MetricsLine]

    @property
    def steps(self) -> List[Step]:
        """The steps whose losses have been recorded."""
        return [line for line in self.lines if isinstance(line, Step)]

    @property
    def epochs(self) -> List[Epoch]:
        """The finished epochs."""
        return [line for line in self.lines if isinstance(line, Epoch)]

    @property
    def devices(self) -> int:
        """The number of devices of all processes; 0 if unknown."""
        return device_count(self.settings)

    @property
    def val_accuracy(self) -> Optional[float]:
        """The validation accuracy of the last finished epoch."""
        return self.epochs[-1].val_accuracy if self.epochs else None

    @property
    def best_val_accuracy(self) -> Optional[float]:
        """The validation accuracy of the best epoch."""
        return max((epoch.val_accuracy for epoch in self.epochs), default=None)

    accuracy = RenamedMember("val_accuracy")
    best_accuracy = RenamedMember("best_val_accuracy")

    @property
    def seconds(self) -> float:
        """The training time in seconds, without the time for evaluation."""
        return float(sum(epoch.training_seconds for epoch in self.epochs))

    @property
    def images_per_second(self) -> Optional[float]:
        """The mean training throughput of all epochs."""
        return sum(epoch.images for epoch in self.epochs) / self.seconds if self.epochs else None

    @property
    def staleness(self) -> List[int]:
        """Number of gradient pushes for each staleness, which is counted in updates.

        Element i is the number of pushes that were stale by i updates. The list is empty for a
        synchronous run.
        """
        pushes = [line.pushes for line in self.lines if isinstance(line, StalenessEvent)]
        return [sum(counts) for counts in zip_longest(*pushes, fillvalue=0)]

    def timeline_picture(self) -> Optional[str]:
        """Return the SVG file from --profile in base64, or None if there is no such file.

        An SVG that is embedded as an image cannot run scripts. Raises DataError for a file that is
        too large.
        """
        return self._read_picture(TIMELINE)

    def confusion_picture(self) -> Optional[str]:
        """Return the picture from --confusion in base64, or None if there is none."""
        return self._read_picture(CONFUSION)

    def wrong_picture(self) -> Optional[str]:
        """Return the image grid from ``gluonlab predict --misclassified`` in base64, or None."""
        return self._read_picture(WRONG_IMAGES)

    def _read_picture(self, name: str) -> Optional[str]:
        """Return a picture in the run's folder as base64, or None if it cannot be read."""
        try:
            picture = read_bounded(self.path / name, MAX_PICTURE_BYTES)
        except OSError:
            return None
        return base64.b64encode(picture).decode()

    @property
    def unfinished_text(self) -> str:
        """Text such as ``3 of 10 epochs``, or an empty string for a finished run."""
        planned, done = self.settings.get("epochs"), len(self.epochs)
        return f"{done} of {planned} epochs" if isinstance(planned, int) and done < planned else ""

    def summary(self) -> Dict[str, Any]:
        """Return the results as plain values."""
        names = ("devices", "val_accuracy", "best_val_accuracy", "images_per_second", "seconds")
        results = {name: getattr(self, name) for name in names}
        return {"run": str(self.path), "epochs": len(self.epochs), **results}


def device_count(settings: Mapping[str, Any]) -> int:
    """Return the number of devices of all processes of a run; 0 if unknown."""
    devices, copies = settings.get("devices"), settings.get("copies", 0)
    if not isinstance(devices, list):
        return 0
    devices_per_copy = len(devices) // copies if is_positive_integer(copies) else 1
    return copy_count(settings) * max(1, int(devices_per_copy))


def copy_count(settings: Mapping[str, Any]) -> int:
    """Return the number of model replicas among which each batch was divided; 0 if unknown.

    Each device has a replica, unless several devices share a replica.
    """
    devices, copies = settings.get("devices"), settings.get("copies", 0)
    counts, processes = settings.get("device_counts"), settings.get("processes", 1)
    if isinstance(counts, list) and all(map(is_positive_integer, counts)):
        return int(sum(counts))
    if not isinstance(devices, list) or not is_positive_integer(processes):
        return 0
    return int((copies if is_positive_integer(copies) else len(devices)) * processes)


def read_runs(paths: Sequence[Path]) -> List[RunRecord]:
    """Read runs. The name of each run is the shortest unique end of its path.

    A comparison, or a folder that contains runs such as runs/, is replaced by its runs. Raises
    DataError for a folder that is not a run, for damaged files, and for duplicate runs.
    """
    descriptions = [
        description for path in paths for folder in _run_folders(path) for description in _read_descriptions(folder)
    ]
    folders = [description.folder.resolve() for description in descriptions]
    for description, folder in zip(descriptions, folders):
        if folders.count(folder) > 1:
            raise DataError(f"{description.folder} is listed twice: list each run once")
    return [
        RunRecord(name, run.folder, run.version, run.settings, read_lines(run.folder, run.format))
        for run, name in zip(descriptions, _short_names(folders))
    ]


def _short_names(paths: Sequence[Path]) -> List[str]:
    """Return the shortest unique end of each path."""
    depth = 1
    while True:
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            # a folder's name may not be valid UTF-8
            return [escape_unprintable(name.encode("utf-8", "replace").decode()) for name in names]
        depth += 1


def _run_folders(path: Path) -> List[Path]:
    """Return the folders of runs and comparisons in ``path``, or ``path`` if there are none."""
    try:
        if path.is_dir() and not (path / CONFIG).exists():
            folders = [folder for folder in path.iterdir() if (folder / CONFIG).exists()]
            return sorted(folders, key=_natural_order) or [path]
    except OSError:  # read_description raises the error
        pass
    return [path]


def _read_descriptions(path: Path) -> List[RunDescription]:
    """Read a run's description, or those of a comparison's runs, sorted by number of devices."""
    description = read_description(path)
    if not description.is_comparison:
        return [description]
    try:
        subfolders = (folder for folder in path.iterdir() if (folder / CONFIG).exists())
        folders = sorted(subfolders, key=_natural_order)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {RUNS_HINT}") from None
    if not folders:
        raise DataError(f"{path} is the directory of a comparison whose runs have not started: omit this directory")
    runs = [read_description(folder) for folder in folders]
    for run in runs:
        if run.is_comparison:
            raise DataError(
                f"{run.folder} is a comparison within another comparison: pass the two directories separately"
            )
    return runs


def _natural_order(folder: Path) -> List[Any]:
    """Return a sorting key that puts 2-devices before 10-devices."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split("([0-9]+)", folder.name))]


def read_lines(folder: Path, format: int = FORMAT) -> List[MetricsLine]:
    """Read the lines of a run's metrics.jsonl.

    An incomplete last line and lines of unknown kinds are skipped. Raises DataError for a damaged
    line, and for a file that is missing or unreadable.
    """
    file = folder / METRICS
    if not file.is_file():
        raise DataError(f"{folder} contains no {METRICS}: {RUNS_HINT}")
    try:
        content = read_bounded(file, MAX_METRICS_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): make it readable, or omit this run") from None
    texts = content.split("\n")[:-1]
    lines = (_parse_line(file, number, text, format) for number, text in enumerate(texts, start=1))
    return [line for line in lines if line is not None]


def _parse_line(file: Path, number: int, text: str, format: int) -> Optional[MetricsLine]:
    """Parse line ``number`` of metrics.jsonl; return None for a line of an unknown kind."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or "kind" not in values:
        raise DataError(f"{file}, line {number}: {text[:40]!r} is not a valid line of {METRICS}: omit this run")
    kind = next((kind for kind in LINES if kind.tag.items() <= values.items()), None)
    return None if kind is None else _build_line(kind, values, f"{file}, line {number}", format)


def _build_line(kind: Type[MetricsLine], values: Dict[str, Any], location: str, format: int) -> MetricsLine:
    """Create a line of the class ``kind``. Raises DataError for missing or impossible values."""
    values_by_field, invalid = {}, []
    for line_field in fields(kind):
        old_key = line_field.metadata.get("formerly")
        key = line_field.name if format > 1 or old_key is None else old_key
        earlier_key = line_field.metadata.get("until_format_2")
        if key not in values and earlier_key in values:  # also in a resumed run of format 3
            key = earlier_key
        value = values.get(key)
        if value is None and line_field.default is not MISSING:
            continue
        if not line_field.metadata["check"](value):
            invalid.append(key)
        values_by_field[line_field.name] = value
    if invalid:
        raise DataError(
            f"{location}: this line of kind {values['kind']!r} has no valid value for "
            f"{', '.join(invalid)}: omit this run"
        )
    return kind(**values_by_field)
