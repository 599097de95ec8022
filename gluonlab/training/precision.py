"""Mixed precision: a network's matrix products and convolutions in float16, and in float32 whatever adds up or is kept.

Parameters, their gradients, the optimizer's states, running statistics, scores and the loss stay float32; so kvstores, files and
exports are the same as ever (Micikevicius et al., "Mixed precision training", 2018, section 3.1). The network's graph gets
operators that cast, by MXNet's own lists of what gains from float16 and of what would suffer. mxnet.contrib.amp.init would do that
to every network of the process, by replacing MXNet's functions; converting one graph changes nothing else.
"""

from __future__ import annotations

from typing import Callable, Iterable, Sequence

import mxnet as mx
from mxnet.contrib import amp

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, unknown

Conversion = Callable[[mx.sym.Symbol], mx.sym.Symbol]

DTYPES = ("float32", "float16")

HALF = tuple(amp.list_lp16_ops("float16"))  # Convolution, FullyConnected, ...
FULL = tuple(amp.list_fp32_ops("float16"))  # exponents, powers, sums, norms, ...; what is in neither list follows its inputs


def as_it_is(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """The same graph: everything is float32."""
    return graph


def mixed_precision(graph: mx.sym.Symbol, half: Iterable[str] = HALF, full: Iterable[str] = FULL) -> mx.sym.Symbol:
    """The same graph with the operators ``half`` in float16 and those in ``full`` in float32.

    Inputs and outputs are float32, with the same names of inputs. BatchNorm takes float16 images, and computes statistics and
    keeps parameters in float32.
    """
    return amp.convert_symbol(graph, "float16", target_dtype_ops=list(half), fp32_ops=list(full))


def for_sync_bn(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """`mixed_precision` with float32 images for BatchNorm, which `gluonlab.training.sync_bn` then takes apart into sums."""
    return mixed_precision(graph, full=(*FULL, "BatchNorm"))


def conversion(config: TrainConfig, device_count: int) -> Conversion:
    """What --dtype does to the graph of a network."""
    if config.dtype == "float32":
        return as_it_is
    return for_sync_bn if config.sync_bn and device_count > 1 else mixed_precision


def check_dtype(config: TrainConfig) -> None:
    """Raise ConfigError for an unknown type, and for one that contradicts another setting."""
    if config.dtype not in DTYPES:
        raise ConfigError(unknown("--dtype", config.dtype, DTYPES))
    if config.dtype == "float16" and config.compress is not None:
        raise ConfigError(
            f"--dtype float16 and --compress {config.compress} contradict each other: an overflow, which the scale of the loss "
            "follows, gets lost in 2 bits: leave one of them out"
        )


def check_devices(config: TrainConfig, ctxs: Sequence[mx.Context]) -> None:
    """Raise ConfigError when these devices cannot compute in the type that is asked for."""
    if config.dtype == "float16" and any(ctx.device_type != "gpu" for ctx in ctxs):
        shown = " ".join(map(str, ctxs))
        raise ConfigError(
            f"--dtype float16 is for GPUs, and MXNet has no float16 matrix products on {shown}: "
            "leave --dtype out, or name GPUs with --devices"
        )
