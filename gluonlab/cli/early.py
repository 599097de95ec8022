"""What a run refuses before it loads MXNet, which takes as long as all else before the first step.

The checks are those of the run itself, which has more that need MXNet.
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
    """Raise a UsageError for a folder that a run cannot write, and for names that nothing has.

    ``goes_on``: whether a run may be in the folder already.
    """
    RunDirectory.check(config.out, empty=not goes_on)
    check_dataset(config.dataset)
    check_kvstore(config.kvstore)
    check_topology(config.topology, config.kvstore)


def check_evaluation(folder: str, settings: Iterable[str]) -> None:
    """Raise ConfigError for a folder that holds no finished run, or for settings of the run's."""
    check_given(settings)
    evaluated(Path(folder))


def check_interrupted(folder: str) -> None:
    """Raise DataError for a folder that holds nothing of a run."""
    if (Path(folder) / CHECKPOINTS).is_dir():
        return  # a checkpoint knows what a damaged config.json said
    try:
        read_description(Path(folder), RESUMED)
    except DataError as error:
        raise DataError(f"--resume {error}") from None
