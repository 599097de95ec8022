"""The step of a trainer whose group's servers update: one flat array of gradients goes to them.

It comes back as the new weights, which the devices take over."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np
from mxnet import nd

from gluonlab.bucketed_trainer.buckets import Bucket, together
from gluonlab.bucketed_trainer.stale_gradients import Stale
from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.errors import KVStoreError, RunError
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.optimizers.server_optimizer import EachShare, Flat, Piece, laid_out


class UpdateOnServers:
    """Has the servers of ``store``'s group update the weights of ``buckets``.

    ``by_bucket``: whether the optimizer may update a bucket at once, and parts of it. Where
    processes wait for each other, the update is that of the sum of their gradients. Where they do
    not, each process's gradient is an update of its own: of its images' share in the batch, with
    its share of the weight decay, at the rate of the batch that as many updates as there are
    processes make up. All processes must make one; it gives them rank 0's weights.
    """

    def __init__(
        self,
        store: GroupKVStore,
        buckets: Sequence[Bucket],
        bucket_bytes: int,
        optimizer: Any,
        by_bucket: bool,
    ) -> None:
        self._group, self._optimizer = store.group, optimizer
        self._sent = _settings(optimizer)
        flats, weights = [], []
        self._transfers: List[_Transfer] = []
        first_of = {
            place: sum(len(b.params) for b in buckets[:place]) for place in range(len(buckets))
        }
        for places in together(buckets, bucket_bytes):
            pieces, views = [], []
            for place in places:
                inside = _whole(buckets[place], first_of[place])
                if by_bucket:
                    size = buckets[place].size
                    inside = [(Piece(place, 0, size, (), *_multipliers(buckets[place])), 0)]
                pieces += [piece for piece, _ in inside]
                views += [(buckets[place], begin, piece) for piece, begin in inside]
            flat = laid_out(pieces, self._group.servers)
            at = {piece.key: piece.begin for piece in flat.pieces}
            transfer = _Transfer(store.local, flat, places, buckets, views, at)
            self._transfers.append(transfer)
            flats.append(flat)
            weights.append(transfer.array)
        if np.dtype(weights[0].dtype) != np.float32:
            raise KVStoreError(
                f"servers update float32, and the weights are {np.dtype(weights[0].dtype)}: "
                "leave update_on_servers out"
            )
        for transfer in self._transfers:
            transfer.gather_weights()
        self._served = self._group.start_serving_weights(self._traveller(), flats, weights)

    def _traveller(self) -> Any:
        """The optimizer as the servers get it: gradients are divided before they travel."""
        sent = copy.copy(self._optimizer)
        sent.rescale_grad = 1.0
        if not self._group.is_synchronous:
            workers = self._group.size
            sent.wd = sent.wd / workers
            if sent.lr_scheduler is not None:
                sent.lr_scheduler = EachShare(sent.lr_scheduler, workers)
        return sent

    def run(self, optimizer: Any, stale: Stale, uneven: bool) -> None:
        """Queue a step. Raises RunError for what does not reach the servers."""
        if stale.parameters:
            names = sorted(param.name for param in stale.parameters)
            raise RunError(
                f"the servers update all parameters, and {names[0]} has no fresh gradient: "
                "leave ignore_stale_grad out, or update_on_servers"
            )
        if _settings(optimizer) != self._sent:
            raise RunError(
                "the servers have the optimizer as it was at first, and its settings have changed "
                "since: give it a schedule (lr_scheduler), or leave update_on_servers out"
            )
        for place, transfer in enumerate(self._transfers):
            transfer.gather_gradients(float(optimizer.rescale_grad))
            self._served.update(place, transfer.array, -place)
            transfer.scatter()

    def meet(self) -> None:
        """Wait for all processes; all their devices get the servers' weights as they are then."""
        self._served.synchronize([transfer.array for transfer in self._transfers])
        for transfer in self._transfers:
            transfer.scatter()


class _Transfer:
    """Some buckets as one flat array of the first device."""

    def __init__(
        self,
        local: Any,
        flat: Flat,
        places: Tuple[int, ...],
        buckets: Sequence[Bucket],
        views: Sequence[Tuple[Bucket, int, Piece]],
        at: "dict[int, int]",
    ) -> None:
        grads = [buckets[place].grads for place in places]
        self._sum = (
            partial(local.pushpull, list(places), grads) if len(grads[0]) > 1 else lambda: None
        )
        ctx, dtype = grads[0][0].context, grads[0][0].dtype
        self.array = nd.zeros((flat.size,), ctx, dtype)
        self._from_weights: List[Callable[[], None]] = []
        self._from_grads: List[Callable[[], None]] = []
        self._to_weights: List[Callable[[], None]] = []
        for bucket, begin, piece in views:
            first = at[piece.key]
            part = self.array[first : first + piece.end - piece.begin]
            weights, grads = (
                _cut(arrays, begin, part) for arrays in (bucket.weights, bucket.grads)
            )
            part = part.reshape(weights[0].shape)
            self._from_weights.append(partial(CopyInto(part).copy, weights[0]))
            self._from_grads.append(partial(CopyInto(part).copy, grads[0]))
            self._to_weights += [partial(CopyInto(each).copy, part) for each in weights]

    def gather_weights(self) -> None:
        for call in self._from_weights:
            call()

    def gather_gradients(self, scale: float) -> None:
        self._sum()
        for call in self._from_grads:
            call()
        self.array *= scale

    def scatter(self) -> None:
        for call in self._to_weights:
            call()


def _cut(arrays: Sequence[nd.NDArray], begin: int, part: nd.NDArray) -> List[nd.NDArray]:
    """As many elements of each as ``part`` has; an array that is meant whole is it itself.

    oneDNN may have rearranged a weight, which must not be read or written through a view then.
    """
    if arrays[0].size == part.size:
        return list(arrays)
    return [array[begin : begin + part.size] for array in arrays]


def _whole(bucket: Bucket, first: int) -> "List[Tuple[Piece, int]]":
    """Each parameter of a bucket as a piece that must stay whole, and where it begins there."""
    found = []
    for number, (param, begin) in enumerate(zip(bucket.params, bucket.begins), start=first):
        size = math.prod(param.shape)
        shape = tuple(param.shape) or (1,)
        piece = Piece(number, 0, size, shape, *_multipliers(bucket), param.name)
        found.append((piece, begin))
    return found


def _multipliers(bucket: Bucket) -> Tuple[float, float]:
    return float(bucket.lr_mult), float(bucket.wd_mult)


def _settings(optimizer: Any) -> "dict[str, Any]":
    """What a user can change in an optimizer between two steps."""
    return {name: getattr(optimizer, name, None) for name in ("lr", "wd", "lr_scheduler")}
