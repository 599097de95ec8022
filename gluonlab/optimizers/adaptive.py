"""Optimizers that divide by the size of past gradients, without the traps of MXNet's.

What MXNet's do otherwise: Adamax divides 0 by 0 for an element whose gradients are all 0, which is
a ReLU's death; Nadam counts each parameter and device as a step of its momentum's schedule;
AdaDelta does not look at the learning rate, and decays weights past it; AdaGrad decays them past
its division; FTML divides by the rate. AdaDelta also changes the gradients. Adam and RMSProp are
MXNet's own, to the bit, but for types other than float32.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.config.option_types import real_number_check


class Usual(NamedTuple):
    """What such an optimizer takes for an argument that is not given."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


class WithBetas(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Takes ``learning_rate``, ``beta1``, ``beta2`` and ``epsilon``, in this order.

    What is None is the ``usual`` one. Raises ConfigError as `check_betas` does.
    """

    usual: Usual

    def __init__(
        self,
        learning_rate: Optional[float] = None,
        beta1: Optional[float] = None,
        beta2: Optional[float] = None,
        epsilon: Optional[float] = None,
        **kwargs: Any,
    ) -> None:
        given = Usual._make((learning_rate, beta1, beta2, epsilon))
        values = (usual if own is None else own for own, usual in zip(given, self.usual))
        rate, self.beta1, self.beta2, self.epsilon = values
        check_betas(self)
        super().__init__(learning_rate=rate, **kwargs)


def check_betas(optimizer: Any) -> None:
    """Raise ConfigError for a ``beta1`` or ``beta2`` that is not from 0 to below 1.

    They are the shares of the old mean of gradients, and of their squares (or of the largest), that
    stay in each step. With others the means would divide by 0, or grow.
    """
    for name in ("beta1", "beta2"):
        setattr(optimizer, name, real_number_check(0, 1)(name, getattr(optimizer, name)))


class Adaptive(mx.optimizer.Optimizer):  # type: ignore[misc]
    """The common part: ``states`` arrays of zeros for each weight, and the gradient.

    It is that of the loss plus wd / 2 |w|^2; ``clip_gradient`` limits each element of it.
    """

    states = 1

    def create_state(self, index: Any, weight: nd.NDArray) -> Tuple[nd.NDArray, ...]:
        """``states`` arrays of zeros, of the weight's shape, type and device."""
        like = dict(shape=weight.shape, ctx=weight.context, dtype=weight.dtype)
        return tuple(nd.zeros(**like) for _ in range(self.states))

    def update(
        self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Tuple[nd.NDArray, ...]
    ) -> None:
        """w = w - rate `direction`, in place; ``grad``, of the weight's shape, stays as it is."""
        self._update_count(index)
        lr, wd, t = self._get_lr(index), self._get_wd(index), self._index_update_count[index]
        grad = grad * self.rescale_grad
        if wd:
            grad += wd * weight
        if self.clip_gradient is not None:
            nd.clip(grad, -self.clip_gradient, self.clip_gradient, out=grad)
        weight -= lr * self.direction(grad, state, t)

    def direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        """What the rate multiplies in update number ``t``, from 1 on; moves ``state`` on."""
        raise NotImplementedError


def above_zero(epsilon: float, array: nd.NDArray) -> float:
    """``epsilon``, or the smallest ordinary number of a type that would make 0 of it."""
    return max(float(epsilon), float(np.finfo(np.dtype(array.dtype)).tiny))


class _WithinType(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Uses, in each update, an epsilon that the weight's type can hold."""

    epsilon: float

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        """One parameter, or a part of one."""
        users: float = self.epsilon
        self.epsilon = above_zero(users, weight)
        try:
            super().update(index, weight, grad, state)
        finally:
            self.epsilon = users


class Adam(_WithinType, mx.optimizer.Adam):  # type: ignore[misc]
    """MXNet's own, with an epsilon that is not 0 in float16.

    There MXNet divides 0 by 0 where there is no gradient. Raises ConfigError as `check_betas` does.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_betas(self)


class RMSProp(_WithinType, mx.optimizer.RMSProp):  # type: ignore[misc]
    """MXNet's own, with such an epsilon and with states of the weight's type.

    MXNet's states are always float32, which does not fit other weights.
    """

    def create_state(self, index: Any, weight: nd.NDArray) -> Tuple[nd.NDArray, ...]:
        """n, and g and delta where ``centered``."""
        states = super().create_state(index, weight)
        return tuple(state.astype(weight.dtype, copy=False) for state in states)


class Adamax(WithBetas, Adaptive):
    """PyTorch's Adamax.

    m = beta1 m + (1 - beta1) g, u = max(beta2 u, |g| + epsilon), w = w - rate / (1 - beta1^t) m /
    u.

    Kingma, Ba, "Adam: a method for stochastic optimization", 2015, algorithm 2, which lacks the
    epsilon.
    """

    states = 2
    usual = Usual(learning_rate=0.002)

    def direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        mean, largest = state
        _fade(mean, self.beta1, grad)
        largest *= self.beta2
        nd.broadcast_maximum(largest, grad.abs() + above_zero(self.epsilon, grad), out=largest)
        return mean / largest / (1 - self.beta1**t)


class Nadam(WithBetas, Adaptive):
    """Adam with Nesterov's momentum, and a schedule of the momentum of its own: PyTorch's NAdam.

    Dozat, "Incorporating Nesterov momentum into Adam", 2016, algorithm 2: beta1 grows from about
    half to itself.
    """

    states = 2
    usual = Usual(learning_rate=0.001)

    def __init__(
        self,
        learning_rate: Optional[float] = None,
        beta1: Optional[float] = None,
        beta2: Optional[float] = None,
        epsilon: Optional[float] = None,
        schedule_decay: float = 0.004,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.schedule_decay = schedule_decay
        self._products: List[float] = [1.0]  # of the momenta of the first t updates

    def direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        mean, square = state
        _fade(mean, self.beta1, grad)
        _fade(square, self.beta2, grad * grad)
        now, later = self._momentum(t), self._momentum(t + 1)
        while len(self._products) <= t:
            self._products.append(self._products[-1] * self._momentum(len(self._products)))
        product = self._products[t]
        ahead = grad * ((1 - now) / (1 - product)) + mean * (later / (1 - product * later))
        return ahead / ((square / (1 - self.beta2**t)).sqrt() + above_zero(self.epsilon, grad))

    def _momentum(self, t: int) -> float:
        return float(self.beta1 * (1 - 0.5 * 0.96 ** (t * self.schedule_decay)))


class AdaGrad(Adaptive):
    """s = s + g^2, w = w - rate g / (sqrt(s) + epsilon): PyTorch's Adagrad.

    Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011, figure 1.
    """

    def __init__(self, learning_rate: float = 0.01, epsilon: float = 1e-10, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.epsilon = epsilon

    def direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        (total,) = state
        total += grad * grad
        return grad / (total.sqrt() + above_zero(self.epsilon, grad))


class AdaDelta(Adaptive):
    """PyTorch's Adadelta, with a rate, which is 1 unless one is given.

    s = rho s + (1 - rho) g^2, d = sqrt(u + epsilon) / sqrt(s + epsilon) g, u = rho u + (1 - rho)
    d^2, w = w - rate d.

    Zeiler, "ADADELTA: an adaptive learning rate method", 2012, algorithm 1.
    """

    states = 2

    def __init__(
        self, learning_rate: float = 1.0, rho: float = 0.9, epsilon: float = 1e-6, **kwargs: Any
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.rho, self.epsilon = rho, epsilon

    def direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        square, update = state
        epsilon = above_zero(self.epsilon, grad)
        _fade(square, self.rho, grad * grad)
        delta = (update + epsilon).sqrt() / (square + epsilon).sqrt() * grad
        _fade(update, self.rho, delta * delta)
        return delta


class FTML(WithBetas, Adaptive):
    """Follow the moving leader, without a division by the rate.

    v = beta2 v + (1 - beta2) g^2, w = w - rate (1 - beta1) / (1 - beta1^t) g / (sqrt(v / (1 -
    beta2^t)) + epsilon).

    Zheng, Kwok, "Follow the moving leader in deep learning", 2017, algorithm 1. There z is kept and
    w = -z / d, with the rate below a line. But -z is always d w of the step before, so what is left
    of z and d is this.
    """

    usual = Usual(learning_rate=0.0025, beta1=0.6)

    def direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        (square,) = state
        _fade(square, self.beta2, grad * grad)
        root = (square / (1 - self.beta2**t)).sqrt() + above_zero(self.epsilon, grad)
        return grad / root * ((1 - self.beta1) / (1 - self.beta1**t))


def _fade(mean: nd.NDArray, decay: float, value: nd.NDArray) -> None:
    """mean = decay mean + (1 - decay) value, in place."""
    mean *= decay
    mean += (1 - decay) * value
