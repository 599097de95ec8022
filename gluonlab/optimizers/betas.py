"""The arguments of optimizers that keep fading means of gradients."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import mxnet as mx

from gluonlab.errors import ConfigError


class Usual(NamedTuple):
    """What such an optimizer takes for an argument that is not given."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


class WithBetas(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Takes ``learning_rate``, ``beta1``, ``beta2``, ``epsilon``, in this order; what is None is the ``usual`` one.

    ``beta1`` and ``beta2`` are the shares of the old mean of gradients, and of their squares (or of
    the largest), that stay in each step. Raises ConfigError for one that is not from 0 to below 1:
    its means would divide by 0, or grow.
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
        taken = Usual._make(usual if own is None else own for own, usual in zip(given, self.usual))
        for name, value in (("beta1", taken.beta1), ("beta2", taken.beta2)):
            if not 0 <= value < 1:
                raise ConfigError(f"{name} {value:g}: give a number from 0 and below 1, such as {getattr(self.usual, name):g}")
        super().__init__(learning_rate=taken.learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = taken[1:]
