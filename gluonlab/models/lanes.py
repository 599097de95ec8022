"""Convolutions whose channels fill the lanes of the CPU's vector registers.

oneDNN 2.4, as MXNet 1.9.1 calls it, has direct convolutions for channels in multiples of 16
(AVX-512) and a slow general path for all others, such as LeNet's 20 and 50. Zero channels up to the
next multiple change nothing in the result: what they contribute is zero, and their gradients are
cut off again. The parameters keep their true shapes.

Whether the additional arithmetic pays depends on the CPU; `lanes` knows the CPUs on which it was
measured to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Sequence

import mxnet as mx
from mxnet.gluon import HybridBlock, nn

from gluonlab.engine.semantics import of_nd

# (family, model) of /proc/cpuinfo -> lanes. Intel 6/85 (Skylake-SP, Cascade Lake): LeNet trains 1.3
# to 1.6 times as fast.
MEASURED = {(6, 85): 16}


def lanes(ctxs: Sequence[mx.Context], cpuinfo: Path = Path("/proc/cpuinfo")) -> int:
    """The multiple to pad channels to on these devices; 1 where padding does not pay.

    It does not pay on GPUs.
    """
    if any(ctx.device_type != "cpu" for ctx in ctxs):
        return 1
    try:
        text = cpuinfo.read_text()
    except OSError:
        return 1
    names = ("cpu family", "model")
    family, model = (re.search(rf"^{name}\s*:\s*(\d+)", text, re.M) for name in names)
    if not (family and model and re.search(r"^flags\s*:.*\bavx512f\b", text, re.M)):
        return 1
    return MEASURED.get((int(family[1]), int(model[1])), 1)


def padded(channels: int, lanes: int) -> int:
    """The next multiple of ``lanes``."""
    return -(-channels // lanes) * lanes


class LaneConv2D(nn.Conv2D):
    """``nn.Conv2D`` with ``padded(channels, lanes)`` channels, of which the added ones are zero.

    Its input is padded in the same way. ``in_channels`` must be given where the input is padded: it
    is the number of true channels.
    """

    def __init__(self, channels: int, kernel_size: int, lanes: int, in_channels: int = 0) -> None:
        super().__init__(channels, kernel_size, in_channels=in_channels)
        self._true = channels
        self._more_in = padded(in_channels, lanes) - in_channels
        self._more_out = padded(channels, lanes) - channels
        self._kwargs["num_filter"] = channels + self._more_out

    @of_nd
    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        weight = _with_zeros(F, weight, self._more_in, axis=1)  # (out, in + more, k, k)
        weight = _with_zeros(F, weight, self._more_out, axis=0)  # (out + more, in + more, k, k)
        bias = _with_zeros(F, bias, self._more_out, axis=0)
        return F.Convolution(x, weight, bias, **self._kwargs)


class TrueChannels(HybridBlock):
    """Cuts off the zero channels: (n, padded(channels, lanes), h, w) -> (n, channels, h, w)."""

    def __init__(self, channels: int, lanes: int) -> None:
        super().__init__()
        self._channels = channels
        self._more = padded(channels, lanes) - channels

    @of_nd
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        if not self._more:
            return x
        return F.slice_axis(x, axis=1, begin=0, end=self._channels)


def _with_zeros(F: Any, array: Any, more: int, axis: int) -> Any:
    if not more:
        return array
    # zeros of a part of the array itself: they lie on its device, whichever that is
    zeros = F.zeros_like(F.slice_axis(array, axis=axis, begin=0, end=more))
    return F.concat(array, zeros, dim=axis)
