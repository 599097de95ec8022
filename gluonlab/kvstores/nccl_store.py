"""The kvstore ``nccl``, which sums arrays over GPUs with NCCL: a reduce, and then a broadcast.

MXNet's store (src/kvstore/kvstore_nccl.h) has three limits:

- The store allocates all buffers at its first sum. A key that is added later fails with "Check
  failed: !is_none()".
- The store works for only one set of devices.
- When the store is freed, work that is still queued uses the freed memory.

So here each set of devices has its own MXNet store. The keys of these stores are not the user's
keys: all arrays of the same size and type share one key. For a new size, a new store with new NCCL
communicators is created.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any, Dict, List, Sequence, Tuple
from weakref import finalize

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.fast_invoke import flat_view
from gluonlab.errors import KVStoreError
from gluonlab.kvstores.allreduce_store import AllreduceKVStore, ArraysByRank, Keys
from gluonlab.kvstores.mxnet_stores import pushpull_arguments

NCCL_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")  # KVStoreNCCL::GetNCCLType
BufferKind = Tuple[int, str]  # elements and type of arrays that are summed


class NcclKVStore(AllreduceKVStore):
    """The store ``nccl``, which sums arrays over GPUs. ``transfers_run`` counts summed arrays.

    ``broadcast`` prepares the store for the sizes of its arrays, such as a Trainer's parameters.
    For any other size, the next sum first waits for all queued work and for a restart of NCCL,
    which takes about a second. The buffers are on the first device of the first sum. The buffers
    take as much memory as one array of each size and type.
    """

    def __init__(self) -> None:
        super().__init__("nccl")
        self._stores: Dict[Tuple[int, ...], _NcclStore] = {}  # ids of GPUs -> their store

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy ``value`` into ``out``, and prepare NCCL for later sums of arrays like ``out``."""
        super().broadcast(key, value, out, priority)
        for entry in self._make_entries(key, value, out):
            ctxs = {array.context for array in entry.outs}
            if 1 < len(ctxs) == len(entry.outs) and all(_can_sum(array) for array in entry.outs):
                self._store_for(entry.outs).key_for(entry.outs[0])

    def make_executor(self, arrays: ArraysByRank, keys: Keys) -> _NcclAllreduce:
        """Return an executor that sums with NCCL. Raise KVStoreError for unsuitable arrays."""
        for array in (array for of_rank in arrays for array in of_rank):
            if array.context.device_type != "gpu":
                raise KVStoreError(
                    f"the arrays are on {array.context}, but NCCL needs GPUs: choose kvstore 'device' or 'local'"
                )
            name = np.dtype(array.dtype).name
            if name not in NCCL_DTYPES:
                raise KVStoreError(
                    f"NCCL cannot sum arrays of type {name}, only {', '.join(NCCL_DTYPES)}: use "
                    "array.astype('int32'), or kvstore 'device'"
                )
        return _NcclAllreduce(self._store_for([of_rank[0] for of_rank in arrays]), arrays)

    def _store_for(self, arrays: Sequence[nd.NDArray]) -> _NcclStore:
        ids = tuple(sorted(array.context.device_id for array in arrays))
        return self._stores.setdefault(ids, _NcclStore())


def _can_sum(array: nd.NDArray) -> bool:
    is_dense_gpu_array = array.context.device_type == "gpu" and array.stype == "default"
    return bool(is_dense_gpu_array and array.size and np.dtype(array.dtype).name in NCCL_DTYPES)


class _NcclStore:
    """MXNet's store for one set of GPUs, with a key for each size and type of arrays."""

    def __init__(self) -> None:
        self._keys: Dict[BufferKind, int] = {}
        self._created: List[mx.kvstore.KVStore] = []  # empty before the first sum
        finalize(self, _free_store, self._created)

    def key_for(self, array: nd.NDArray) -> int:
        """Return the key for arrays of this size and type.

        If the key is new, wait for the store's work and free the store. `handle` then creates a new
        store.
        """
        kind = (array.size, np.dtype(array.dtype).name)
        if kind not in self._keys:
            _free_store(self._created)
            self._keys[kind] = len(self._keys)
        return self._keys[kind]

    @property
    def handle(self) -> Any:
        """Handle of the store for MXNet's C functions. Creates the store if necessary."""
        if not self._created:
            store = mx.kv.create("nccl")
            for (size, dtype), key in self._keys.items():
                store.init(key, nd.zeros((size,), dtype=dtype))
            self._created.append(store)
        return self._created[0].handle


def _free_store(created: List[mx.kvstore.KVStore]) -> None:
    """Free the store after waiting for its queued work, which would otherwise use freed memory."""
    if created:
        with suppress(mx.MXNetError):  # an operator's error, which readers of its result see again
            nd.waitall()
        created.clear()


class _NcclAllreduce:
    """The allreduce of some arrays over GPUs, one array after another.

    The arrays are not summed in a single call: MXNet's engine would wait forever if two of them are
    parts of the same array.
    """

    def __init__(self, store: _NcclStore, arrays: ArraysByRank) -> None:
        self.transfers_run = 0
        replicas = [
            [flat_view(array) for array in replicas_of_array]
            for replicas_of_array in zip(*arrays)
            if replicas_of_array[0].size
        ]
        self._arrays = replicas  # keeps them alive: the calls hold pointers
        self._calls = [
            pushpull_arguments(store.key_for(replicas_of_array[0]), replicas_of_array)
            for replicas_of_array in replicas
            if len(replicas_of_array) > 1
        ]
        self._store = store

    def run(self, priority: int = 0) -> None:
        """Queue NCCL's sums of all arrays. ``priority``: as in ``kvstore.pushpull``."""
        c_priority = ctypes.c_int(priority)
        for arguments in self._calls:
            check_call(_LIB.MXKVStorePushPull(self._store.handle, *arguments, c_priority))
        self.transfers_run += len(self._calls)
