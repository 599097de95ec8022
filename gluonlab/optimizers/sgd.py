"""SGD and Nesterov's accelerated gradient by their definitions, on MXNet's kernels.

MXNet's kernels put the rate into the momentum: m' = momentum m - rate g, w' = w + m'. Papers and
PyTorch keep it outside: v' = momentum v + g, w' = w - rate v'. Both are the same while the rate
stays; when it changes, the first goes on with what earlier rates have left. With m = -rate v the
second is the first with ``momentum * rate / former rate`` for the momentum (Goyal et al.,
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


class SGD(FormerRates, mx.optimizer.SGD):  # type: ignore[misc]
    """PyTorch's SGD, and what papers mean by it, under any schedule of the rate.

    v = momentum v + g + wd w, w = w - rate v.

    Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013,
    section 2. Takes what mx.optimizer.SGD takes, dense arrays only, and has the same state, -rate
    v. With a rate that stays the same, or without momentum, it gives the same bits.
    ``gluon.Trainer(params, SGD(learning_rate=0.1, momentum=0.9))``.
    """

    def _update_impl(
        self, indices: Any, weights: Any, grads: Any, states: Any, multi_precision: bool = False
    ) -> None:
        if not self.momentum:
            super()._update_impl(indices, weights, grads, states, multi_precision)
            return
        if not isinstance(indices, (tuple, list)):
            indices, weights, grads, states = [indices], [weights], [grads], [states]
        check_dense(self, *weights, *grads)
        self._update_count(indices)
        together: Dict[float, List[Tuple[List[nd.NDArray], float, float]]] = {}
        for place, (lr, wd) in enumerate(zip(self._get_lrs(indices), self._get_wds(indices))):
            weight, grad, state = weights[place], grads[place], states[place]
            scale, ratio = self.rescale(indices[place], lr)
            if scale == lr:
                arrays = [weight, grad, *(state if multi_precision else [state])]
                together.setdefault(self.momentum * ratio, []).append((arrays, lr, wd))
            else:
                self.move_a_little(weight, grad, state, lr, scale, ratio, wd)
        for momentum, some in together.items():
            self._update_together(momentum, some, multi_precision)

    def _update_together(
        self, momentum: float, some: "Sequence[Tuple[List[nd.NDArray], float, float]]", low: bool
    ) -> None:
        """Update several parameters that have the same momentum in one call, as MXNet does."""
        update = nd.multi_mp_sgd_mom_update if low else nd.multi_sgd_mom_update
        arrays, lrs, wds = zip(*some)
        flat = [array for of_one in arrays for array in of_one]
        weights = [of_one[0] for of_one in arrays]
        settings = dict(self.limits(), num_weights=len(some), momentum=momentum, lrs=lrs, wds=wds)
        update(*flat, out=weights, **settings)

    def move_a_little(
        self,
        weight: nd.NDArray,
        grad: nd.NDArray,
        state: Any,
        lr: float,
        scale: float,
        ratio: float,
        wd: float,
    ) -> None:
        """The update for a rate close to 0; ``scale`` and ``ratio`` are what `rescale` gave."""
        momentum, target = state if in_low_precision(self, weight) else (state, weight)
        settings = dict(self.limits(), lr=scale, wd=wd, momentum=self.momentum * ratio)
        moved = nd.sgd_mom_update(target, grad.astype(target.dtype), momentum, **settings)
        step_by(lr / scale, target, moved)
        if target is not weight:
            nd.cast(target, dtype=weight.dtype, out=weight)


class NAG(FormerRates, mx.optimizer.NAG):  # type: ignore[misc]
    """PyTorch's SGD with nesterov=True: Nesterov's accelerated gradient.

    v = momentum v + g + wd w, w = w - rate (g + wd w + momentum v).

    Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013,
    equations 3 and 4, with w at the place that it looks ahead to. Takes what mx.optimizer.NAG takes
    and has the same state, -rate v. MXNet's own puts the rate into the momentum, and there decays
    the weight that it has just updated: its kernel, in place, reads what it wrote.
    """

    def _update_impl(
        self,
        index: Any,
        weight: nd.NDArray,
        grad: nd.NDArray,
        state: Any,
        multi_precision: bool = False,
    ) -> None:
        if not self.momentum:
            super()._update_impl(index, weight, grad, state, multi_precision)
            return
        check_dense(self, weight, grad)
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        momentum, target = state if in_low_precision(self, weight) else (state, weight)
        scale, ratio = self.rescale(index, lr)
        if ratio != 1.0:
            # the kernel has one number for the momentum's decay and for the step ahead
            momentum *= ratio
        in_place = scale == lr and not wd
        settings = dict(self.limits(), lr=scale, wd=wd, momentum=self.momentum)
        grad, out = grad.astype(target.dtype, copy=False), target if in_place else None
        moved = nd.nag_mom_update(target, grad, momentum, out=out, **settings)
        if not in_place:
            step_by(lr / scale, target, moved)
        if target is not weight:
            nd.cast(target, dtype=weight.dtype, out=weight)
