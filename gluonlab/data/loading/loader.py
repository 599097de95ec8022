"""Batches of a split, shuffled, one shard for each device.

Two paths lead to the same shards, bit for bit. The *streaming* path makes each batch on the host
and sends its parts to the devices. The *resident* path keeps the whole split on every device, and
sends only the order of an epoch; it is for what fits the devices' memory. Changes at random are the
same on both. A thread works some batches ahead.
"""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from math import inf
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Generator,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.config.hints import named_arguments
from gluonlab.config.values import is_count
from gluonlab.data.loading.ahead import ahead
from gluonlab.data.loading.batch import Batch
from gluonlab.data.loading.pixels import to_float
from gluonlab.data.loading.shards import bounds_of, shard_sizes
from gluonlab.data.loading.streaming import Selection, Streaming, Wanted
from gluonlab.data.sets.dataset import ArraySplit, ReadAheadSplit, Split
from gluonlab.data.sets.gluon_data import resolve_split
from gluonlab.devices import listed
from gluonlab.engine.invoke import ARRAY_LIMIT, rows
from gluonlab.engine.semantics import as_users
from gluonlab.errors import DataError
from gluonlab.shares import batch_count

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from gluonlab.data.loading.augment import Augment
    from gluonlab.data.loading.mixup import Mixup
    from gluonlab.data.loading.shards import Shards
    from gluonlab.data.sets.dataset import Indices


def stays_on_devices(split: Split, resident_bytes: int) -> "TypeGuard[ArraySplit]":
    """Whether a split is resident: in memory, of at most ``resident_bytes`` and ARRAY_LIMIT."""
    if not isinstance(split, ArraySplit) or split.images.size >= ARRAY_LIMIT:
        return False
    return split.images.nbytes + split.targets.nbytes <= resident_bytes


def _fractions(weights: Sequence[Any], devices: int) -> List[Fraction]:
    if len(weights) != devices:
        raise DataError(f"{len(weights)} weights for {devices} devices: give one for each")
    if not all(isinstance(each, (int, float, Fraction)) and 0 < each < inf for each in weights):
        raise DataError(f"weights {', '.join(map(str, weights))}: give finite numbers above 0")
    return [Fraction(each) for each in weights]


def _checked(global_batch_size: Any) -> int:
    if not is_count(global_batch_size):
        possible = "a number of images from 1 up, over all devices"
        raise DataError(f"global_batch_size {global_batch_size!r}: give {possible}")
    return int(global_batch_size)


_CTXS = "give the devices as ctxs, devices('gpu:0,1') of gluonlab.devices"
_ANSWERS = {
    **dict.fromkeys(("ctx", "context", "device", "devices", "gpus", "ctx_list"), _CTXS),
    **dict.fromkeys(
        ("batch_size", "batch"), "give global_batch_size, the images of a step on all devices"
    ),
    "last_batch": "give drop_last=True to leave a smaller last batch out",
    "num_workers": "give prefetch, the batches that are made ahead",
}


class Loader:
    """Iterates over a split in batches: ``for xs, ys in loader``.

    Each `Batch` has one shard for each device that gets one.

    ``split``: one of a `gluonlab.data.Dataset`, or a ``gluon.data.Dataset`` of samples (image,
    label). ``xs``: float32 images (n, C, H, W), bytes in 0..1, or when ``raw`` in 0..255, of the
    split's type; ``ys``: int32 labels (n,), or float32 (n, 2) of a split with weights: each label
    and its weight in the loss. They are mx.nd arrays, or mx.np ones after ``npx.set_np()``. Every
    image comes exactly once per epoch: the last batch is smaller when the sizes do not divide.
    ``drop_last`` leaves that one out: other images each epoch, where they are shuffled. The order
    depends on ``seed`` and the epoch only. A worker ``rank`` of ``world_size`` takes the shards of
    its devices, as if all devices were one worker's: ``device_counts`` says how many each worker
    has; without it, as many as this one.

    ``weights``, one for each of this worker's devices, share a batch in proportion instead of
    evenly, as `gluonlab.data.loading.shards.shard_sizes` says; every worker has the same ones.

    ``prefetch`` batches are made ahead, where that is any work; a split of at most
    ``resident_bytes`` lies on every device. ``random_crops`` are cut out of image files when they
    are decoded, and so are always streamed; ``augment`` changes images on the devices. How depends
    on seed, epoch and place in the batch only. ``mixup`` then mixes each with another of the batch,
    and gives float32 images and labels (n, 3), see `gluonlab.data.loading.mixup`.

    Raises DeviceError for what is not a list of devices, and DataError for a batch without images,
    for weights that are not one positive number for each device, and for ``random_crops`` of a
    split that is not one of files.
    """

    @named_arguments("Loader", _ANSWERS)
    def __init__(
        self,
        split: Split,
        ctxs: Sequence[mx.Context],
        global_batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        shuffle: bool = True,
        raw: bool = False,
        prefetch: int = 2,
        resident_bytes: int = 0,
        random_crops: bool = False,
        augment: "Optional[Augment]" = None,
        mixup: "Optional[Mixup]" = None,
        device_counts: Optional[Sequence[int]] = None,
        drop_last: bool = False,
        weights: Optional[Sequence[Any]] = None,
    ) -> None:
        self.augment, self.mixup, self.drop_last = augment, mixup, drop_last
        self.split, self.ctxs, self.seed = resolve_split(split), listed(ctxs), seed
        split = self.split
        self.global_batch_size = _checked(global_batch_size)
        counts = device_counts or [len(self.ctxs)] * world_size
        self._first, self._devices = sum(counts[:rank]), sum(counts)  # of all workers
        self._weights: Optional[List[Fraction]] = None  # of all workers, too
        if weights is not None:
            self._weights = _fractions(weights, len(self.ctxs)) * len(counts)
        self.shuffle, self.raw, self.prefetch = shuffle, raw, prefetch
        self.epoch = 0  # the epoch that the next iteration begins, or is in
        self.step = 0  # the batches of that epoch that have been handed out
        self._source: "Streaming | _Resident"
        if random_crops and not isinstance(split, ReadAheadSplit):
            none = "random crops are cut out of image files, and this split has none"
            raise DataError(f"{none}: leave random_crops out")
        if not len(self):
            raise DataError(
                f"drop_last leaves none of {len(split)} images: a batch has "
                f"{self.global_batch_size}: choose a smaller batch, or leave drop_last out"
            )
        if stays_on_devices(split, resident_bytes):
            self._source = _Resident(split, self.ctxs)
        else:
            self._source = Streaming(split, self.ctxs, random_crops)

    @property
    def resident(self) -> bool:
        """Whether the split lies on the devices."""
        return isinstance(self._source, _Resident)

    @property
    def _works(self) -> bool:
        """Whether the host has more to do for a batch than to take slices on the devices."""
        return not self.resident or self.augment is not None or self.mixup is not None

    def __len__(self) -> int:
        """Batches per epoch."""
        return batch_count(len(self.split), self.global_batch_size, self.drop_last)

    def __iter__(self) -> "Generator[Batch, None, None]":
        batches = self._batches()[self.step :]
        sizes = [wanted[0].size for wanted in batches]
        finish: Callable[[nd.NDArray], nd.NDArray] = (
            (lambda x: x) if self.raw else (lambda x: to_float(nd, x))
        )
        made = map(self._changed, self._source.load(batches), batches)
        prefetched = self.prefetch > 0 and self._works
        with closing(
            ahead(made, self.prefetch) if prefetched else (shards for shards in made)
        ) as ready:
            for (xs, ys), size in zip(ready, sizes):
                self.step += 1
                yield Batch(as_users([finish(x) for x in xs]), as_users(ys), size)
        self.epoch, self.step = self.epoch + 1, 0

    def state(self) -> Dict[str, int]:
        """Where the loader stands; `restore` goes on from there with the same batches."""
        return {"epoch": self.epoch, "step": self.step, "seed": self.seed}

    def restore(self, state: Dict[str, int]) -> None:
        """Go on from a `state`."""
        self.epoch, self.step, self.seed = state["epoch"], state["step"], state["seed"]

    def _changed(self, loaded: "Tuple[Shards, ...]", wanted: Wanted) -> "Shards":
        """A loaded batch as ``augment`` and ``mixup`` change it."""
        key, size = wanted[0].key, wanted[0].size
        # it is empty for a worker without a part of a small batch
        if self.augment is not None and loaded[0][0]:
            draw, change = self.augment.draw(*key, size), self.augment
            loaded = tuple(
                (change(xs, draw.at(selection.places)), ys)
                for (xs, ys), selection in zip(loaded, wanted)
            )
        if self.mixup is None:
            return loaded[0]
        own, partners = loaded
        return self.mixup(own, partners, self.mixup.draw(*key))

    def _batches(self) -> List[Wanted]:
        """This worker's part of every batch of this epoch."""
        order = np.arange(len(self.split))
        if self.shuffle:  # RandomState's stream is frozen by numpy: the same order on every version
            order = np.random.RandomState([self.seed, self.epoch]).permutation(order)
        return [
            self._part(step, order[step * self.global_batch_size :][: self.global_batch_size])
            for step in range(len(self))
        ]

    def _part(self, step: int, batch: "Indices") -> Wanted:
        """This worker's part of the whole ``batch``."""
        size = len(batch)
        of_all = shard_sizes(size, self._devices, self._weights)
        sizes = of_all[self._first :][: len(self.ctxs)]
        places = np.arange(sum(sizes)) + sum(of_all[: self._first])
        partners = [size - 1 - places] if self.mixup is not None else []
        return tuple(
            Selection((self.seed, self.epoch, step), size, each, batch[each], sizes)
            for each in (places, *partners)
        )


class _Resident:
    """Gathers each device's images of a whole epoch on that device, then takes slices of them."""

    def __init__(self, split: ArraySplit, ctxs: List[mx.Context]) -> None:
        self.ctxs = ctxs
        self.images = [nd.array(split.images, dtype=split.dtype, ctx=ctx) for ctx in ctxs]
        labels = split.targets
        self.labels = [nd.array(labels, dtype=labels.dtype, ctx=ctx) for ctx in ctxs]

    def load(self, batches: List[Wanted]) -> "Iterator[Tuple[Shards, ...]]":
        columns = zip(*batches)  # all batches of the images themselves, then all of their partners
        return zip(*map(self._load, columns))

    def _load(self, selections: Sequence[Selection]) -> "Iterator[Shards]":
        batches = [selection.indices for selection in selections]
        bounds = [bounds_of(selection.sizes) for selection in selections]
        epoch = [self._gather(device, batches, bounds) for device in range(len(self.ctxs))]
        begins = [0] * len(self.ctxs)
        for batch in bounds:
            ends = [begins[device] + end - begin for device, (begin, end) in enumerate(batch)]
            places = list(zip(epoch, begins, ends))
            yield (
                [rows(images, begin, end) for (images, _), begin, end in places],
                [rows(labels, begin, end) for (_, labels), begin, end in places],
            )
            begins[: len(ends)] = ends

    def _gather(
        self, device: int, batches: "List[Indices]", bounds: List[List[Tuple[int, int]]]
    ) -> Tuple[nd.NDArray, nd.NDArray]:
        """This device's shards of all batches, one behind the other."""
        pairs = zip(batches, bounds)
        parts = [batch[slice(*bound[device])] for batch, bound in pairs if device < len(bound)]
        if not parts:
            return self.images[device][:1], self.labels[device][:1]  # no batch reaches this device
        order = nd.array(np.concatenate(parts), dtype=np.int32, ctx=self.ctxs[device])
        return nd.take(self.images[device], order), nd.take(self.labels[device], order)
