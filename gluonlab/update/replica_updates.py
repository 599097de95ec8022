"""The optimizer on every device: bucket by bucket where it may, else by parameter."""

from __future__ import annotations

from itertools import repeat
from typing import Any, List, Sequence

from mxnet.gluon import Parameter

from gluonlab.optimizers.updates.key_update import KeyPart, KeyUpdate, foresee, update_spans
from gluonlab.update.bucket import Bucket, as_nd
from gluonlab.update.fresh import NOTHING, Stale


class BucketUpdates:
    """One call of the optimizer per bucket and device.

    It goes past gluon's Updaters, whose checks cost more than the call, but keeps the states where
    gluon.Trainer does: in ``updaters[device].states[key of the bucket]``.
    """

    def __init__(self, buckets: Sequence[Bucket], optimizer: Any, updaters: Sequence[Any]) -> None:
        self._buckets, self._optimizer, self._updaters = buckets, optimizer, updaters
        self.keys = [KeyUpdate(optimizer, key, self._parts(key)) for key in range(len(buckets))]

    def update(self, stale: Stale = NOTHING, uneven: bool = False) -> None:
        """Queue the update of all parameters but ``stale.parameters``.

        ``uneven``: some may have been updated more often.
        """
        ranges = (bucket.ranges(stale.parameters) for bucket in self._buckets)
        stays = ranges if stale.parameters else repeat(())
        spans = [span for update, some in zip(self.keys, stays) for span in update.spans(some)]
        if uneven:
            foresee(self._optimizer, [span.key for span in spans])
        update_spans(self._optimizer, spans)

    def _parts(self, key: int) -> List[KeyPart]:
        parts, bucket = [], self._buckets[key]
        for updater, weight, grad in zip(self._updaters, bucket.weights, bucket.grads):
            if key not in updater.states:
                new = self._optimizer.create_state_multi_precision(key, weight)
                updater.states[key], updater.states_synced[key] = new, True
            parts.append(KeyPart(0, weight, grad, updater.states[key]))
        return parts


class ParameterUpdates:
    """As gluon.Trainer does it: an optimizer that looks at a whole parameter must be given it."""

    def __init__(self, params: Sequence[Parameter], updaters: Sequence[Any]) -> None:
        """The optimizer knows the parameters by their positions in ``params``."""
        self._updaters = updaters
        self._trained = [(key, param) for key, param in enumerate(params) if has_gradient(param)]
        self._arrays = {
            key: (as_nd(param.list_data()), as_nd(param.list_grad()))
            for key, param in self._trained
        }

    def update(self, stale: Stale = NOTHING, uneven: bool = False) -> None:
        """Queue the update of all parameters but ``stale.parameters``.

        ``uneven``: some may have been updated more often.
        """
        keys = [key for key, param in self._trained if param not in stale.parameters]
        if not keys:
            return
        if uneven:
            foresee(self._updaters[0].optimizer, keys)
        weights, grads = (zip(*arrays) for arrays in zip(*(self._arrays[key] for key in keys)))
        for updater, *arrays in zip(self._updaters, grads, weights):
            updater(list(keys), *map(list, arrays))


def has_gradient(param: Parameter) -> bool:
    """Whether there is anything to update; mx.np has arrays without elements."""
    return bool(param.grad_req != "null" and 0 not in (param.shape or ()))
