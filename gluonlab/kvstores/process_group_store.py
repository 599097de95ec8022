"""A kvstore that sums arrays over the devices of this process, then over a process group."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
from mxnet import nd
from mxnet.kvstore import KVStoreBase

from gluonlab.engine.fast_invoke import ADD_OPERATOR, Attributes, CopyInto, EngineCall, operator_call
from gluonlab.errors import KVStoreError
from gluonlab.kvstores.allreduce_store import (
    AllreduceExecutor,
    AllreduceKVStore,
    ArraysByRank,
    Keys,
    PushPullEntry,
    is_sharded,
    unsupported_method,
)
from gluonlab.kvstores.gradient_compression import (
    FP16,
    TwoBitCompressor,
    keeps_residual,
    parse_threshold,
    resolve_group_compression,
)
from gluonlab.kvstores.process_groups import ProcessGroup


class GroupKVStore(AllreduceKVStore):
    """A store that sums arrays over this process's devices, and then over a process group.

    The first device sends the arrays of a call to the other processes as one flat buffer. The other
    devices receive copies of the sums, so all replicas stay bit-identical. Every process must make
    the same calls in the same order. Processes may have different numbers of devices. ``broadcast``
    sends the values of rank 0's first device to all processes, and waits until they have arrived.

    Args:
        local: the store that sums over this process's devices.
        group: the process group.
        on_servers: whether the group's servers update the weights, as BucketedTrainer requests.
        compress: "fp16" sends float16, which takes half the bytes of float32. The sums are also
            rounded to float16, and values beyond 65504 become infinite in all processes.
            "2bit:THRESHOLD" sends -1, 0 or 1 times the threshold for each float32 or float64
            element. The residual is kept for the next sum of the same keys
            (`gluonlab.kvstores.gradient_compression`). Broadcasts are not compressed.

    Raises:
        KVStoreError: for a local store that updates weights, or that sums over processes itself;
            for ``on_servers`` in a group without servers; for a ``compress`` that is invalid, or
            that the group or ``on_servers`` does not support.
    """

    def __init__(
        self, local: KVStoreBase, group: ProcessGroup, on_servers: bool = False, compress: Optional[str] = None
    ) -> None:
        super().__init__(f"{local.type} over {group.size} processes")
        if is_sharded(local):
            raise KVStoreError(
                f"kvstore {local.type!r} updates weights, but a group of processes needs a kvstore that "
                "only sums gradients: choose another kvstore, such as 'device'"
            )
        if local.num_workers > 1:
            raise KVStoreError(
                f"kvstore {local.type!r} already sums over processes: choose a single-process kvstore, such as 'device'"
            )
        if on_servers and not group.servers:
            raise KVStoreError(
                f"on_servers=True needs parameter servers, which {group.name or 'a single process'} does not "
                "have: use a group from gluonlab.launch.parameter_server_group, or omit on_servers"
            )
        if not (on_servers or group.is_synchronous):
            raise KVStoreError(
                f"{group.name} is asynchronous, so gradients cannot be summed: pass on_servers=True, or "
                "choose dist_sync"
            )
        self.compress = resolve_group_compression(compress, group, on_servers)
        self.local, self.group, self.on_servers = local, group, on_servers
        self._local_key_count = 0  # keys of the local store that are in use
        self._compressors: Dict[Tuple[Any, ...], TwoBitCompressor] = {}

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def num_workers(self) -> int:
        return self.group.size

    @property
    def keeps_residual(self) -> bool:
        """True if the store sends 2 bits and keeps the residual for the next sum."""
        return keeps_residual(self.compress)

    set_gradient_compression = unsupported_method(
        "sets the compression only when it is created", "use GroupKVStore(..., compress='2bit:0.5')"
    )

    def make_executor(self, arrays: ArraysByRank, keys: Keys) -> AllreduceExecutor:
        """Return an executor that sums over devices and processes, with compression if set."""
        local_keys = list(range(self._local_key_count, self._local_key_count + len(arrays[0])))
        self._local_key_count += len(local_keys)
        keys_and_devices = (keys, *(of_rank[0].context for of_rank in arrays))
        get_compressor = partial(self._get_compressor, keys_and_devices) if self.keeps_residual else None
        as_float16 = self.compress == FP16
        return _GroupAllreduce(self.local, local_keys, self.group, arrays, as_float16, get_compressor)

    def _get_compressor(self, keys_and_devices: Any, arrays: Sequence[nd.NDArray]) -> TwoBitCompressor:
        """Return the compressor for these arrays, which are on the first device and have one type.

        Other arrays with the same keys, devices and shapes share the compressor and its residual.
        """
        dtype = np.dtype(arrays[0].dtype)
        key = keys_and_devices, dtype, tuple(array.shape for array in arrays)
        if key not in self._compressors:
            size, threshold = (sum(array.size for array in arrays), parse_threshold(str(self.compress)))
            self._compressors[key] = TwoBitCompressor(size, dtype, arrays[0].context, threshold, self.group.size)
        return self._compressors[key]

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy rank 0's ``value`` into every array of ``out`` in all processes."""
        super().broadcast(key, value, out, priority)  # raises if a value does not fit its outs
        entries: List[PushPullEntry] = [entry for entry in self._make_entries(key, value, out) if entry.outs]
        self.group.broadcast([entry.outs[0] for entry in entries])
        for entry in entries:
            super().broadcast(entry.key, entry.outs[0], entry.outs[1:], priority)


class _GroupAllreduce:
    """The allreduce of ``arrays[rank]`` over all devices of all processes."""

    transfers_run = 0

    def __init__(
        self,
        local: KVStoreBase,
        keys: List[int],
        group: ProcessGroup,
        arrays: ArraysByRank,
        as_float16: bool,
        get_compressor: "Optional[Callable[[Sequence[nd.NDArray]], TwoBitCompressor]]",
    ) -> None:
        """Prepare all calls. ``get_compressor``: None without 2-bit compression."""
        self._local = (
            partial(local.pushpull, keys, [list(of_key) for of_key in zip(*arrays)]) if len(arrays) > 1 else None
        )
        self._group, self._as_float16, self._get_compressor = group, as_float16, get_compressor
        self._calls_before: List[EngineCall] = []
        self._calls_after: List[EngineCall] = []
        indices_by_dtype: Dict[Any, List[int]] = {}
        for index, array in enumerate(arrays[0]):
            if array.size:
                indices_by_dtype.setdefault(np.dtype(array.dtype), []).append(index)
        self._buffers = [
            self._prepare_buffer([[of_rank[index] for index in indices] for of_rank in arrays])
            for indices in indices_by_dtype.values()
        ]

    def run(self, priority: int = 0) -> None:
        """Sum the arrays over devices, then over processes, and copy the sums to all devices."""
        if self._local is not None:
            self._local(priority=priority)
        for call in self._calls_before:
            call()
        self._group.allreduce(self._buffers, priority)
        for call in self._calls_after:
            call()

    def _prepare_buffer(self, arrays: Sequence[Sequence[nd.NDArray]]) -> nd.NDArray:
        """Return the buffer to sum over the processes, and plan the copies into and out of it.

        ``arrays[i]``: the arrays of device i, all of one type. The copies are appended to
        `_calls_before` and `_calls_after`. A single flat array is its own buffer.
        """
        sent_arrays, *others = arrays
        is_float = np.dtype(sent_arrays[0].dtype) in (np.float32, np.float64)
        if is_float and self._get_compressor is not None:
            return self._plan_two_bit_exchange(self._get_compressor(sent_arrays), sent_arrays, others)
        is_converted = is_float and self._as_float16
        if len(sent_arrays) == 1 and len(sent_arrays[0].shape) == 1 and not is_converted:
            buffer = sent_arrays[0].as_nd_ndarray()
            self._calls_after += [partial(CopyInto(array).copy, buffer) for [array] in others]
            return buffer
        dtype = np.float16 if is_converted else sent_arrays[0].dtype
        buffer = nd.empty((sum(array.size for array in sent_arrays),), sent_arrays[0].context, dtype)
        start = 0
        for array, *copies in zip(sent_arrays, *others):
            view = buffer[start : start + array.size].reshape(array.shape)
            start += array.size
            self._calls_before.append(_copy_or_cast(array, view))
            self._calls_after.append(_copy_or_cast(view, array))
            self._calls_after += [partial(CopyInto(copy).copy, array) for copy in copies]
        return buffer

    def _plan_two_bit_exchange(
        self, compressor: TwoBitCompressor, sent_arrays: Sequence[nd.NDArray], others: Sequence[Sequence[nd.NDArray]]
    ) -> nd.NDArray:
        """Return the 2-bit buffer to sum over the processes, and plan the calls for it.

        Calls before the sum encode ``sent_arrays``, the first device's arrays. Calls after the sum
        decode it and copy it to all devices. ``others``: the arrays of each other device.
        """
        views = compressor.array_views([array.shape for array in sent_arrays])
        self._calls_after.append(compressor.decode)
        for (residual, sums), array, *copies in zip(views, sent_arrays, *others):
            self._calls_before.append(operator_call(ADD_OPERATOR, [residual, array], residual))
            self._calls_after.append(partial(CopyInto(array).copy, sums))
            self._calls_after += [partial(CopyInto(copy).copy, array) for copy in copies]
        self._calls_before.append(compressor.encode)
        return compressor.packed


def _copy_or_cast(source: nd.NDArray, into: nd.NDArray) -> EngineCall:
    """Return a call that copies ``source`` to ``into`` on the same device, converting the type."""
    if np.dtype(source.dtype) == np.dtype(into.dtype):
        return partial(CopyInto(into).copy, source)
    return operator_call("Cast", [source], into, Attributes({"dtype": np.dtype(into.dtype).name}))
