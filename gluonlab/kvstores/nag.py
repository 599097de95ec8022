"""What MXNet's NAG needs on CPU devices: weights in rows.

Its kernel, in place, reads the weight again after it has written it, and decays that. A convolution that
predicts leaves its weight in blocks, an order of oneDNN's. Kernels read a copy of such a weight, in rows, and
write elsewhere, so this one decays the old weight then: replicas of which some have predicted part by
rate x decay x a step. No other kernel for updates reads what it has written.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import mxnet as mx
from mxnet import nd

from gluonlab.invoke import Attributes, OperatorCall

_TIMES_ONE = Attributes({"scalar": 1})


class Rows:
    """Brings the ``weights`` that may be in blocks into rows, where ``optimizer`` needs that; their bits stay."""

    def __init__(self, optimizer: Any, weights: Sequence[nd.NDArray]) -> None:
        needed = [weight for weight in weights if type(optimizer) is mx.optimizer.NAG and _may_be_in_blocks(weight)]
        firsts = [weight.reshape((-1,))[:1] for weight in needed]
        self._calls: List[OperatorCall] = [OperatorCall("_mul_scalar", [first], first) for first in firsts]

    def restore(self) -> None:
        """Queue it: MXNet rearranges an array before one of its parts is written, and one element is the least."""
        for call in self._calls:
            call(_TIMES_ONE)


def _may_be_in_blocks(weight: nd.NDArray) -> bool:
    """Whether it may be a convolution's."""
    return len(weight.shape) >= 3 and weight.context.device_type == "cpu"
