"""LARS and LAMB: optimizers for large batches, which scale learning rates by parameter norms.

Both update whole parameters, so they cannot update a bucket or a shard of a parameter in one call.

In the formulas, w is the parameter, g its gradient, |w| the L2 norm, t the number of updates, and
rate the learning rate.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.optimizers.adaptive import BetaOptimizer, DefaultArguments

EXCLUDED_SUFFIXES = ("bias", "gamma", "beta")


class _Layerwise(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Base class of LARS and LAMB. The host never waits for a norm."""

    def _rescaled_gradient(self, grad: nd.NDArray) -> nd.NDArray:
        grad, limit = grad * self.rescale_grad, self.clip_gradient
        return grad if limit is None else nd.clip(grad, -limit, limit)

    def _parameter_name(self, index: Any) -> str:
        if index in self.param_dict:
            return str(self.param_dict[index].name)
        return str(self.idx2name.get(index, index))


class LARS(_Layerwise):
    """SGD with a learning rate for each layer.

    v = momentum v + q (g + wd w), w = w - rate v, with q = eta |w| / (|g| + wd |w| + epsilon), or 1
    if a norm is 0.

    You, Gitman, Ginsburg, "Large batch training of convolutional networks", 2017, algorithm 1,
    except that the momentum does not include the learning rate. q is 1 for biases and for gamma and
    beta of normalization layers. MXNet's LARS has two defects. First, MXNet corrects the momentum
    only for the first four parameters of a step. Second, MXNet also uses q for biases, gamma and
    beta under gluon.Trainer, which does not pass names.
    """

    def __init__(self, momentum: float = 0.0, eta: float = 0.001, epsilon: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum, self.eta, self.epsilon = momentum, eta, epsilon

    def create_state(self, index: Any, weight: nd.NDArray) -> Optional[nd.NDArray]:
        """Return v, or None without momentum."""
        return _zeros_like(weight) if self.momentum else None

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Optional[nd.NDArray]) -> None:
        """Update one whole parameter, whose norm scales the learning rate."""
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        grad = self._rescaled_gradient(grad)
        step = grad + wd * weight if wd else grad
        if not self._parameter_name(index).endswith(EXCLUDED_SUFFIXES):
            weight_norm, grad_norm = _l2_norm(weight), _l2_norm(grad)
            divisor = grad_norm + wd * weight_norm + self.epsilon
            ratio = _safe_ratio(self.eta * weight_norm, divisor, weight_norm * grad_norm)
            step = _scale_array(step, ratio)
        if state is not None:
            state *= self.momentum
            state += step
        weight -= lr * (step if state is None else state)


class LAMB(BetaOptimizer, _Layerwise):
    """Adam with a learning rate for each layer.

    r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + wd w, w = w - rate |w| / |r| r, or
    w - rate r if a norm is 0.

    You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020,
    algorithm 2, with m and v as in Adam. MXNet's LAMB adds the squares in a norm one by one. So its
    step is wrong by 0.4 % for a parameter with three million elements.
    """

    defaults = DefaultArguments(learning_rate=0.001, epsilon=1e-6)

    def create_state(self, index: Any, weight: nd.NDArray) -> Tuple[nd.NDArray, nd.NDArray]:
        """Return m and v."""
        return _zeros_like(weight), _zeros_like(weight)

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Tuple[nd.NDArray, nd.NDArray]) -> None:
        """Update one whole parameter, whose norm scales the learning rate."""
        self._update_count(index)
        lr, wd, t = self._get_lr(index), self._get_wd(index), self._index_update_count[index]
        # The first half is element-wise, and MXNet's kernel computes it correctly.
        settings = dict(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, rescale_grad=self.rescale_grad)
        if self.clip_gradient:
            settings["clip_gradient"] = self.clip_gradient
        step = nd.lamb_update_phase1(weight, grad, *state, t=t, wd=wd, **settings)
        weight_norm, step_norm = _l2_norm(weight), _l2_norm(step)
        ratio = _safe_ratio(weight_norm, step_norm, weight_norm * step_norm)
        weight -= lr * _scale_array(step, ratio)


def _zeros_like(weight: nd.NDArray) -> nd.NDArray:
    return nd.zeros(weight.shape, weight.context, dtype=weight.dtype)


def _l2_norm(array: nd.NDArray) -> nd.NDArray:
    """Return the L2 norm, of shape (1,)."""
    # dot keeps many partial sums. nd.norm adds the squares one by one, and loses three digits over
    # some million elements.
    flat = array.reshape((-1,)).astype("float32", copy=False)
    return nd.dot(flat, flat).sqrt()


def _safe_ratio(dividend: nd.NDArray, divisor: nd.NDArray, condition: nd.NDArray) -> nd.NDArray:
    """Return dividend / divisor, or 1 if ``condition`` is 0. All arrays have shape (1,)."""
    return nd.where(condition > 0, dividend / divisor, nd.ones_like(divisor))


def _scale_array(array: nd.NDArray, factor: nd.NDArray) -> nd.NDArray:
    factor = factor.astype(array.dtype, copy=False)
    return nd.broadcast_mul(array, factor.reshape((1,) * len(array.shape)))
