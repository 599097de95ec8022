"""Checks of the settings and the run of an evaluation, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

from gluonlab.config import option_name
from gluonlab.errors import ConfigError, DataError
from gluonlab.runs.run_reader import Description, read_finished

# The settings that an evaluation accepts on the command line.
GIVEN = (
    "gpus", "devices", "require_gpu", "threads", "split", "stages", "cut", "balance",
    "pipeline_schedule", "stages_per_device", "ways", "channels", "data_dir",
    "decoders", "skip_bad", "batch_size",
    "global_batch_size", "microbatches", "microbatch_size", "prefetch", "resident_bytes",
    "deterministic", "tf32", "confusion", "export", "out",
)  # fmt: skip


def check_given(given: Iterable[str]) -> None:
    """Raise ConfigError for a setting that the run determines."""
    for name in given:
        if name not in GIVEN:
            raise ConfigError(
                f"{option_name(name)} has no effect with --evaluate, "
                "which takes it from the run: leave it out"
            )


def evaluated(folder: Path) -> Description:
    """Read the description of the finished run in this folder.

    Raises ConfigError if the folder does not contain a finished run.
    """
    try:
        return read_finished(folder)
    except DataError as error:
        raise ConfigError(f"--evaluate {error}") from None
