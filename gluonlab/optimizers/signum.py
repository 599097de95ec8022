"""Signum by its definition, without momentum, too."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import nd


class Signum(mx.optimizer.Signum):  # type: ignore[misc]
    """Steps of one size, by the sign of the momentum; without momentum this is signSGD.

    m = momentum m + (1 - momentum) (g + wd w), w = w - rate sign(m).

    Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: compressed optimisation for non-convex
    problems", 2018, algorithms 1 and 2. MXNet's own takes the weight decay out of the sign when
    there is no momentum, and so means another one by it.
    """

    def create_state(self, index: Any, weight: nd.NDArray) -> nd.NDArray:
        """m, without momentum, too: MXNet chooses its kernel by it."""
        return nd.zeros(weight.shape, weight.context, dtype=weight.dtype)
