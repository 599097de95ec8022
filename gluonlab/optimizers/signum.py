"""Signum, an optimizer that uses only the sign of the momentum, as published."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import nd


class Signum(mx.optimizer.Signum):  # type: ignore[misc]
    """Signum, which takes steps of equal size in the direction of the momentum's sign.

    m = momentum m + (1 - momentum) (g + wd w), w = w - rate sign(m). Without momentum the optimizer
    is signSGD.

    Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: compressed optimization for non-convex
    problems", 2018, algorithms 1 and 2. Without momentum, MXNet's Signum applies weight decay
    outside the sign.
    """

    def create_state(self, index: Any, weight: nd.NDArray) -> nd.NDArray:
        """Return m, even without momentum, because MXNet chooses its kernel by the state."""
        return nd.zeros(weight.shape, weight.context, dtype=weight.dtype)
