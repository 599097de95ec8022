"""SGD and Nesterov's accelerated gradient by their definitions, on MXNet's kernels."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.optimizers.momentum import FormerRates, check_dense, in_low_precision, step_by


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
