"""What a store is asked to move at once: a bucket, or some that fit into one between them."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from mxnet import nd
from mxnet.gluon import Parameter

from gluonlab.kvstores.native import NativeKVStore, sums_over_processes
from gluonlab.kvstores.summing import SummingKVStore
from gluonlab.update.bucket import Bucket, as_nd, together


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
    if not isinstance(store, SummingKVStore):
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
    return [Call(*call, _run(store, *call, updates, adds)) for call in calls]


def begin_alike(
    store: Any, first_key: int, buckets: Sequence[Bucket], others: Sequence[Parameter]
) -> None:
    """Give all devices, and processes, the first one's parameters: buckets, then ``others``."""
    arrays = [bucket.weights for bucket in buckets]
    arrays += [as_nd(param.list_data()) for param in others if param._data is not None]
    for key, weights in enumerate(arrays, first_key):
        store.broadcast(key, weights[0], weights)
    if sums_over_processes(store):
        nd.waitall()  # the store does not order what follows after it


def _run(
    store: Any, key: Any, grads: Any, weights: Any, priority: int, updates: bool, adds: bool
) -> Callable[[], None]:
    if store is None:
        return lambda: None  # one device alone has the whole gradient
    if updates:
        run = store.pushpull if adds else store.update_and_use_up
        return partial(run, key, grads, weights, priority=priority)
    if isinstance(store, NativeKVStore):
        prepared: Callable[[], None] = store.prepared(key, grads, priority)
        return prepared
    return partial(store.pushpull, key, grads, priority=priority)
