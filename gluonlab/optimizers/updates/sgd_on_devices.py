"""SGD on several devices, with the work that is the same for all of them done once.

The learning rate, the weight decay and the count of updates belong to a key of the optimizer, not
to a device. The optimizer works them out for each device anew, which takes several times as long as
queueing the update. Here it is asked once for all keys.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx

from gluonlab.engine.invoke import Attributes, OperatorCall
from gluonlab.optimizers.sgd import SGD
from gluonlab.optimizers.updates.counts import COUNTED_AT


def applies(optimizer: mx.optimizer.Optimizer) -> bool:
    """Whether `DevicesSGD` can do the work of ``optimizer``.

    It does SGD by either rule, without master copies of low-precision weights.
    """
    return type(optimizer) in (SGD, mx.optimizer.SGD) and not optimizer.multi_precision


class DevicesSGD:
    """The update of one key: ``weights[i]`` with ``grads[i]`` and ``states[i]`` on device i.

    A state is the momentum, or None.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.SGD,
        key: Any,
        weights: List[Any],
        grads: List[Any],
        states: List[Any],
    ) -> None:
        self.optimizer, self.key = optimizer, key
        self._arrays = list(zip(weights, grads, states))
        # mx.optimizer.SGD always calls the operators for several arrays. Those for one are queued
        # faster and give the same bits, except with clipped gradients or weight decay.
        self._several = "multi_" if optimizer.clip_gradient or optimizer.wd else ""
        self._calls = []
        for weight, grad, state in self._arrays:
            name, used = ("sgd_update", []) if state is None else ("sgd_mom_update", [state])
            self._calls.append(OperatorCall(self._several + name, [weight, grad, *used], weight))
        self._settings: Tuple[Any, ...] = ()
        self._attributes = Attributes({})

    def queue(self, lr: float, wd: float) -> None:
        """Queue the update of every device."""
        optimizer = self.optimizer
        momentum = optimizer.momentum
        if momentum and isinstance(optimizer, SGD):
            scale, ratio = optimizer.rescale(self.key, lr)
            if scale != lr:
                for weight, grad, state in self._arrays:
                    optimizer.move_a_little(weight, grad, state, lr, scale, ratio, wd)
                return
            momentum *= ratio
        settings = (lr, wd, momentum, optimizer.rescale_grad, optimizer.clip_gradient)
        if settings != self._settings:
            self._settings = settings
            self._attributes = Attributes(self._current_values(lr, wd, momentum))
        for call in self._calls:
            call(self._attributes)

    def _current_values(self, lr: float, wd: float, momentum: float) -> Dict[str, Any]:
        optimizer = self.optimizer
        # MXNet takes half a microsecond to read an attribute, in each call
        values: Dict[str, Any] = {"lr": lr, "wd": wd} if wd else {"lr": lr}
        if self._several:
            values = {"num_weights": 1, "lrs": (lr,), "wds": (wd,)}
        values["rescale_grad"] = optimizer.rescale_grad
        if momentum:
            values["momentum"] = momentum
        if optimizer.clip_gradient:
            values["clip_gradient"] = optimizer.clip_gradient
        return values


def update(optimizer: mx.optimizer.SGD, keys: Sequence[DevicesSGD]) -> None:
    """Queue the updates of all ``keys``, with the rate of the one updated most often."""
    names = [each.key for each in keys]
    optimizer._set_current_context(COUNTED_AT)
    optimizer._update_count(names)
    rates = zip(keys, optimizer._get_lrs(names), optimizer._get_wds(names))
    for each, lr, wd in rates:
        each.queue(float(lr), float(wd))
