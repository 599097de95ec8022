"""config.json: what a run or a comparison was asked for, and what a run uses.

Does not import MXNet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional

from gluonlab.errors import DataError

CONFIG = "config.json"
# Fields of TrainConfig -> the name under which a run's settings tell what came of them.
RESOLVED = {
    "gpus": "devices",
    "require_gpu": "devices",
    "threads": "threads_per_device",
    "image_size": "image_shape",
    "batch_size": "global_batch_size",
    "lr": "learning_rate",
    "scale_lr": "learning_rate",
    "warmup_epochs": "warmup_steps",
    "lr_decay_epochs": "lr_decay_steps",
}
# what is told and written; the training is the same
PRODUCTS = ("memory", "confusion", "export", "out")
DEEPEST = 4  # lists within lists; a run writes less, and Python follows some hundreds only


@dataclass(frozen=True)
class Description:
    """What a folder's config.json says.

    ``asked``: the fields of TrainConfig; ``used``: `gluonlab.training.plan.Plan.settings`; both as
    their gluonlab had them. A comparison uses nothing itself. ``classes``: what
    `gluonlab.data.sets.classes.noted` wrote, or anything; older runs have none.
    """

    file: Path
    asked: Dict[str, Any]
    used: Dict[str, Any] = field(default_factory=dict)
    version: str = ""
    classes: Any = None
    is_comparison: bool = False

    @property
    def settings(self) -> Dict[str, Any]:
        """All that decides how the run goes: what it uses, and what was asked for beyond that,
        whatever fields there may be.
        """
        beyond = {
            name: value
            for name, value in self.asked.items()
            if RESOLVED.get(name, name) not in self.used
        }
        return {
            **self.used,
            **{name: value for name, value in beyond.items() if name not in PRODUCTS},
        }


def read_description(folder: Path, remedy: str) -> Description:
    """What the config.json in this folder says.

    Raises DataError, which ends in the remedy, for a folder that is none, and for a file that is
    missing, damaged or foreign.
    """
    file = folder / CONFIG
    try:
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder: {remedy}")
        if not file.exists():
            raise DataError(f"{folder} holds no {CONFIG}: {remedy}")
        if not file.is_file():  # a pipe would be waited for
            raise DataError(f"{file} cannot be read (it is no file): {remedy}")
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): {remedy}") from None
    except DataError:
        raise
    except (ValueError, RecursionError):
        raise DataError(f"{file} cannot be read (it is no JSON): {remedy}") from None
    content = content if isinstance(content, dict) else {}
    asked, used, version = (
        _settings(content.get("config")),
        _settings(content.get("settings")),
        content.get("gluonlab"),
    )
    if asked is not None and "compare" in content:
        return Description(file, asked, is_comparison=True)
    if asked is None or used is None or not isinstance(version, str):
        raise DataError(f"{file} is not what a run writes: {remedy}")
    return Description(file, asked, used, version, content.get("classes"))


def _settings(value: Any) -> Optional[Dict[str, Any]]:
    """A dictionary of plain values, or of lists and dictionaries that are not too deep to be looked
    at; None for all else.
    """
    return value if isinstance(value, dict) and _depth_up_to(value, DEEPEST) else None


def _depth_up_to(value: Any, levels: int) -> bool:
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_depth_up_to(each, levels - 1) for each in inner)
    return True
