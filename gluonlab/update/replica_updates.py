"""The optimizer on every device, for its own replica: bucket by bucket where it may, else parameter
by parameter.
"""

from __future__ import annotations

from typing import Any, List, Sequence

from mxnet.gluon import Parameter

from gluonlab.optimizers.updates.key_update import KeyUpdate, Part, foresee
from gluonlab.update.bucket import Bucket, as_nd
from gluonlab.update.fresh import NOTHING, Stale


class BucketUpdates:
    """One call of the optimizer per bucket and device, past gluon's Updaters, whose checks cost
    more than the call.

    The states are kept where gluon.Trainer keeps its own: ``updaters[device].states[key of the
    bucket]``.
    """

    def __init__(self, buckets: Sequence[Bucket], optimizer: Any, updaters: Sequence[Any]) -> None:
        self._buckets, self._optimizer, self._updaters = buckets, optimizer, updaters
        self.keys = [KeyUpdate(optimizer, key, self._parts(key)) for key in range(len(buckets))]

    def update(self, stale: Stale = NOTHING, uneven: bool = False) -> None:
        """Queue the update of all parameters but ``stale.parameters``.

        ``uneven``: some may have been updated more often.
        """
        if not (uneven or stale.parameters):
            for update in self.keys:
                update.update()
            return
        ranges = [bucket.ranges(stale.parameters) for bucket in self._buckets]
        if uneven:
            foresee(
                self._optimizer,
                [key for update, some in zip(self.keys, ranges) for key in update.keys(some)],
            )
        for update, some in zip(self.keys, ranges):
            update.update(some)

    def _parts(self, key: int) -> List[Part]:
        arrays = zip(self._buckets[key].weights, self._buckets[key].grads)
        return [
            Part(0, weight, grad, self._state(device, key))
            for device, (weight, grad) in enumerate(arrays)
        ]

    def _state(self, device: int, key: int) -> Any:
        updater = self._updaters[device]
        if key not in updater.states:
            updater.states[key] = self._optimizer.create_state_multi_precision(
                key, self._buckets[key].weights[device]
            )
            updater.states_synced[key] = True
        return updater.states[key]


class ParameterUpdates:
    """As gluon.Trainer does it: an optimizer that looks at a whole parameter must be given it."""

    def __init__(self, params: Sequence[Parameter], updaters: Sequence[Any]) -> None:
        """The optimizer knows the parameters by their positions in ``params``."""
        self._updaters = updaters
        self._trained = [(key, param) for key, param in enumerate(params) if has_gradient(param)]
        self._arrays = {
            param: (as_nd(param.list_data()), as_nd(param.list_grad()))
            for _, param in self._trained
        }

    def update(self, stale: Stale = NOTHING, uneven: bool = False) -> None:
        """Queue the update of all parameters but ``stale.parameters``.

        ``uneven``: some may have been updated more often.
        """
        keys = [key for key, param in self._trained if param not in stale.parameters]
        arrays = [
            self._arrays[param] for _, param in self._trained if param not in stale.parameters
        ]
        if uneven:
            foresee(self._updaters[0].optimizer, keys)
        for device, updater in enumerate(self._updaters):
            if keys:
                updater(
                    list(keys),
                    [grads[device] for _, grads in arrays],
                    [weights[device] for weights, _ in arrays],
                )


def has_gradient(param: Parameter) -> bool:
    """Whether there is anything to update; mx.np has arrays without elements."""
    return bool(param.grad_req != "null" and 0 not in (param.shape or ()))
