"""A kvstore that sums over the devices of this process, and then over a group of processes."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
from mxnet import nd
from mxnet.kvstore import KVStoreBase

from gluonlab.engine.fast_invoke import (
    ADD_OPERATOR,
    Attributes,
    CopyInto,
    EngineCall,
    operator_call,
)
from gluonlab.errors import KVStoreError
from gluonlab.kvstores.allreduce_store import (
    Entry,
    Keys,
    Ranks,
    Summing,
    SummingKVStore,
    is_sharded,
    refusal,
)
from gluonlab.kvstores.gradient_compression import FP16, TwoBits, keeps_rest, sendable, threshold_of
from gluonlab.kvstores.process_groups import Group


class GroupKVStore(SummingKVStore):
    """Sums over this process's devices by the store ``local``, then over ``group``.

    Between processes the arrays of a call travel as one flat buffer, of the first device; the other
    devices get copies of the sums, so replicas have the same bits everywhere. Every process makes
    the same calls, in one order; they may have different numbers of devices. ``broadcast`` gives
    all of them what the first device of rank 0 has, and waits for it.

    Raises KVStoreError for a local store that updates, or sums over processes itself, for
    ``on_servers`` in a group that has none, and for a ``compress`` that is none, or that servers
    which update, or the group, cannot take.
    """

    def __init__(
        self,
        local: KVStoreBase,
        group: Group,
        on_servers: bool = False,
        compress: Optional[str] = None,
    ) -> None:
        """``on_servers``: the group's servers update, under BucketedTrainer.

        ``compress``: "fp16" rounds what a process sends to float16, and so the sums: in half the
        bytes. What is beyond 65504 becomes infinite, in all processes. "2bit:THRESHOLD" sends -1, 0
        or 1 times the threshold of each float32 and float64, and keeps the rest for the next sum of
        the same keys: see `gluonlab.kvstores.gradient_compression`. Broadcasts stay exact.
        """
        super().__init__(f"{local.type} over {group.size} processes")
        if is_sharded(local):
            raise KVStoreError(
                f"kvstore {local.type!r} updates the weights of one process's devices: "
                "choose one that sums, such as 'device', for a group of processes"
            )
        if local.num_workers > 1:
            raise KVStoreError(
                f"kvstore {local.type!r} sums over processes itself: "
                "choose one of a single process, such as 'device'"
            )
        if on_servers and not group.servers:
            raise KVStoreError(
                f"on_servers: {group.name or 'a process alone'} has no servers that could update: "
                "take a group of gluonlab.launch.parameter_server_group, or leave it out"
            )
        if not (on_servers or group.waits):
            raise KVStoreError(
                f"{group.name}: processes do not wait for each other, so no sum can be made: "
                "set on_servers, or choose dist_sync"
            )
        self.compress = sendable(compress, group, on_servers)
        self.local, self.group, self.on_servers = local, group, on_servers
        self._local_keys = 0  # given to the local store so far
        self._two_bits: Dict[Tuple[Any, ...], TwoBits] = {}  # of the keys of each call

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def num_workers(self) -> int:
        return self.group.size

    @property
    def keeps_rest(self) -> bool:
        """Whether it sends 2 bits, and keeps what they leave over for the next sum."""
        return keeps_rest(self.compress)

    set_gradient_compression = refusal(
        "compresses as it is made to", "GroupKVStore(..., compress='2bit:0.5')"
    )

    def executor(self, arrays: Ranks, keys: Keys) -> Summing:
        own = list(range(self._local_keys, self._local_keys + len(arrays[0])))
        self._local_keys += len(own)
        of_call = (keys, *(of_rank[0].context for of_rank in arrays))
        two_bits = partial(self._two_bits_of, of_call) if self.keeps_rest else None
        halved = self.compress == FP16
        return _Sum(self.local, own, self.group, arrays, halved, two_bits)

    def _two_bits_of(self, of_call: Any, arrays: Sequence[nd.NDArray]) -> TwoBits:
        """What sends these arrays of the first device, all of one type, in 2 bits.

        What it keeps of them goes on with other arrays of the same keys, devices and shapes.
        """
        dtype = np.dtype(arrays[0].dtype)
        what = of_call, dtype, tuple(array.shape for array in arrays)
        if what not in self._two_bits:
            size, threshold = sum(array.size for array in arrays), threshold_of(str(self.compress))
            self._two_bits[what] = TwoBits(
                size, dtype, arrays[0].context, threshold, self.group.size
            )
        return self._two_bits[what]

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        super().broadcast(key, value, out, priority)  # refuses what does not fit
        entries: List[Entry] = [entry for entry in self._entries(key, value, out) if entry.outs]
        self.group.broadcast([entry.outs[0] for entry in entries])
        for entry in entries:
            super().broadcast(entry.key, entry.outs[0], entry.outs[1:], priority)


class _Sum:
    """``run()`` leaves the sum over all devices of all processes in ``arrays[rank]`` of each."""

    transfers_run = 0

    def __init__(
        self,
        local: KVStoreBase,
        keys: List[int],
        group: Group,
        arrays: Ranks,
        halved: bool,
        two_bits: "Optional[Callable[[Sequence[nd.NDArray]], TwoBits]]",
    ) -> None:
        """``halved``: float32 and float64 travel as float16; ``two_bits``: as that sends them."""
        self._local = (
            partial(local.pushpull, keys, [list(of_key) for of_key in zip(*arrays)])
            if len(arrays) > 1
            else None
        )
        self._group, self._halved, self._two_bits = group, halved, two_bits
        self._gather: List[EngineCall] = []
        self._scatter: List[EngineCall] = []
        of_type: Dict[Any, List[int]] = {}  # the places of arrays that may share a buffer
        for place, array in enumerate(arrays[0]):
            if array.size:
                of_type.setdefault(np.dtype(array.dtype), []).append(place)
        self._flat = [
            self._buffer([[of_rank[place] for place in places] for of_rank in arrays])
            for places in of_type.values()
        ]

    def run(self, priority: int = 0) -> None:
        if self._local is not None:
            self._local(priority=priority)
        for call in self._gather:
            call()
        self._group.allreduce(self._flat, priority)
        for call in self._scatter:
            call()

    def _buffer(self, arrays: Sequence[Sequence[nd.NDArray]]) -> nd.NDArray:
        """The flat array for ``arrays[rank]``, all of one type; a single flat one is it itself."""
        own, *others = arrays
        is_float = np.dtype(own[0].dtype) in (np.float32, np.float64)
        if is_float and self._two_bits is not None:
            return self._in_two_bits(self._two_bits(own), own, others)
        is_halved = is_float and self._halved
        if len(own) == 1 and len(own[0].shape) == 1 and not is_halved:
            flat = own[0].as_nd_ndarray()
            self._scatter += [partial(CopyInto(array).copy, flat) for [array] in others]
            return flat
        dtype = np.float16 if is_halved else own[0].dtype
        flat = nd.empty((sum(array.size for array in own),), own[0].context, dtype)
        begin = 0
        for array, *elsewhere in zip(own, *others):
            part = flat[begin : begin + array.size].reshape(array.shape)  # a view
            begin += array.size
            self._gather.append(_converted(array, part))
            self._scatter.append(_converted(part, array))
            self._scatter += [partial(CopyInto(each).copy, array) for each in elsewhere]
        return flat

    def _in_two_bits(
        self,
        two_bits: TwoBits,
        own: Sequence[nd.NDArray],
        others: Sequence[Sequence[nd.NDArray]],
    ) -> nd.NDArray:
        """What travels of the first device's arrays, ``own``; they and ``others`` get the sums."""
        parts = two_bits.parts([array.shape for array in own])
        self._scatter.append(two_bits.decode)
        for (rest, sums), array, *elsewhere in zip(parts, own, *others):
            self._gather.append(operator_call(ADD_OPERATOR, [rest, array], rest))
            self._scatter.append(partial(CopyInto(array).copy, sums))
            self._scatter += [partial(CopyInto(each).copy, array) for each in elsewhere]
        self._gather.append(two_bits.encode)
        return two_bits.travels


def _converted(source: nd.NDArray, into: nd.NDArray) -> EngineCall:
    """The call that copies an array into another of its device, which may have another type."""
    if np.dtype(source.dtype) == np.dtype(into.dtype):
        return partial(CopyInto(into).copy, source)
    return operator_call("Cast", [source], into, Attributes({"dtype": np.dtype(into.dtype).name}))
