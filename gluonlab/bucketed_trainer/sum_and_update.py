"""Sum and update: what a step asks the kvstore to do, and who runs the optimizer.

Stores that sum (`calls_of`) leave the update to every device: bucket by bucket (`BucketUpdates`),
or parameter by parameter (`ParameterUpdates`). ``sharded-optimizer`` updates itself
(`UpdateOnStore`); servers do in `gluonlab.bucketed_trainer.server_updates`.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import nd
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer.buckets import Bucket, as_nd, together
from gluonlab.bucketed_trainer.gradient_postprocessing import SummedGradients
from gluonlab.bucketed_trainer.stale_gradients import NOTHING, Stale
from gluonlab.kvstores.allreduce_store import AllreduceKVStore
from gluonlab.kvstores.mxnet_stores import MXNetKVStore, sums_over_processes
from gluonlab.optimizers.optimizer_step import KeyPart, KeyUpdate, foresee, update_spans


class Call(NamedTuple):
    """A bucket's key and its arrays on all devices, or lists of several buckets'.

    ``run()`` queues all that the store does with them, where nobody comes between sum and update.
    """

    key: Any
    grads: Any
    weights: Any
    priority: int
    run: Callable[[], None]


def calls_of(
    store: Any, buckets: Sequence[Bucket], bucket_bytes: int, updates: bool, first_key: int = 0
) -> List[Call]:
    """The calls of a step: several small buckets in one, for stores that only sum.

    ``updates``: whether the store updates. ``first_key``: what the store knows the first bucket by;
    the others follow.
    """
    calls: List[Tuple[Any, Any, Any, int]]
    if not isinstance(store, AllreduceKVStore):
        calls = [(first_key + i, each.grads, each.weights, -i) for i, each in enumerate(buckets)]
    else:
        grads, weights = (
            [getattr(each, kind) for each in buckets] for kind in ("grads", "weights")
        )
        calls = [
            (keys, [grads[key] for key in keys], [weights[key] for key in keys], -keys[0])
            for keys in together(buckets, bucket_bytes)
        ]
    adds = any(bucket.adds for bucket in buckets)
    return [Call(*call, _call_of(store, *call, updates, adds)) for call in calls]


def broadcast_parameters(
    store: Any, first_key: int, buckets: Sequence[Bucket], others: Sequence[Parameter]
) -> None:
    """Give all devices, and processes, the first one's parameters: buckets, then ``others``."""
    arrays = [bucket.weights for bucket in buckets]
    arrays += [as_nd(param.list_data()) for param in others if param._data is not None]
    for key, weights in enumerate(arrays, first_key):
        store.broadcast(key, weights[0], weights)
    if sums_over_processes(store):
        nd.waitall()  # the store does not order what follows after it


def _call_of(
    store: Any, key: Any, grads: Any, weights: Any, priority: int, updates: bool, adds: bool
) -> Callable[[], None]:
    if store is None:
        return lambda: None  # one device alone has the whole gradient
    if updates:
        run = store.pushpull if adds else store.update_overwriting_gradients
        return partial(run, key, grads, weights, priority=priority)
    if isinstance(store, MXNetKVStore):
        prepared: Callable[[], None] = store.prepare_pushpull(key, grads, priority)
        return prepared
    return partial(store.pushpull, key, grads, priority=priority)


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


class UpdateOnStore:
    """Has ``store`` sum the gradients, and each device update its own part of the weights.

    A bucket is updated as soon as it is summed, unless the first update depends on the sums of all:
    with `Postprocess`, and where parameters differ in their counts of updates.
    """

    def __init__(
        self,
        store: Any,
        calls: Sequence[Call],
        buckets: Sequence[Bucket],
        ctxs: Sequence[mx.Context],
        summed: SummedGradients,
    ) -> None:
        self._store, self._calls, self._buckets = store, calls, buckets
        self._ctxs, self._summed, self._has_shards = ctxs, summed, False
        self._adds = any(bucket.adds for bucket in buckets)

    def run(self, optimizer: Any, stale: Stale, uneven: bool) -> None:
        """Queue a step that leaves ``stale.parameters`` as they are.

        ``uneven``: parameters may have been updated more often than others.
        """
        if self._summed.settings.is_needed or uneven:
            self._run_in_halves(optimizer, stale, uneven)
        else:
            for call in self._calls:
                call.run()

    def _run_in_halves(self, optimizer: Any, stale: Stale, uneven: bool) -> None:
        store = self._store
        shards = [
            shard
            for call in self._calls
            for shard in store.reduce_scatter(
                call.key, call.grads, call.weights, call.priority, keep=self._adds
            )
        ]
        if not self._has_shards:
            parts = [[part for part in shards if part.context == ctx] for ctx in self._ctxs]
            self._summed.add(parts, self._ctxs, parts=True)
            self._has_shards = True
        if not self._summed.prepare(optimizer):
            return
        ranges = {key: each.ranges(stale.parameters) for key, each in enumerate(self._buckets)}
        if uneven:
            keys = [key for call in self._calls for key in store.keys_to_update(call.key, ranges)]
            foresee(optimizer, keys)
        for call in self._calls:
            store.update(call.key, priority=call.priority, stale=ranges)
