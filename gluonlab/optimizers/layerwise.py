"""LARS and LAMB, for large batches: a rate for each parameter, in proportion to its norm.

They look at whole parameters, so these can neither share a bucket's update nor be cut into shards.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.optimizers.adaptive import Usual, WithBetas

SPARED = ("bias", "gamma", "beta")


class _Layerwise(mx.optimizer.Optimizer):  # type: ignore[misc]
    """The common part; the host waits for no norm."""

    def _gradient(self, grad: nd.NDArray) -> nd.NDArray:
        grad, limit = grad * self.rescale_grad, self.clip_gradient
        return grad if limit is None else nd.clip(grad, -limit, limit)

    def _name(self, index: Any) -> str:
        if index in self.param_dict:
            return str(self.param_dict[index].name)
        return str(self.idx2name.get(index, index))


class LARS(_Layerwise):
    """SGD with a rate for each layer.

    v = momentum v + q (g + wd w), w = w - rate v, with q = eta |w| / (|g| + wd |w| + epsilon), or 1
    where a norm is 0.

    You, Gitman, Ginsburg, "Large batch training of convolutional networks", 2017, algorithm 1, with
    the rate outside of the momentum. q is 1 for biases and for the gamma and beta of
    normalisations. MXNet's own corrects the momentum of the first four parameters of a step only,
    and spares nobody under gluon.Trainer, which does not tell it names.
    """

    def __init__(
        self, momentum: float = 0.0, eta: float = 0.001, epsilon: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.momentum, self.eta, self.epsilon = momentum, eta, epsilon

    def create_state(self, index: Any, weight: nd.NDArray) -> Optional[nd.NDArray]:
        """v, or None without momentum."""
        return _zeros(weight) if self.momentum else None

    def update(
        self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Optional[nd.NDArray]
    ) -> None:
        """One parameter, whole."""
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        grad = self._gradient(grad)
        step = grad + wd * weight if wd else grad
        if not self._name(index).endswith(SPARED):
            size, steepness = _norm(weight), _norm(grad)
            divisor = steepness + wd * size + self.epsilon
            step = _scaled(step, _ratio(self.eta * size, divisor, size * steepness))
        if state is not None:
            state *= self.momentum
            state += step
        weight -= lr * (step if state is None else state)


class LAMB(WithBetas, _Layerwise):
    """Adam with a rate for each layer.

    r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + wd w, w = w - rate |w| / |r| r, or
    rate r where a norm is 0.

    You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020,
    algorithm 2, m and v as Adam's. MXNet's own adds squares one by one: its step is off by 0.4 %
    for a parameter of three million elements.
    """

    usual = Usual(learning_rate=0.001, epsilon=1e-6)

    def create_state(self, index: Any, weight: nd.NDArray) -> Tuple[nd.NDArray, nd.NDArray]:
        """m and v."""
        return _zeros(weight), _zeros(weight)

    def update(
        self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Tuple[nd.NDArray, nd.NDArray]
    ) -> None:
        """One parameter, whole."""
        self._update_count(index)
        lr, wd, t = self._get_lr(index), self._get_wd(index), self._index_update_count[index]
        # The first half is element-wise: MXNet's kernel for it is right.
        limits = {"clip_gradient": self.clip_gradient} if self.clip_gradient else {}
        step = nd.lamb_update_phase1(
            weight, grad, *state, t=t, wd=wd, beta1=self.beta1, beta2=self.beta2,
            epsilon=self.epsilon, rescale_grad=self.rescale_grad, **limits,
        )  # fmt: skip
        size, length = _norm(weight), _norm(step)
        weight -= lr * _scaled(step, _ratio(size, length, size * length))


def _zeros(weight: nd.NDArray) -> nd.NDArray:
    return nd.zeros(weight.shape, weight.context, dtype=weight.dtype)


def _norm(array: nd.NDArray) -> nd.NDArray:
    """(1,)."""
    # dot adds in many lanes; norm adds one by one, and loses three digits over some million
    # elements.
    flat = array.reshape((-1,)).astype("float32", copy=False)
    return nd.dot(flat, flat).sqrt()


def _ratio(dividend: nd.NDArray, divisor: nd.NDArray, known: nd.NDArray) -> nd.NDArray:
    """Their quotient, or 1 where ``known`` is 0; all (1,)."""
    return nd.where(known > 0, dividend / divisor, nd.ones_like(divisor))


def _scaled(array: nd.NDArray, factor: nd.NDArray) -> nd.NDArray:
    factor = factor.astype(array.dtype, copy=False)
    return nd.broadcast_mul(array, factor.reshape((1,) * len(array.shape)))
