"""How GPUs compute: float32 products exactly or in TF32, by algorithms that repeat or the fastest.

MXNet asks the environment for the latter when a convolution first runs with some shapes
(cudnn_convolution-inl.h, cudnn_pooling-inl.h), and keeps the algorithm until the process ends.
cuBLAS and cuDNN read the TF32 setting when a GPU first computes, not when they are loaded. So both
can be chosen after MXNet was imported, but only once in a process.

On GPUs of compute capability 8.0 and newer MXNet asks cuBLAS for TF32 in fully connected layers
(linalg.h), and cuDNN takes it for convolutions where nobody objects: factors are rounded to 10 bits
after the point (NVIDIA, "Ampere architecture white paper", 2020). Here it is off by default. What
gluonlab promises, that any number of devices makes the same update, then holds to float32's
precision on all GPUs alike; it is also what PyTorch decided for matrix products in 1.12, not for
convolutions.
"""

from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Optional, Sequence

from gluonlab.engine import mxnet_setup, openmp_settings
from gluonlab.errors import ConfigError, warn

TF32_SINCE = (8, 0)  # compute capability


class Arithmetic(NamedTuple):
    """How GPUs compute.

    ``deterministic``: by algorithms that repeat their bits. ``tf32``: float32 products with factors
    rounded to TF32, where a GPU can.
    """

    deterministic: bool
    tf32: bool

    def in_words(self) -> str:
        """For people, as a run says it."""
        products = "products in TF32 where a GPU can" if self.tf32 else "exact products, no TF32"
        fastest = "fastest algorithms, bits may vary"
        return f"{products}; {'same seed, same bits' if self.deterministic else fastest}"


_in_use: Optional[Arithmetic] = None  # by the GPUs of this process
_users: Dict[str, Optional[str]] = {}  # what the variables were before they were first changed


def arithmetic(deterministic: bool = False, tf32: Optional[bool] = None) -> Arithmetic:
    """The Arithmetic that options and exported variables ask for.

    ``tf32`` None: as NVIDIA_TF32_OVERRIDE says, and off where that is not exported.
    """
    exported = {
        name: _users.get(name, os.environ.get(name))
        for name in mxnet_setup.DETERMINISTIC_ENVIRONMENT
    }
    if tf32 is None:
        allowed = _users.get(mxnet_setup.TF32_VARIABLE, os.environ.get(mxnet_setup.TF32_VARIABLE))
        tf32 = allowed not in (None, "0")
    return Arithmetic(deterministic or exported == mxnet_setup.DETERMINISTIC_ENVIRONMENT, tf32)


def check_arithmetic(wanted: Arithmetic, ctxs: Sequence[Any]) -> None:
    """Raise ConfigError if the GPUs among ``ctxs`` (mx.Context) can no longer compute like this."""
    if _in_use is None or not _on_gpus(ctxs):
        return
    if wanted.tf32 != _in_use.tf32:
        how = "in TF32" if _in_use.tf32 else "without TF32"
        option = "--tf32" if wanted.tf32 else "--no-tf32"
        raise ConfigError(
            f"{option}: this process has computed on GPUs {how}, which cannot change any more: "
            "start a new process"
        )
    if wanted.deterministic and not _in_use.deterministic:
        raise ConfigError(
            "--deterministic: this process has computed on GPUs without it, "
            "and convolutions keep their algorithms: start a new process"
        )


def use_arithmetic(wanted: Arithmetic, ctxs: Sequence[Any]) -> None:
    """Have the GPUs among ``ctxs`` compute like this, from the first operation on.

    CPU devices need nothing. Raises ConfigError when this process has computed otherwise on GPUs.
    Warns when it has computed deterministically: convolutions that have run then stay so.
    """
    global _in_use
    check_arithmetic(wanted, ctxs)
    if not _on_gpus(ctxs):
        return
    if _in_use is not None and _in_use.deterministic and not wanted.deterministic:
        message = "convolutions that ran with --deterministic keep those algorithms, maybe slower"
        warn(message)
    variables = (*mxnet_setup.DETERMINISTIC_ENVIRONMENT, mxnet_setup.TF32_VARIABLE)
    if not _users:
        _users.update({name: os.environ.get(name) for name in variables})
    chosen: Dict[str, Optional[str]] = {name: _users[name] for name in variables}
    if wanted.deterministic:
        chosen.update(mxnet_setup.DETERMINISTIC_ENVIRONMENT)
    if wanted.tf32:
        exported = _users[mxnet_setup.TF32_VARIABLE]
        chosen[mxnet_setup.TF32_VARIABLE] = None if exported == "0" else exported
    else:
        chosen[mxnet_setup.TF32_VARIABLE] = "0"
    openmp_settings.set_variables(chosen)
    if _in_use is None and not wanted.deterministic:
        _announce_nothing(next(ctx for ctx in ctxs if ctx.device_type == "gpu"))
    _in_use = wanted


def _announce_nothing(ctx: Any) -> None:
    """Keep MXNet from printing, before the first tuning, how cuDNN's tuning can be switched off.

    MXNet prints it when it tunes before it knows any convolution. Here it gets to know one of a
    single number, without tuning. Tuning counts for the time to the first step, which a run
    reports.
    """
    from mxnet import nd

    one = nd.ones((1, 1, 1, 1), ctx=ctx)
    nd.Convolution(
        one, one, kernel=(1, 1), num_filter=1, no_bias=True, cudnn_tune="off"
    ).wait_to_read()


def _on_gpus(ctxs: Sequence[Any]) -> bool:
    return any(ctx.device_type == "gpu" for ctx in ctxs)
