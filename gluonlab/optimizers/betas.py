"""The arguments of optimizers that keep fading means of gradients."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import mxnet as mx

from gluonlab.config.values import real


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
        setattr(optimizer, name, real(0, 1)(name, getattr(optimizer, name)))
