"""Checks before an evaluation (gluonlab evaluate): its options and its run. Does not import MXNet."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

from gluonlab.config import option_name
from gluonlab.errors import ConfigError, DataError
from gluonlab.runs.run_reader import RunDescription, read_finished_run

# The settings that an evaluation accepts on the command line.
EVALUATION_OPTIONS = (
    "gpus", "devices", "require_gpu", "threads", "strategy", "pipeline_parallel", "cut", "balance",
    "pipeline_schedule", "stages_per_device", "tensor_parallel", "tensor_parallel_mode", "data_dir",
    "workers", "skip_corrupt", "batch_size",
    "global_batch_size", "microbatches", "microbatch_size", "prefetch", "device_cache_bytes",
    "deterministic", "tf32", "confusion", "export", "out",
)  # fmt: skip


def check_evaluation_options(given: Iterable[str]) -> None:
    """Raise ConfigError for a setting that an evaluation does not accept.

    ``given``: names of the settings on the command line.
    """
    for name in given:
        if name not in EVALUATION_OPTIONS:
            raise ConfigError(
                f"{option_name(name)} has no effect on an evaluation, which uses the run's setting: "
                f"remove {option_name(name)}"
            )


def read_evaluated_run(folder: Path) -> RunDescription:
    """Read the description of the finished run in this folder.

    Raises ConfigError if the folder does not contain a finished run.
    """
    try:
        return read_finished_run(folder)
    except DataError as error:
        raise ConfigError(str(error)) from None
