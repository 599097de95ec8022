"""Sums by NCCL through MXNet's own store: a reduce to one GPU, and a broadcast from there.

MXNet's store (src/kvstore/kvstore_nccl.h) makes all of its buffers when it first sums: a key that
comes later ends in "Check failed: !is_none()". It knows one set of devices, and goes on working
after it has been freed. So what it is told here are no keys of the user's, but sizes and types of
arrays, which any keys share, one store for each set of devices, and a new store, of which NCCL's
communicators are made anew, when another size comes.
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

from gluonlab.engine.invoke import flattened
from gluonlab.errors import KVStoreError
from gluonlab.kvstores.arguments import pushpull_arguments
from gluonlab.kvstores.summing import Keys, SummingKVStore
from gluonlab.kvstores.sums import Ranks

TYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")  # KVStoreNCCL::GetNCCLType
Slot = Tuple[int, str]  # elements and type of arrays that are summed


class NcclKVStore(SummingKVStore):
    """``nccl``: sums over GPUs, see the module. ``transfers_run`` counts arrays that were summed.

    Sizes that ``broadcast`` has seen cost nothing later, and those of a Trainer's parameters are
    among them. Another one makes the next sum wait for all that is queued, and for NCCL to begin
    anew, about a second on real GPUs. The first device of a key's first sum holds the buffers: as
    much memory as one array of each size and type.
    """

    def __init__(self) -> None:
        super().__init__("nccl")
        self._groups: Dict[Tuple[int, ...], _Group] = {}  # ids of GPUs -> what sums over them

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        super().broadcast(key, value, out, priority)
        for entry in self._entries(key, value, out):
            ctxs = {array.context for array in entry.outs}
            if 1 < len(ctxs) == len(entry.outs) and all(_is_summed(array) for array in entry.outs):
                self._group(entry.outs).slot(entry.outs[0])

    def executor(self, arrays: Ranks, keys: Keys) -> "_Sum":
        for array in (array for of_rank in arrays for array in of_rank):
            if array.context.device_type != "gpu":
                raise KVStoreError(
                    f"arrays on {array.context}: it sums over GPUs: choose device or local"
                )
            name = np.dtype(array.dtype).name
            if name not in TYPES:
                raise KVStoreError(
                    f"arrays of type {name}: it sums {', '.join(TYPES)}: "
                    "use array.astype('int32'), or choose device"
                )
        return _Sum(self._group([of_rank[0] for of_rank in arrays]), arrays)

    def _group(self, arrays: Sequence[nd.NDArray]) -> "_Group":
        ids = tuple(sorted(array.context.device_id for array in arrays))
        return self._groups.setdefault(ids, _Group())


def _is_summed(array: nd.NDArray) -> bool:
    known = array.context.device_type == "gpu" and array.stype == "default"
    return bool(known and array.size and np.dtype(array.dtype).name in TYPES)


class _Group:
    """MXNet's store for one set of GPUs, with a key for each size and type of arrays."""

    def __init__(self) -> None:
        self._slots: Dict[Slot, int] = {}
        self._held: List[mx.kvstore.KVStore] = []  # the store, once something was summed
        finalize(self, _let_go, self._held)

    def slot(self, like: nd.NDArray) -> int:
        """The key for such arrays; a new one waits for the store, which cannot take it any more."""
        slot = (like.size, np.dtype(like.dtype).name)
        if slot not in self._slots:
            _let_go(self._held)
            self._slots[slot] = len(self._slots)
        return self._slots[slot]

    @property
    def handle(self) -> Any:
        """The store, as MXNet's C functions take it."""
        if not self._held:
            store = mx.kv.create("nccl")
            for (size, dtype), key in self._slots.items():
                store.init(key, nd.zeros((size,), dtype=dtype))
            self._held.append(store)
        return self._held[0].handle


def _let_go(held: List[mx.kvstore.KVStore]) -> None:
    """Free the store once its work is done; it would go on in memory that has been freed."""
    if held:
        with suppress(mx.MXNetError):  # of another operator: whoever reads its result is told
            nd.waitall()
        held.clear()


class _Sum:
    """The sums of some arrays over the ranks, one after the other.

    Not all in one call: MXNet's engine waits for ever for arrays that are parts of the same one.
    """

    def __init__(self, group: _Group, arrays: Ranks) -> None:
        self.transfers_run = 0
        replicas = [[flattened(array) for array in own] for own in zip(*arrays) if own[0].size]
        self._arrays = replicas  # which the calls point into
        self._calls = [
            pushpull_arguments(group.slot(own[0]), own) for own in replicas if len(own) > 1
        ]
        self._group = group

    def run(self, priority: int = 0) -> None:
        urgency = ctypes.c_int(priority)
        for arguments in self._calls:
            check_call(_LIB.MXKVStorePushPull(self._group.handle, *arguments, urgency))
        self.transfers_run += len(self._calls)
