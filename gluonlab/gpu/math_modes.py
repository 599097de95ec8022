"""Sets the GPU arithmetic: float32 or TF32 products, and deterministic or fastest algorithms.

MXNet reads the environment variable for deterministic algorithms when a convolution first runs with
given shapes (cudnn_convolution-inl.h, cudnn_pooling-inl.h), and keeps the algorithm until the
process ends. cuBLAS and cuDNN read the TF32 variable when a GPU first computes, not when they are
loaded. So both settings can be changed after MXNet is imported, but only once per process.

On GPUs of compute capability 8.0 and newer, MXNet requests TF32 from cuBLAS in fully connected
layers (linalg.h), and cuDNN uses TF32 for convolutions by default. TF32 rounds the factors of a
product to 10 bits after the binary point (NVIDIA, "Ampere architecture white paper", 2020). In
gluonlab, TF32 is off by default. So on all GPUs, updates for different numbers of devices agree to
float32 precision. PyTorch 1.12 made the same choice for matrix products, but not for convolutions.
"""

from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Optional, Sequence

from gluonlab.engine import mxnet_setup, openmp_settings
from gluonlab.errors import ConfigError, warn

TF32_SINCE = (8, 0)  # compute capability


class Arithmetic(NamedTuple):
    """The arithmetic that a process uses on GPUs.

    ``deterministic``: whether to use algorithms with bit-reproducible results. ``tf32``: whether
    the factors of float32 products are rounded to TF32, on GPUs that support it.
    """

    deterministic: bool
    tf32: bool

    def in_words(self) -> str:
        """Describe the precision and the algorithms in words, for the run's header."""
        products = "TF32 products if supported" if self.tf32 else "float32 products, no TF32"
        fastest = "fastest algorithms, not reproducible"
        return f"{products}; {'reproducible with the same seed' if self.deterministic else fastest}"


_current_arithmetic: Optional[Arithmetic] = None  # of this process, once it has used GPUs
_exported_values: Dict[str, Optional[str]] = {}  # what the variables were before they were first changed


def resolve_arithmetic(deterministic: bool = False, tf32: Optional[bool] = None) -> Arithmetic:
    """Return the Arithmetic that the options and environment variables request.

    If ``tf32`` is None, NVIDIA_TF32_OVERRIDE decides. If the variable is not set either, TF32 is
    off.
    """
    exported = {
        name: _exported_values.get(name, os.environ.get(name)) for name in mxnet_setup.DETERMINISTIC_ENVIRONMENT
    }
    if tf32 is None:
        allowed = _exported_values.get(mxnet_setup.TF32_VARIABLE, os.environ.get(mxnet_setup.TF32_VARIABLE))
        tf32 = allowed not in (None, "0")
    return Arithmetic(deterministic or exported == mxnet_setup.DETERMINISTIC_ENVIRONMENT, tf32)


def check_arithmetic(requested: Arithmetic, ctxs: Sequence[Any]) -> None:
    """Raise ConfigError if this process has already used a different Arithmetic on GPUs."""
    if _current_arithmetic is None or not _has_gpu(ctxs):
        return
    if requested.tf32 != _current_arithmetic.tf32:
        how = "in TF32" if _current_arithmetic.tf32 else "without TF32"
        option = "--tf32" if requested.tf32 else "--no-tf32"
        raise ConfigError(
            f"{option} cannot be set, because this process has already used GPUs {how}: start a new process"
        )
    if requested.deterministic and not _current_arithmetic.deterministic:
        raise ConfigError(
            "--deterministic cannot be set, because this process has already used GPUs without it and "
            "convolutions keep their algorithms: start a new process"
        )


def use_arithmetic(requested: Arithmetic, ctxs: Sequence[Any]) -> None:
    """Set the arithmetic of the GPUs in ``ctxs``, before their first operation.

    Raises ConfigError if this process has already used a different Arithmetic on GPUs. Only a
    switch from deterministic to fastest algorithms is allowed. This switch causes a warning,
    because existing convolutions stay deterministic.
    """
    global _current_arithmetic
    check_arithmetic(requested, ctxs)
    if not _has_gpu(ctxs):
        return
    if _current_arithmetic is not None and _current_arithmetic.deterministic and not requested.deterministic:
        warn("convolutions that ran with --deterministic keep those algorithms, which may be slower")
    variables = (*mxnet_setup.DETERMINISTIC_ENVIRONMENT, mxnet_setup.TF32_VARIABLE)
    if not _exported_values:
        _exported_values.update({name: os.environ.get(name) for name in variables})
    values: Dict[str, Optional[str]] = {name: _exported_values[name] for name in variables}
    if requested.deterministic:
        values.update(mxnet_setup.DETERMINISTIC_ENVIRONMENT)
    if not requested.tf32:
        values[mxnet_setup.TF32_VARIABLE] = "0"
    elif values[mxnet_setup.TF32_VARIABLE] == "0":
        values[mxnet_setup.TF32_VARIABLE] = None
    openmp_settings.set_variables(values)
    if _current_arithmetic is None and not requested.deterministic:
        _silence_tuning_message(next(ctx for ctx in ctxs if ctx.device_type == "gpu"))
    _current_arithmetic = requested


def _silence_tuning_message(ctx: Any) -> None:
    """Prevent MXNet from printing how to turn off cuDNN's tuning.

    MXNet prints the message when it tunes the first convolution. So this function first runs a
    convolution of a single number without tuning. The time to the first step still shows users how
    long tuning takes.
    """
    from mxnet import nd

    one = nd.ones((1, 1, 1, 1), ctx=ctx)
    nd.Convolution(one, one, kernel=(1, 1), num_filter=1, no_bias=True, cudnn_tune="off").wait_to_read()


def _has_gpu(ctxs: Sequence[Any]) -> bool:
    return any(ctx.device_type == "gpu" for ctx in ctxs)
