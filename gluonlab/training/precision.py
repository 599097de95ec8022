"""What --dtype may be, and where."""

from __future__ import annotations

from typing import Sequence

import mxnet as mx

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, unknown
from gluonlab.parallel.precision import DTYPES


def check_dtype(config: TrainConfig) -> None:
    """Raise ConfigError for an unknown type, and for one that contradicts another setting."""
    if config.dtype not in DTYPES:
        raise ConfigError(unknown("--dtype", config.dtype, DTYPES))
    if config.dtype == "float16" and config.compress is not None:
        raise ConfigError(
            f"--dtype float16 and --compress {config.compress} contradict each other: "
            "an overflow, which the scale of the loss follows, gets lost in 2 bits: "
            "leave one of them out"
        )


def check_devices(config: TrainConfig, ctxs: Sequence[mx.Context]) -> None:
    """Raise ConfigError when these devices cannot compute in the type that is asked for."""
    if config.dtype == "float16" and any(ctx.device_type != "gpu" for ctx in ctxs):
        shown = " ".join(map(str, ctxs))
        raise ConfigError(
            f"--dtype float16 is for GPUs, and MXNet has no float16 matrix products on {shown}: "
            "leave --dtype out, or name GPUs with --devices"
        )
