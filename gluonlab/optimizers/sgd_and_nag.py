"""SGD and Nesterov's accelerated gradient as published, computed with MXNet's kernels.

There are two momentum rules. Here w is the weight, g the gradient, rate the learning rate, and m
and v are states:

- In MXNet's kernels, the momentum includes the rate: m' = momentum m - rate g, w' = w + m'.
- In papers and PyTorch, the momentum does not include the rate: v' = momentum v + g, w' = w - rate
  v'.

Both rules are equivalent while the rate is constant. When the rate changes, MXNet's rule still
applies the old rate to earlier gradients. This module computes the second rule with MXNet's
kernels: with m = -rate v, the momentum is ``momentum * rate / former rate`` (Goyal et al.,
"Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 3, "momentum
correction").
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.errors import ConfigError

CORRECTED, MXNET = "corrected", "mxnet"
MOMENTUM_RULES = (CORRECTED, MXNET)

# The smallest rate that is included in a momentum. With smaller rates, a float32 momentum would
# lose digits, and with a rate of 0 all of them.
MIN_SCALE = 2.0**-50


class MomentumCorrection(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Base class of optimizers that correct the momentum when the learning rate changes.

    ``former_rates[key]`` is the rate that is included in the key's momentum on the current device.
    Each device has its own rates, like MXNet's update counts, because replicas are updated one
    after the other. `_set_current_context` sets the device. A key without an entry has a momentum
    of 0. If the rate is close to 0, the momentum and ``former_rates`` keep the former rate.
    """

    def __init__(self, momentum: float = 0.0, **kwargs: Any) -> None:
        if momentum < 0:
            raise ConfigError(f"momentum={momentum:g}: must be at least 0")
        super().__init__(momentum=momentum, **kwargs)
        self.former_rates: Dict[Any, float] = {}
        self._all_former_rates: Dict[int, Dict[Any, float]] = {0: self.former_rates}

    def _set_current_context(self, device_id: int) -> None:
        super()._set_current_context(device_id)
        self.former_rates = self._all_former_rates.setdefault(device_id, {})

    def rescale_momentum(self, key: Any, lr: float) -> Tuple[float, float]:
        """Return (rate, factor): the rate in the new momentum, and the old momentum's factor.

        If ``lr`` is close to 0, the returned rate is larger than ``lr``. The caller must then apply
        only the fraction lr / rate of the update to the weights (`lerp_weight`).
        """
        former = self.former_rates.get(key)
        scale = lr if abs(lr) >= MIN_SCALE else (former or 1.0)
        self.former_rates[key] = scale
        return scale, scale / former if former else 1.0

    def gradient_settings(self) -> Dict[str, float]:
        """Return the arguments with which MXNet's update kernels scale and clip gradients."""
        settings = {"rescale_grad": self.rescale_grad}
        if self.clip_gradient:
            settings["clip_gradient"] = self.clip_gradient
        return settings


def lerp_weight(share: float, weight: nd.NDArray, updated: nd.NDArray) -> None:
    """Move ``weight`` in place toward ``updated``, by ``share`` (0 to 1) of the distance."""
    if share == 1.0:
        updated.copyto(weight)
    elif share:
        weight += share * (updated - weight)


def check_dense(optimizer: mx.optimizer.Optimizer, *arrays: nd.NDArray) -> None:
    """Raise ConfigError for sparse arrays: MXNet would update only some rows of their momentum."""
    if any(array.stype != "default" for array in arrays):
        name = type(optimizer).__name__
        raise ConfigError(
            f"gluonlab's {name} supports only dense parameters and gradients: use mx.optimizer.{name} for sparse arrays"
        )


def has_master_copy(optimizer: mx.optimizer.Optimizer, weight: nd.NDArray) -> bool:
    """Return whether ``optimizer`` updates a float32 master copy of the weight."""
    return bool(optimizer.multi_precision and np.dtype(weight.dtype) == np.float16)


class SGD(MomentumCorrection, mx.optimizer.SGD):  # type: ignore[misc]
    """SGD as in papers and in PyTorch, under any learning-rate schedule.

    v = momentum v + g + wd w, w = w - rate v.

    Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013,
    section 2. This class accepts dense arrays and the arguments of mx.optimizer.SGD, and has the
    same state, -rate v. With a constant rate or without momentum, its results are bit-identical to
    those of MXNet's SGD. Example: ``gluon.Trainer(params, SGD(learning_rate=0.1, momentum=0.9))``.
    """

    # `gluonlab run` does not call this method. It uses `optimizer_step.MultiDeviceSGD`, which
    # computes the same updates on all devices.

    def _update_impl(self, indices: Any, weights: Any, grads: Any, states: Any, multi_precision: bool = False) -> None:
        """Update parameters, and rescale their momentum if the learning rate has changed."""
        if not self.momentum:
            super()._update_impl(indices, weights, grads, states, multi_precision)
            return
        if not isinstance(indices, (tuple, list)):
            indices, weights, grads, states = [indices], [weights], [grads], [states]
        check_dense(self, *weights, *grads)
        self._update_count(indices)
        groups: Dict[float, List[Tuple[List[nd.NDArray], float, float]]] = {}  # by momentum
        rates = zip(self._get_lrs(indices), self._get_wds(indices))
        for index, weight, grad, state, (lr, wd) in zip(indices, weights, grads, states, rates):
            scale, ratio = self.rescale_momentum(index, lr)
            if scale == lr:
                arrays = [weight, grad, *(state if multi_precision else [state])]
                groups.setdefault(self.momentum * ratio, []).append((arrays, lr, wd))
            else:
                self.update_with_tiny_rate(weight, grad, state, lr, scale, ratio, wd)
        for momentum, group in groups.items():
            self._update_group(momentum, group, multi_precision)

    def _update_group(
        self, momentum: float, group: "Sequence[Tuple[List[nd.NDArray], float, float]]", multi_precision: bool
    ) -> None:
        """Update parameters with the same momentum in one call."""
        update = nd.multi_mp_sgd_mom_update if multi_precision else nd.multi_sgd_mom_update
        arrays, lrs, wds = zip(*group)
        inputs = [array for param_arrays in arrays for array in param_arrays]
        weights = [param_arrays[0] for param_arrays in arrays]
        settings = dict(self.gradient_settings(), momentum=momentum, lrs=lrs, wds=wds)
        update(*inputs, out=weights, num_weights=len(group), **settings)

    def update_with_tiny_rate(
        self, weight: nd.NDArray, grad: nd.NDArray, state: Any, lr: float, scale: float, ratio: float, wd: float
    ) -> None:
        """Update a weight with a rate close to 0.

        ``scale`` and ``ratio`` are the results of `rescale_momentum`.
        """
        momentum, target = state if has_master_copy(self, weight) else (state, weight)
        settings = dict(self.gradient_settings(), lr=scale, wd=wd, momentum=self.momentum * ratio)
        updated = nd.sgd_mom_update(target, grad.astype(target.dtype), momentum, **settings)
        lerp_weight(lr / scale, target, updated)
        if target is not weight:
            nd.cast(target, dtype=weight.dtype, out=weight)


class NAG(MomentumCorrection, mx.optimizer.NAG):  # type: ignore[misc]
    """PyTorch's SGD with nesterov=True: Nesterov's accelerated gradient.

    v = momentum v + g + wd w, w = w - rate (g + wd w + momentum v).

    Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013,
    equations 3 and 4, with w at the lookahead position. This class accepts the arguments of
    mx.optimizer.NAG and has the same state, -rate v. In MXNet's NAG, the momentum includes the
    rate, and weight decay uses the updated weight, because the kernel works in place and reads what
    it wrote.
    """

    def _update_impl(
        self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any, multi_precision: bool = False
    ) -> None:
        """Update a parameter, and rescale its momentum if the learning rate has changed."""
        if not self.momentum:
            super()._update_impl(index, weight, grad, state, multi_precision)
            return
        check_dense(self, weight, grad)
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        momentum, target = state if has_master_copy(self, weight) else (state, weight)
        scale, ratio = self.rescale_momentum(index, lr)
        if ratio != 1.0:
            # not by the kernel, because its momentum argument is also the lookahead factor
            momentum *= ratio
        in_place = scale == lr and not wd
        settings = dict(self.gradient_settings(), lr=scale, wd=wd, momentum=self.momentum)
        grad, out = grad.astype(target.dtype, copy=False), target if in_place else None
        updated = nd.nag_mom_update(target, grad, momentum, out=out, **settings)
        if not in_place:
            lerp_weight(lr / scale, target, updated)
        if target is not weight:
            nd.cast(target, dtype=weight.dtype, out=weight)
