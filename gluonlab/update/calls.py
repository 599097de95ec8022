"""What a store is asked to move at once: a bucket, or some that fit into one between them."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, List, NamedTuple, Sequence

from mxnet import nd
from mxnet.gluon import Parameter

from gluonlab.kvstores.native import NativeKVStore
from gluonlab.kvstores.processes import sums_over_processes
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
    """Stores that only sum take buckets together that have no more than ``bucket_bytes`` between
    them; other stores one at a time.

    ``updates``: whether the store does. ``first_key``: what it knows the first bucket by; the
    others follow.
    """
    if not isinstance(store, SummingKVStore):
        return [
            _call(store, first_key + position, bucket.grads, bucket.weights, -position, updates)
            for position, bucket in enumerate(buckets)
        ]
    return [
        _call(
            store,
            keys,
            [buckets[key].grads for key in keys],
            [buckets[key].weights for key in keys],
            -keys[0],
            updates,
        )
        for keys in together(buckets, bucket_bytes)
    ]


def begin_alike(
    store: Any, first_key: int, buckets: Sequence[Bucket], others: Sequence[Parameter]
) -> None:
    """Give all devices, and processes, what the first has: the parameters in buckets, and
    ``others``, whose keys follow.
    """
    arrays = [bucket.weights for bucket in buckets] + [
        as_nd(param.list_data()) for param in others if param._data is not None
    ]
    for key, weights in enumerate(arrays, first_key):
        store.broadcast(key, weights[0], weights)
    if sums_over_processes(store):
        nd.waitall()  # the store does not order what follows after it


def _call(store: Any, key: Any, grads: Any, weights: Any, priority: int, updates: bool) -> Call:
    if updates:
        run: Any = partial(store.update_and_use_up, key, grads, weights, priority=priority)
    elif isinstance(store, NativeKVStore):
        run = store.prepared(key, grads, priority)
    else:
        run = (
            partial(store.pushpull, key, grads, priority=priority)
            if store is not None
            else _nothing
        )
    return Call(key, grads, weights, priority, run)


def _nothing() -> None:
    """One device alone has the whole gradient."""
