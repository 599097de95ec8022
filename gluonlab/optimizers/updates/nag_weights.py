"""Keeps weights in row order for MXNet's NAG on CPU devices.

Its kernel, in place, reads the weight again after it has written it, and decays that. A convolution
that predicts leaves its weight in blocks, an order of oneDNN's. Kernels read a copy of such a
weight, in rows, and write elsewhere, so this one decays the old weight then: replicas of which some
have predicted part by rate x decay x a step. No other kernel for updates reads what it has written.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import mxnet as mx
from mxnet import nd

from gluonlab.engine.invoke import Call, flattened, settling


class Rows:
    """Brings the ``weights`` that may be in blocks into rows, where ``optimizer`` needs it."""

    def __init__(self, optimizer: Any, weights: Sequence[nd.NDArray]) -> None:
        self._calls: List[Call] = []
        for weight in weights if type(optimizer) is mx.optimizer.NAG else ():
            if len(weight.shape) >= 3:  # a convolution's
                self._calls += settling(flattened(weight))

    def restore(self) -> None:
        """Queue it; the bits of the weights stay."""
        for call in self._calls:
            call()
