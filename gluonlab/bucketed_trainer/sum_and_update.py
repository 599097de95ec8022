"""Prepares the calls of a step that sum gradients and update parameters.

- Most kvstores only sum the gradients (`make_kvstore_calls`). Then every device updates its
  parameters, bucket by bucket (`make_key_updates`) or one by one (`ParameterUpdater`).
- The kvstore "sharded-optimizer" sums the gradients and updates the parameters (`ShardedUpdater`).
- If servers update the parameters, the module `server_updates` prepares the calls instead.
"""

from __future__ import annotations

from functools import partial
from typing import AbstractSet, Any, Callable, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import nd
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer.buckets import Bucket, BucketPadding, as_nd_arrays, coalesce_buckets
from gluonlab.bucketed_trainer.gradient_postprocessing import GradientPostprocessor
from gluonlab.bucketed_trainer.stale_gradients import StaleGradients
from gluonlab.kvstores.allreduce_store import AllreduceKVStore
from gluonlab.kvstores.mxnet_stores import MXNetKVStore, sums_over_processes
from gluonlab.optimizers.optimizer_step import KeyPart, KeyUpdate, align_learning_rates


class KVStoreCall(NamedTuple):
    """A prepared kvstore call, for one bucket or several buckets.

    ``key``, ``grads`` and ``weights`` are a bucket's key and its arrays on all devices. For several
    buckets, each of these fields is a list. ``run()`` queues the sum, and also the update if the
    store updates the weights.
    """

    key: Any
    grads: Any
    weights: Any
    priority: int
    run: Callable[[], None]


def make_kvstore_calls(
    store: Any, buckets: Sequence[Bucket], bucket_bytes: int, updates: bool, first_key: int = 0
) -> List[KVStoreCall]:
    """Return a step's kvstore calls.

    If the store accepts several keys, one call handles several small buckets.

    ``updates``: whether the store also updates the parameters. The keys of the buckets are
    ``first_key``, ``first_key + 1`` and so on.
    """
    calls: List[Tuple[Any, Any, Any, int]]
    if not isinstance(store, AllreduceKVStore):
        calls = [(first_key + i, b.grads, b.weights, -i) for i, b in enumerate(buckets)]
    else:
        calls = [
            (keys, [buckets[i].grads for i in keys], [buckets[i].weights for i in keys], -keys[0])
            for keys in coalesce_buckets(buckets, bucket_bytes)
        ]
    adds = any(bucket.adds_gradients for bucket in buckets)
    return [KVStoreCall(*call, _bind_kvstore_call(store, *call, updates, adds)) for call in calls]


def broadcast_parameters(store: Any, first_key: int, buckets: Sequence[Bucket], others: Sequence[Parameter]) -> None:
    """Broadcast the first device's buckets, then ``others``, to all devices and processes."""
    arrays = [bucket.weights for bucket in buckets]
    arrays += [as_nd_arrays(param.list_data()) for param in others if param._data is not None]
    for key, weights in enumerate(arrays, first_key):
        store.broadcast(key, weights[0], weights)
    if sums_over_processes(store):
        nd.waitall()  # because the engine does not order later operations after these


def _bind_kvstore_call(
    store: Any, key: Any, grads: Any, weights: Any, priority: int, updates: bool, adds: bool
) -> Callable[[], None]:
    """Return the function that queues a kvstore call. ``adds``: whether grad_req is "add"."""
    if store is None:
        return lambda: None  # the gradient of a single device is already the sum
    if updates:
        run = store.pushpull if adds else store.update_overwriting_gradients
        return partial(run, key, grads, weights, priority=priority)
    if isinstance(store, MXNetKVStore):
        prepared: Callable[[], None] = store.prepare_pushpull(key, grads, priority)
        return prepared
    return partial(store.pushpull, key, grads, priority=priority)


def make_key_updates(buckets: Sequence[Bucket], optimizer: Any, updaters: Sequence[Any]) -> List[KeyUpdate]:
    """Return the update of each bucket for an element-wise optimizer.

    The keys are the buckets' positions.

    ``updaters``: gluon's Updater for each device, which holds the states. Missing states are
    created.
    """
    key_updates = []
    for key, bucket in enumerate(buckets):
        parts = []
        for updater, weight, grad in zip(updaters, bucket.weights, bucket.grads):
            if key not in updater.states:
                new = optimizer.create_state_multi_precision(key, weight)
                updater.states[key], updater.states_synced[key] = new, True
            parts.append(KeyPart(0, weight, grad, updater.states[key]))
        key_updates.append(KeyUpdate(optimizer, key, parts))
    return key_updates


class ParameterUpdater:
    """Updates each parameter separately, as gluon.Trainer does.

    Only optimizers that are not element-wise need this class.
    """

    def __init__(self, params: Sequence[Parameter], updaters: Sequence[Any]) -> None:
        self._updaters = updaters
        self._trained = [(key, param) for key, param in enumerate(params) if has_gradient(param)]
        self._arrays = {
            key: (as_nd_arrays(param.list_data()), as_nd_arrays(param.list_grad())) for key, param in self._trained
        }

    def update(self, stale: AbstractSet[Parameter], counts_differ: bool) -> None:
        """Queue the update of all parameters except ``stale`` ones.

        ``counts_differ`` is true if some parameters may have had more updates than others.
        """
        keys = [key for key, param in self._trained if param not in stale]
        if not keys:
            return
        if counts_differ:
            align_learning_rates(self._updaters[0].optimizer, keys)
        weights, grads = (zip(*arrays) for arrays in zip(*(self._arrays[key] for key in keys)))
        for updater, *arrays in zip(self._updaters, grads, weights):
            updater(list(keys), *map(list, arrays))


def has_gradient(param: Parameter) -> bool:
    """Return whether the backward pass writes a gradient for this parameter."""
    is_empty = 0 in (param.shape or ())  # which is possible in mx.np
    return bool(param.grad_req != "null" and not is_empty)


class ShardedUpdater:
    """Lets the kvstore "sharded-optimizer" sum gradients and update parameters.

    Each device updates its part of a bucket's weights as soon as the bucket is summed. But
    clipping, a loss scale and different update counts require all sums before the first update. In
    these cases, all buckets are summed first.
    """

    def __init__(
        self,
        store: Any,
        calls: Sequence[KVStoreCall],
        buckets: Sequence[Bucket],
        ctxs: Sequence[mx.Context],
        postprocessor: GradientPostprocessor,
        padding: BucketPadding,
    ) -> None:
        self._store, self._calls, self._buckets = store, calls, buckets
        self._ctxs, self._postprocessor, self._padding = ctxs, postprocessor, padding
        self._has_shards = False  # whether the postprocessor knows the shards of the sums
        self._adds = any(bucket.adds_gradients for bucket in buckets)

    def sum_and_update(self, optimizer: Any, stale: StaleGradients, counts_differ: bool) -> None:
        """Queue the sum of all gradients, and the update of the parameters.

        Parameters whose gradients are stale on every device are not updated.

        ``counts_differ`` is true if some parameters may have had more updates than others.
        """
        if self._postprocessor.is_needed or counts_differ:
            self._sum_then_update(optimizer, stale, counts_differ)
        else:
            for call in self._calls:
                call.run()

    def _sum_then_update(self, optimizer: Any, stale: StaleGradients, counts_differ: bool) -> None:
        """Sum all buckets, unscale and clip the sums, and then update all buckets."""
        store = self._store
        shards = [
            shard
            for call in self._calls
            for shard in store.reduce_scatter(call.key, call.grads, call.weights, call.priority, keep=self._adds)
        ]
        if not self._has_shards:
            grads = [[shard for shard in shards if shard.context == ctx] for ctx in self._ctxs]
            self._postprocessor.add_gradients(grads, self._ctxs, sharded=True)
            self._has_shards = True
        finite = self._postprocessor.unscale_and_clip([optimizer], self._padding)
        if not finite:
            return
        ranges = {key: bucket.element_ranges(stale.on_all_devices) for key, bucket in enumerate(self._buckets)}
        if counts_differ:
            keys = [key for call in self._calls for key in store.keys_to_update(call.key, ranges)]
            align_learning_rates(optimizer, keys)
        for call in self._calls:
            store.update(call.key, priority=call.priority, stale=ranges)
