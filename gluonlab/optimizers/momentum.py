"""Momentum under a changing learning rate: what keeps the rate out of it.

MXNet's kernels put the rate into the momentum: m' = momentum m - rate g, w' = w + m'. Papers and
PyTorch keep it outside: v' = momentum v + g, w' = w - rate v'. Both are the same while the rate
stays; when it changes, the first goes on with what earlier rates have left. With m = -rate v the
second is the first with ``momentum * rate / former rate`` for the momentum (Goyal et al.,
"Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 3, "momentum
correction").
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.errors import ConfigError

CORRECTED, MXNET = "corrected", "mxnet"
MOMENTUM_RULES = (CORRECTED, MXNET)

# A float32 momentum that was multiplied by a smaller rate would lose digits, and all of them at 0.
SMALLEST_SCALE = 2.0**-50


class FormerRates(mx.optimizer.Optimizer):  # type: ignore[misc]
    """An optimizer that remembers the rate that each of its momenta was last multiplied by.

    ``former_rates[key]`` is that of the current device. As MXNet's counts of updates it is kept for
    each device by itself, since replicas are updated one after the other, and
    `_set_current_context` chooses. A key without an entry has a momentum of 0. A rate of 0, or next
    to it, is never put into a momentum: the former one stays there, and in ``former_rates``.
    """

    def __init__(self, momentum: float = 0.0, **kwargs: Any) -> None:
        if momentum < 0:
            raise ConfigError(f"momentum {momentum:g}: give a number from 0 up")
        super().__init__(momentum=momentum, **kwargs)
        self.former_rates: Dict[Any, float] = {}
        self._all_former_rates: Dict[int, Dict[Any, float]] = {0: self.former_rates}

    def _set_current_context(self, device_id: int) -> None:
        super()._set_current_context(device_id)
        self.former_rates = self._all_former_rates.setdefault(device_id, {})

    def rescale(self, key: Any, lr: float) -> Tuple[float, float]:
        """The rate that goes into the momentum now, and the factor for the momentum so far.

        The first differs from ``lr`` where that is about 0; then only a share of the update may
        reach the weights (`step_by`).
        """
        former = self.former_rates.get(key)
        scale = lr if abs(lr) >= SMALLEST_SCALE else (former or 1.0)
        self.former_rates[key] = scale
        return scale, scale / former if former else 1.0

    def limits(self) -> Dict[str, float]:
        """What every update kernel of MXNet's takes about gradients: scale and clipping."""
        settings = {"rescale_grad": self.rescale_grad}
        if self.clip_gradient:
            settings["clip_gradient"] = self.clip_gradient
        return settings


def step_by(share: float, weight: nd.NDArray, moved: nd.NDArray) -> None:
    """Move ``weight`` by a share of the way to where an update has ``moved`` it."""
    if share == 1.0:
        moved.copyto(weight)
    elif share:
        weight += share * (moved - weight)


def check_dense(optimizer: mx.optimizer.Optimizer, *arrays: nd.NDArray) -> None:
    """Raise ConfigError for sparse arrays, of which MXNet updates only some rows of a momentum."""
    if any(array.stype != "default" for array in arrays):
        name = type(optimizer).__name__
        raise ConfigError(
            f"gluonlab's {name} takes dense parameters and gradients: "
            f"use mx.optimizer.{name} for sparse ones"
        )


def in_low_precision(optimizer: mx.optimizer.Optimizer, weight: nd.NDArray) -> bool:
    """Whether ``optimizer`` keeps a float32 copy of such a weight and updates that."""
    return bool(optimizer.multi_precision and np.dtype(weight.dtype) == np.float16)
