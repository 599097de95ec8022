"""The stores of mx.kv.create that sum over processes, and new keys for them.

A store of MXNet's takes a key once. The second time, a local one ends in "duplicate init of key",
and ``dist_sync`` waits for ever: only the worker of rank 0 sends, and its servers add that up as if
every worker did.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from mxnet.kvstore import KVStore

from gluonlab.errors import KVStoreError
from gluonlab.kvstores.native import NativeKVStore

FIRST = 2**16  # gluon.Trainer has the numbers below, one for each parameter
# MXNet has server ``key * 9973 % servers``, in C's int, keep a small array: a larger product is
# negative, and no server is found
LAST = (2**31 - 1) // 9973
_next: "WeakKeyDictionary[KVStore, int]" = WeakKeyDictionary()


def sums_over_processes(store: Any) -> bool:
    """Whether ``store``, which may be None, sums over several processes."""
    return store is not None and ("dist" in store.type or store.num_workers > 1)


def new_keys(store: Any, count: int) -> int:
    """The first of ``count`` consecutive keys that are not in use.

    Every process has to ask for as many, in the same order. Raises KVStoreError where there are no
    more, after some hundred thousand.
    """
    if not isinstance(store, KVStore) or isinstance(store, NativeKVStore):
        return 0  # takes a key again
    first = _next.get(store, FIRST)
    if first + count > LAST + 1:
        raise KVStoreError(
            f"kvstore {store.type!r} has no keys left of {LAST + 1 - FIRST:,}: start new processes"
        )
    _next[store] = first + count
    return first
