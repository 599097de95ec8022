"""Adaptive optimizers without the defects of MXNet's classes.

- MXNet's Adamax divides 0 by 0 if an element's gradients were always 0, as after a dead ReLU.
- MXNet's Nadam advances the momentum schedule for each parameter and each device.
- MXNet's AdaDelta ignores the learning rate, decays weights separately, and overwrites gradients.
- MXNet's AdaGrad adds the weight decay after the division, instead of before.
- MXNet's FTML divides by the learning rate.
- For float32, Adam and RMSProp are bit-identical to MXNet's. For other types they are corrected.

In the formulas, w is the weight, g the gradient (including weight decay), t the number of updates,
and rate the learning rate. All operations are element-wise.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.config.option_checks import real_number_check


class DefaultArguments(NamedTuple):
    """The default arguments of a `BetaOptimizer`."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


class BetaOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Base class of optimizers with ``learning_rate``, ``beta1``, ``beta2`` and ``epsilon``.

    ``defaults`` replace arguments that are None. Raises ConfigError like `check_betas`.
    """

    defaults: DefaultArguments

    def __init__(
        self,
        learning_rate: Optional[float] = None,
        beta1: Optional[float] = None,
        beta2: Optional[float] = None,
        epsilon: Optional[float] = None,
        **kwargs: Any,
    ) -> None:
        arguments = DefaultArguments._make((learning_rate, beta1, beta2, epsilon))
        values = (default if value is None else value for value, default in zip(arguments, self.defaults))
        rate, self.beta1, self.beta2, self.epsilon = values
        check_betas(self)
        super().__init__(learning_rate=rate, **kwargs)


def check_betas(optimizer: Any) -> None:
    """Raise ConfigError unless ``beta1`` and ``beta2`` are at least 0 and below 1.

    Both are decay rates: ``beta1`` of the running mean of gradients, and ``beta2`` of the running
    mean of squared gradients, or of the running maximum. With other values, the means would grow,
    or bias correction would divide by 0.
    """
    for name in ("beta1", "beta2"):
        setattr(optimizer, name, real_number_check(0, 1)(name, getattr(optimizer, name)))


class AdaptiveOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Base class of optimizers with ``state_count`` state arrays for each weight.

    The gradient includes wd times the weight. ``clip_gradient`` limits each element of the
    gradient.
    """

    state_count = 1

    def create_state(self, index: Any, weight: nd.NDArray) -> Tuple[nd.NDArray, ...]:
        """Return arrays of zeros with the weight's shape, type and device."""
        settings = dict(shape=weight.shape, ctx=weight.context, dtype=weight.dtype)
        return tuple(nd.zeros(**settings) for _ in range(self.state_count))

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Tuple[nd.NDArray, ...]) -> None:
        """Compute w = w - rate x direction in place, without changing ``grad``."""
        self._update_count(index)
        lr, wd, t = self._get_lr(index), self._get_wd(index), self._index_update_count[index]
        grad = grad * self.rescale_grad
        if wd:
            grad += wd * weight
        if self.clip_gradient is not None:
            nd.clip(grad, -self.clip_gradient, self.clip_gradient, out=grad)
        weight -= lr * self.compute_direction(grad, state, t)

    def compute_direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        """Return the update direction, and update ``state``.

        ``t`` is the number of this update, from 1.
        """
        raise NotImplementedError


def representable_epsilon(epsilon: float, array: nd.NDArray) -> float:
    """Return ``epsilon``, or the smallest normal number of the array's type if that is larger."""
    return max(float(epsilon), float(np.finfo(np.dtype(array.dtype)).tiny))


class _RepresentableEpsilon(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Mixin that makes epsilon representable in the weight's type, for each update."""

    epsilon: float

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        """Update a weight with an epsilon that the weight's type can represent."""
        epsilon: float = self.epsilon
        self.epsilon = representable_epsilon(epsilon, weight)
        try:
            super().update(index, weight, grad, state)
        finally:
            self.epsilon = epsilon


class Adam(_RepresentableEpsilon, mx.optimizer.Adam):  # type: ignore[misc]
    """MXNet's Adam, with an epsilon that is not 0 in float16.

    With an epsilon of 0, MXNet divides 0 by 0 for a gradient of 0. Raises ConfigError like
    `check_betas`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_betas(self)


class RMSProp(_RepresentableEpsilon, mx.optimizer.RMSProp):  # type: ignore[misc]
    """MXNet's RMSProp, with an epsilon that is not 0 in float16, and states of the weight's type.

    MXNet's states are always float32, which does not work for weights of other types.
    """

    def create_state(self, index: Any, weight: nd.NDArray) -> Tuple[nd.NDArray, ...]:
        """Return the state n and, if ``centered``, also the states g and delta."""
        states = super().create_state(index, weight)
        return tuple(state.astype(weight.dtype, copy=False) for state in states)


class Adamax(BetaOptimizer, AdaptiveOptimizer):
    """PyTorch's Adamax.

    m = beta1 m + (1 - beta1) g, u = max(beta2 u, |g| + epsilon), w = w - rate / (1 - beta1^t) m /
    u.

    Kingma, Ba, "Adam: a method for stochastic optimization", 2015, algorithm 2. The paper has no
    epsilon.
    """

    state_count = 2
    defaults = DefaultArguments(learning_rate=0.002)

    def compute_direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        """Update the gradient's mean and maximum in ``state``, and return mean / maximum."""
        mean, largest = state
        _update_mean(mean, self.beta1, grad)
        largest *= self.beta2
        nd.broadcast_maximum(largest, grad.abs() + representable_epsilon(self.epsilon, grad), out=largest)
        return mean / largest / (1 - self.beta1**t)


class Nadam(BetaOptimizer, AdaptiveOptimizer):
    """Adam with Nesterov momentum and a momentum schedule: PyTorch's NAdam.

    Dozat, "Incorporating Nesterov momentum into Adam", 2016, algorithm 2. The momentum grows from
    about beta1 / 2 to beta1.
    """

    state_count = 2
    defaults = DefaultArguments(learning_rate=0.001)

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
        self._products: List[float] = [1.0]  # _products[t]: product of the first t momenta

    def compute_direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        """Update ``state`` with the gradient. Return Adam's direction with Nesterov momentum."""
        mean, square = state
        _update_mean(mean, self.beta1, grad)
        _update_mean(square, self.beta2, grad * grad)
        momentum, next_momentum = self._momentum(t), self._momentum(t + 1)
        while len(self._products) <= t:
            self._products.append(self._products[-1] * self._momentum(len(self._products)))
        product = self._products[t]
        lookahead = grad * ((1 - momentum) / (1 - product)) + mean * (next_momentum / (1 - product * next_momentum))
        return lookahead / ((square / (1 - self.beta2**t)).sqrt() + representable_epsilon(self.epsilon, grad))

    def _momentum(self, t: int) -> float:
        return float(self.beta1 * (1 - 0.5 * 0.96 ** (t * self.schedule_decay)))


class AdaGrad(AdaptiveOptimizer):
    """s = s + g^2, w = w - rate g / (sqrt(s) + epsilon): PyTorch's Adagrad.

    Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011, figure 1.
    """

    def __init__(self, learning_rate: float = 0.01, epsilon: float = 1e-10, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.epsilon = epsilon

    def compute_direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        (total,) = state
        total += grad * grad
        return grad / (total.sqrt() + representable_epsilon(self.epsilon, grad))


class AdaDelta(AdaptiveOptimizer):
    """PyTorch's Adadelta, with a learning rate of 1 by default.

    s = rho s + (1 - rho) g^2, d = sqrt(u + epsilon) / sqrt(s + epsilon) g, u = rho u + (1 - rho)
    d^2, w = w - rate d.

    Zeiler, "ADADELTA: an adaptive learning rate method", 2012, algorithm 1.
    """

    state_count = 2

    def __init__(self, learning_rate: float = 1.0, rho: float = 0.9, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.rho, self.epsilon = rho, epsilon

    def compute_direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        """Update the mean squares in ``state``.

        Return the gradient times the ratio of their roots.
        """
        square, update = state
        epsilon = representable_epsilon(self.epsilon, grad)
        _update_mean(square, self.rho, grad * grad)
        delta = (update + epsilon).sqrt() / (square + epsilon).sqrt() * grad
        _update_mean(update, self.rho, delta * delta)
        return delta


class FTML(BetaOptimizer, AdaptiveOptimizer):
    """FTML (follow the moving leader), without a division by the learning rate.

    v = beta2 v + (1 - beta2) g^2, w = w - rate (1 - beta1) / (1 - beta1^t) g / (sqrt(v / (1 -
    beta2^t)) + epsilon).

    Zheng, Kwok, "Follow the moving leader in deep learning", 2017, algorithm 1. The paper stores z
    and computes w = -z / d, with the learning rate in a denominator. But -z always equals d w from
    the previous step, so the update simplifies to this formula.
    """

    defaults = DefaultArguments(learning_rate=0.0025, beta1=0.6)

    def compute_direction(self, grad: nd.NDArray, state: Tuple[nd.NDArray, ...], t: int) -> nd.NDArray:
        """Update the mean square in ``state``.

        Return the gradient divided by the root of this mean.
        """
        (square,) = state
        _update_mean(square, self.beta2, grad * grad)
        root = (square / (1 - self.beta2**t)).sqrt() + representable_epsilon(self.epsilon, grad)
        return grad / root * ((1 - self.beta1) / (1 - self.beta1**t))


def _update_mean(mean: nd.NDArray, decay: float, value: nd.NDArray) -> None:
    """Compute mean = decay mean + (1 - decay) value in place."""
    mean *= decay
    mean += (1 - decay) * value
