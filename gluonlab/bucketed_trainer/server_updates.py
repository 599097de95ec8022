"""Lets the servers of a process group update the weights.

The servers receive the gradients of the buckets as flat arrays, and return the new weights. The new
weights are then copied to all devices.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from itertools import accumulate
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np
from mxnet import nd

from gluonlab.bucketed_trainer.buckets import Bucket, coalesce_buckets
from gluonlab.bucketed_trainer.stale_gradients import StaleGradients
from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.errors import KVStoreError, RunError
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.optimizers.server_optimizer import FlatLayout, PerWorkerSchedule, Piece, make_layout


class ServerUpdater:
    """Lets the servers of ``store``'s group update the weights in ``buckets``.

    ``updates_buckets``: whether the optimizer can update a bucket, or a part of it, in one call.

    In a synchronous group, the servers apply the sum of all processes' gradients. In an
    asynchronous group of n processes, they apply each process's gradient separately. So they divide
    the weight decay by n, and advance the learning rate schedule by one step after every n updates.

    All processes must create a ServerUpdater, which broadcasts the weights of rank 0.
    """

    def __init__(
        self, store: GroupKVStore, buckets: Sequence[Bucket], bucket_bytes: int, optimizer: Any, updates_buckets: bool
    ) -> None:
        self._group, self._optimizer = store.group, optimizer
        self._sent_settings = _changeable_settings(optimizer)
        flats, weights = [], []
        self._transfers: List[_Transfer] = []
        first_numbers = [0, *accumulate(len(bucket.params) for bucket in buckets)]
        for keys in coalesce_buckets(buckets, bucket_bytes):
            views = []
            for key in keys:
                bucket = buckets[key]
                if updates_buckets:
                    piece = Piece(key, 0, bucket.size, (), *_multipliers(bucket))
                    views.append((bucket, 0, piece))
                else:
                    views += _parameter_pieces(bucket, first_numbers[key])
            flat = make_layout([piece for _, _, piece in views], self._group.servers)
            transfer = _Transfer(store.local, flat, keys, buckets, views)
            self._transfers.append(transfer)
            flats.append(flat)
            weights.append(transfer.array)
        if np.dtype(weights[0].dtype) != np.float32:
            raise KVStoreError(
                f"servers can update only float32 weights, but the weights have type {np.dtype(weights[0].dtype)}: "
                "omit update_on_servers"
            )
        for transfer in self._transfers:
            transfer.copy_weights_to_array()
        self._served = self._group.start_serving_weights(self._server_optimizer(), flats, weights)

    def _server_optimizer(self) -> Any:
        """Return the optimizer to send to the servers."""
        sent = copy.copy(self._optimizer)
        sent.rescale_grad = 1.0  # gradients are divided before they are sent
        if not self._group.is_synchronous:
            workers = self._group.size
            sent.wd = sent.wd / workers
            if sent.lr_scheduler is not None:
                sent.lr_scheduler = PerWorkerSchedule(sent.lr_scheduler, workers)
        return sent

    def sum_and_update(self, optimizer: Any, stale: StaleGradients, counts_differ: bool) -> None:
        """Queue the calls that send all gradients to the servers and receive the new weights.

        ``counts_differ`` is not used. Raises RunError if gradients are stale or if settings of the
        optimizer have changed, because the servers would ignore both.
        """
        if stale.on_all_devices:
            names = sorted(param.name for param in stale.on_all_devices)
            raise RunError(
                f"the servers update all parameters, but {names[0]} has received no gradient "
                "since the last step: omit ignore_stale_grad or update_on_servers"
            )
        if _changeable_settings(optimizer) != self._sent_settings:
            raise RunError(
                "the optimizer's settings have changed, but the servers still use the initial settings: use "
                "a learning rate schedule (lr_scheduler), or omit update_on_servers"
            )
        for key, transfer in enumerate(self._transfers):
            transfer.copy_gradients_to_array(float(optimizer.rescale_grad))
            self._served.update(key, transfer.array, -key)
            transfer.copy_array_to_weights()

    def synchronize(self) -> None:
        """Wait for all processes, and copy the servers' weights to all devices."""
        self._served.synchronize([transfer.array for transfer in self._transfers])
        for transfer in self._transfers:
            transfer.copy_array_to_weights()


class _Transfer:
    """Copies between some buckets and one flat array on the first device.

    ``views``: for each piece of ``flat``, (bucket, offset in the bucket, piece).
    """

    def __init__(
        self,
        local: Any,
        flat: FlatLayout,
        keys: Tuple[int, ...],
        buckets: Sequence[Bucket],
        views: Sequence[Tuple[Bucket, int, Piece]],
    ) -> None:
        grads = [buckets[key].grads for key in keys]
        self._sum = partial(local.pushpull, list(keys), grads) if len(grads[0]) > 1 else lambda: None
        flat_offsets = {piece.key: piece.begin for piece in flat.pieces}
        ctx, dtype = grads[0][0].context, grads[0][0].dtype
        self.array = nd.zeros((flat.size,), ctx, dtype)
        self._from_weights: List[Callable[[], None]] = []
        self._from_grads: List[Callable[[], None]] = []
        self._to_weights: List[Callable[[], None]] = []
        for bucket, offset, piece in views:
            begin = flat_offsets[piece.key]
            part = self.array[begin : begin + piece.end - piece.begin]
            weights = _bucket_slices(bucket.weights, offset, part.size)
            grads = _bucket_slices(bucket.grads, offset, part.size)
            part = part.reshape(weights[0].shape)
            self._from_weights.append(partial(CopyInto(part).copy, weights[0]))
            self._from_grads.append(partial(CopyInto(part).copy, grads[0]))
            self._to_weights += [partial(CopyInto(weight).copy, part) for weight in weights]

    def copy_weights_to_array(self) -> None:
        """Copy the weights of the first device to the flat array."""
        for call in self._from_weights:
            call()

    def copy_gradients_to_array(self, scale: float) -> None:
        """Sum the gradients over the devices, copy the sums to the flat array, and scale them."""
        self._sum()
        for call in self._from_grads:
            call()
        self.array *= scale

    def copy_array_to_weights(self) -> None:
        """Copy the weights from the flat array to all devices."""
        for call in self._to_weights:
            call()


def _bucket_slices(arrays: Sequence[nd.NDArray], offset: int, size: int) -> List[nd.NDArray]:
    """Return views of ``size`` elements of each array, or the arrays if they have this size."""
    # Avoid a view of a whole weight, because oneDNN may have rearranged its memory.
    if arrays[0].size == size:
        return list(arrays)
    return [array[offset : offset + size] for array in arrays]


def _parameter_pieces(bucket: Bucket, first_number: int) -> "List[Tuple[Bucket, int, Piece]]":
    """Return (bucket, offset in the bucket, `Piece` to send) for each parameter of a bucket.

    Servers must not divide these pieces. The key of each piece is ``first_number`` plus the
    parameter's position in the bucket.
    """
    pieces = []
    for number, (param, offset) in enumerate(zip(bucket.params, bucket.offsets), first_number):
        size = math.prod(param.shape)
        shape = tuple(param.shape) or (1,)
        piece = Piece(number, 0, size, shape, *_multipliers(bucket), param.name)
        pieces.append((bucket, offset, piece))
    return pieces


def _multipliers(bucket: Bucket) -> Tuple[float, float]:
    return float(bucket.lr_mult), float(bucket.wd_mult)


def _changeable_settings(optimizer: Any) -> "dict[str, Any]":
    """Return the optimizer settings that a user can change between steps."""
    return {name: getattr(optimizer, name, None) for name in ("lr", "wd", "lr_scheduler")}
