"""config.json: what a run or a comparison was asked for, and what a run uses. Does not import MXNet."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional

from gluonlab.errors import DataError

CONFIG = "config.json"
DEEPEST = 4  # lists within lists; a run writes less, and Python follows some hundreds only


@dataclass(frozen=True)
class Description:
    """What a folder's config.json says.

    ``asked``: the fields of TrainConfig; ``used``: `gluonlab.training.plan.Plan.settings`, empty for a comparison.
    """

    file: Path
    asked: Dict[str, Any]
    used: Dict[str, Any] = field(default_factory=dict)
    version: str = ""
    is_comparison: bool = False


def read_description(folder: Path, remedy: str) -> Description:
    """What the config.json in this folder says.

    Raises DataError, which ends in the remedy, for a folder that is none, and for a file that is missing, damaged or foreign.
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
    asked, used, version = _settings(content.get("config")), _settings(content.get("settings")), content.get("gluonlab")
    if asked is not None and "compare" in content:
        return Description(file, asked, is_comparison=True)
    if asked is None or used is None or not isinstance(version, str):
        raise DataError(f"{file} is not what a run writes: {remedy}")
    return Description(file, asked, used, version)


def _settings(value: Any) -> Optional[Dict[str, Any]]:
    """A dictionary of plain values, or of lists and dictionaries that are not too deep to be looked at; None for all else."""
    return value if isinstance(value, dict) and _depth_up_to(value, DEEPEST) else None


def _depth_up_to(value: Any, levels: int) -> bool:
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_depth_up_to(each, levels - 1) for each in inner)
    return True
