"""Checks the options and the run of an evaluation (gluonlab evaluate), without importing MXNet."""

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
# The run's settings that are also used for an evaluation. They do not include the devices, so that
# a run on eight GPUs can be evaluated on a laptop.
EVAL_FIELDS = (
    "model", "dataset", "data_dir", "image_size", "workers", "skip_corrupt", "val_split", "batch_size",
    "global_batch_size", "microbatches", "microbatch_size", "seed", "prefetch", "device_cache_bytes",
    "deterministic", "tf32",
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
    """Read the description of the finished run in ``folder``.

    Raises ConfigError if the folder does not contain a finished run.
    """
    try:
        return read_finished_run(folder)
    except DataError as error:
        raise ConfigError(str(error)) from None
