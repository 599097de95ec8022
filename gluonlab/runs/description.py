"""What config.json says of a run's folder, read back from this version's and older ones.

Does not import MXNet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional

from gluonlab.errors import DataError
from gluonlab.files.whole import read_bounded
from gluonlab.runs.schema import CONFIG, FORMAT, PARAMETERS

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
MOST_BYTES = 2**24  # of config.json, which has some kilobytes
DEEPEST = 4  # lists within lists; a run writes less, and Python follows some hundreds only


@dataclass(frozen=True)
class Description:
    """What a folder's config.json says.

    ``asked``: the fields of TrainConfig; ``used``: `gluonlab.training.plan.Plan.settings`; both as
    their gluonlab had them. A comparison uses nothing itself. ``classes``: what
    `gluonlab.data.sets.fingerprint.noted` wrote, or anything; older runs have none.
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
        text = read_bounded(file, MOST_BYTES)
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
