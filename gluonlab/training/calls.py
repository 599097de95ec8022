"""What a store is asked to move at once: a bucket, or some that fit into one between them."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence

from gluonlab.kvstores.schedule import ScheduleKVStore
from gluonlab.training.bucket import Bucket, together


class Call(NamedTuple):
    """A bucket's key and its arrays on all devices, or lists of several buckets'."""

    key: Any
    grads: Any
    weights: Any
    priority: int


def calls_of(store: Any, buckets: Sequence[Bucket], bucket_bytes: int) -> List[Call]:
    """Schedules take buckets together that have no more than ``bucket_bytes`` between them; other stores one at a time."""
    if not isinstance(store, ScheduleKVStore):
        return [Call(key, bucket.grads, bucket.weights, -key) for key, bucket in enumerate(buckets)]
    return [
        Call(keys, [buckets[key].grads for key in keys], [buckets[key].weights for key in keys], -keys[0])
        for keys in together(buckets, bucket_bytes)
    ]
