"""Checks of a run that do not need MXNet, made before MXNet is loaded.

Loading MXNet takes as long as everything else before the first step. The run makes the same checks
again, and others that need MXNet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

from gluonlab.config import TrainConfig
from gluonlab.data.sets.registry import check_dataset
from gluonlab.errors import DataError
from gluonlab.kvstores import check_kvstore, check_topology
from gluonlab.runs.description import RESUMED, read_description
from gluonlab.runs.schema import CHECKPOINTS
from gluonlab.runs.writer import RunDirectory
from gluonlab.training.evaluated import check_given, evaluated


def check_early(config: TrainConfig, goes_on: bool = False) -> None:
    """Raise a UsageError if a run cannot write its folder, or if a name in the config is unknown.

    ``goes_on``: whether the folder may already contain a run.
    """
    RunDirectory.check(config.out, empty=not goes_on)
    check_dataset(config.dataset)
    check_kvstore(config.kvstore)
    check_topology(config.topology, config.kvstore)


def check_evaluation(folder: str, settings: Iterable[str]) -> None:
    """Raise ConfigError if the folder has no finished run, or for a setting that the run fixes."""
    check_given(settings)
    evaluated(Path(folder))


def check_interrupted(folder: str) -> None:
    """Raise DataError if the folder does not contain a run."""
    if (Path(folder) / CHECKPOINTS).is_dir():
        return  # a checkpoint also contains the settings, if config.json is damaged
    try:
        read_description(Path(folder), RESUMED)
    except DataError as error:
        raise DataError(f"--resume {error}") from None
