"""Loads shuffled batches of a split, with one shard per device.

There are two ways to load shards, with exactly the same result:

- Resident: every device keeps a copy of the whole split, and receives only the order of each epoch.
  This is the default for splits of up to 256 MiB (`TrainConfig.device_cache_bytes`).
- Streaming: each batch is assembled on the host, and its shards are copied to the devices. A thread
  prefetches batches.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from fractions import Fraction
from itertools import chain
from math import inf
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    Generator,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    cast,
)

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.config.option_checks import is_positive_integer
from gluonlab.config.option_hints import check_argument_names
from gluonlab.data.loading.augmentation import FILE_CROPS_STREAM, make_step_rng, to_float
from gluonlab.data.loading.prefetch import prefetch
from gluonlab.data.loading.split_batch import Batch, batch_count, bounds_from_sizes, make_sharder, shard_sizes
from gluonlab.data.sets.dataset import ArraySplit, ReadAheadSplit, Reading, Split
from gluonlab.data.sets.from_gluon_datasets import resolve_split
from gluonlab.devices import check_device_list
from gluonlab.engine.fast_invoke import ARRAY_LIMIT, slice_rows
from gluonlab.engine.nd_and_np_arrays import to_user_arrays
from gluonlab.errors import DataError
from gluonlab.renamed import RenamedMember

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from gluonlab.data.loading.augmentation import Augment, Mixup
    from gluonlab.data.loading.split_batch import Sharder, Shards
    from gluonlab.data.sets.dataset import Images, Indices, Targets


class BatchSelection(NamedTuple):
    """This worker's images in a batch, or the mixup partners of these images.

    ``rng_key``: the seed, epoch and step, from which random numbers are drawn. ``size``: the number
    of images in the batch over all workers. ``positions``: the positions of the images in that
    batch. ``indices``: the indices of the images in the split. ``sizes``: the sizes of this
    worker's shards.
    """

    rng_key: Tuple[int, int, int]
    size: int
    positions: "Indices"
    indices: "Indices"
    sizes: Sequence[int]

    def image_seeds(self) -> List[int]:
        """Draw a seed below 2**32 for each image.

        Each seed depends only on ``rng_key`` and the image's position.
        """
        batch_seeds = make_step_rng(*self.rng_key, FILE_CROPS_STREAM).randint(0, 2**32, self.size, dtype=np.uint32)
        return [int(seed) for seed in batch_seeds[self.positions]]


# A worker's images of a batch and, with mixup, the partners of these images.
BatchSelections = Tuple[BatchSelection, ...]


def fits_on_devices(split: Split, resident_bytes: int) -> "TypeGuard[ArraySplit]":
    """Return whether a split is in memory and small enough to be copied to every device."""
    if not isinstance(split, ArraySplit) or split.images.size >= ARRAY_LIMIT:
        return False
    return split.images.nbytes + split.targets.nbytes <= resident_bytes


def _check_device_weights(weights: Sequence[Any], devices: int) -> List[Fraction]:
    """Check the weights of the devices, and convert them to exact fractions."""
    if len(weights) != devices:
        raise DataError(f"there are {len(weights)} weights for {devices} devices: pass one weight for each device")
    if not all(isinstance(weight, (int, float, Fraction)) and 0 < weight < inf for weight in weights):
        raise DataError(f"weights={', '.join(map(str, weights))}: use finite numbers above 0")
    return [Fraction(weight) for weight in weights]


def _check_batch_size(global_batch_size: Any) -> int:
    """Return the batch size as an int. Raises DataError for other values than positive integers."""
    if not is_positive_integer(global_batch_size):
        allowed = "a whole number of at least 1, the number of images on all devices"
        raise DataError(f"global_batch_size={global_batch_size!r}: use {allowed}")
    return int(global_batch_size)


_CTXS_HINT = "pass the devices as ctxs, such as devices('gpu:0,1') from gluonlab.devices"
_ARGUMENT_HINTS = {
    **dict.fromkeys(("ctx", "context", "device", "devices", "gpus", "ctx_list"), _CTXS_HINT),
    **dict.fromkeys(("batch_size", "batch"), "pass global_batch_size, the number of images in a step on all devices"),
    "last_batch": "pass drop_last=True to drop a smaller last batch",
    "num_workers": "pass prefetch, the number of batches that are prepared in advance",
}


class Loader:
    """Iterate over a part of a data set in batches, with one shard per device.

    Use the loader as ``for xs, ys in loader``. ``xs`` and ``ys`` are lists with one array per
    device. Images are float32 (n, C, H, W) with values from 0 to 1. Labels are int32 with shape
    (n,) or, if the images have weights, float32 with shape (n, 2): label and weight. Arrays are
    mx.nd, or mx.np after ``npx.set_np()``.

    Every image occurs exactly once per epoch. The last batch can be smaller. The order depends only
    on the seed and the epoch. Augmentation depends only on the seed, the epoch, the step and the
    position in the batch.

    Args:
        split: A part of a `gluonlab.data.Dataset`, such as ``dataset.train``, or a Gluon data set
            with samples (image, label).
        ctxs: The devices of this process.
        global_batch_size: The number of images per batch, over all devices of all processes.
        seed: The seed for shuffling and augmentation.
        rank: The rank of this process.
        world_size: The number of processes.
        shuffle: Whether to shuffle the images in each epoch.
        raw: Whether images keep their type and scale, such as bytes from 0 to 255.
        prefetch: The number of batches to prepare ahead.
        resident_bytes: Maximum size, in bytes of images, of a split that is cached on every device.
        random_crops: Whether to crop image files at random when they are decoded.
        augment: Random crops and flips on the devices.
        mixup: Mixup of pairs of images. Labels are then (n, 3), see
            `gluonlab.data.loading.augmentation.Mixup`.
        device_counts: The number of devices in each process. By default, all processes have the
            same number of devices.
        drop_last: Whether to drop the last batch if it is smaller.
        weights: One positive number per device. Shards are proportional to these numbers. All
            processes need the same weights.

    Raises:
        DeviceError: ``ctxs`` is not a list of devices.
        DataError: The batch size or ``weights`` is invalid, or ``random_crops`` is used without
            image files.
    """

    @check_argument_names("Loader", _ARGUMENT_HINTS)
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
        self.split, self.ctxs, self.seed = resolve_split(split), check_device_list(ctxs), seed
        split = self.split
        self.global_batch_size = _check_batch_size(global_batch_size)
        counts = device_counts or [len(self.ctxs)] * world_size
        self._first_device, self._device_count = sum(counts[:rank]), sum(counts)  # on all workers
        self._weights: Optional[List[Fraction]] = None  # for the devices of all workers
        if weights is not None:
            self._weights = _check_device_weights(weights, len(self.ctxs)) * len(counts)
        self.shuffle, self.raw, self.prefetch = shuffle, raw, prefetch
        self.epoch = 0  # the epoch of the current or next iteration
        self.step = 0  # batches of that epoch that have been yielded
        self._source: "_StreamingSource | _ResidentSource"
        if random_crops and not isinstance(split, ReadAheadSplit):
            reason = "random crops need image files, but this split has none"
            raise DataError(f"{reason}: omit random_crops")
        if not len(self):
            raise DataError(
                f"drop_last drops all {len(split)} images, because a batch has "
                f"{self.global_batch_size} images: use a smaller batch size, or omit drop_last"
            )
        if fits_on_devices(split, resident_bytes):
            self._source = _ResidentSource(split, self.ctxs)
        else:
            self._source = _StreamingSource(split, self.ctxs, random_crops)

    @property
    def is_resident(self) -> bool:
        """True if the devices keep a copy of the split."""
        return isinstance(self._source, _ResidentSource)

    resident = RenamedMember("is_resident")

    @property
    def _needs_host_work(self) -> bool:
        """True if the host must do more for a batch than slice arrays on the devices."""
        return not self.is_resident or self.augment is not None or self.mixup is not None

    def __len__(self) -> int:
        """Number of batches per epoch."""
        return batch_count(len(self.split), self.global_batch_size, self.drop_last)

    def __iter__(self) -> "Generator[Batch, None, None]":
        batches = self._select_batches()[self.step :]
        sizes = [selections[0].size for selections in batches]
        finish: Callable[[nd.NDArray], nd.NDArray] = (lambda x: x) if self.raw else (lambda x: to_float(nd, x))
        loaded = map(self._augment_batch, self._source.load_shards(batches), batches)
        use_prefetch = self.prefetch > 0 and self._needs_host_work
        with closing(prefetch(loaded, self.prefetch) if use_prefetch else (shards for shards in loaded)) as prefetched:
            for (xs, ys), size in zip(prefetched, sizes):
                self.step += 1
                yield Batch(to_user_arrays([finish(x) for x in xs]), to_user_arrays(ys), size)
        self.epoch, self.step = self.epoch + 1, 0

    def state(self) -> Dict[str, int]:
        """Return the loader's position, from which `restore` resumes with the same batches."""
        return {"epoch": self.epoch, "step": self.step, "seed": self.seed}

    def restore(self, state: Dict[str, int]) -> None:
        """Resume from a position that `state` returned."""
        self.epoch, self.step, self.seed = state["epoch"], state["step"], state["seed"]

    def _augment_batch(self, loaded: "Tuple[Shards, ...]", selections: BatchSelections) -> "Shards":
        """Apply ``augment`` and ``mixup`` to a loaded batch."""
        rng_key, size = selections[0].rng_key, selections[0].size
        # If the batch is small, this worker may have no shards.
        if self.augment is not None and loaded[0][0]:
            draw, augment = self.augment.draw(*rng_key, size), self.augment
            loaded = tuple(
                (augment(xs, draw.select(selection.positions)), ys) for (xs, ys), selection in zip(loaded, selections)
            )
        if self.mixup is None:
            return loaded[0]
        shards, partners = loaded
        return self.mixup(shards, partners, self.mixup.draw(*rng_key))

    def _select_batches(self) -> List[BatchSelections]:
        """Return the selection of this worker's images for every batch in the epoch."""
        order = np.arange(len(self.split))
        if self.shuffle:  # NumPy guarantees that RandomState is the same in every version
            order = np.random.RandomState([self.seed, self.epoch]).permutation(order)
        return [
            self._select_own_images(step, order[step * self.global_batch_size :][: self.global_batch_size])
            for step in range(len(self))
        ]

    def _select_own_images(self, step: int, batch: "Indices") -> BatchSelections:
        """Select this worker's images in a batch and, with mixup, the images to mix into them.

        ``batch``: the indices, in the split, of all images in the batch.
        """
        size = len(batch)
        all_sizes = shard_sizes(size, self._device_count, self._weights)
        sizes = all_sizes[self._first_device :][: len(self.ctxs)]
        positions = np.arange(sum(sizes)) + sum(all_sizes[: self._first_device])
        partners = [size - 1 - positions] if self.mixup is not None else []
        return tuple(
            BatchSelection((self.seed, self.epoch, step), size, selected, batch[selected], sizes)
            for selected in (positions, *partners)
        )


class _ResidentSource:
    """Source of shards that keeps a copy of the split on every device.

    For each epoch, each device gathers its images in the epoch's order. Shards are slices of the
    gathered array.
    """

    def __init__(self, split: ArraySplit, ctxs: List[mx.Context]) -> None:
        self.ctxs = ctxs
        self.images = [nd.array(split.images, dtype=split.dtype, ctx=ctx) for ctx in ctxs]
        labels = split.targets
        self.labels = [nd.array(labels, dtype=labels.dtype, ctx=ctx) for ctx in ctxs]

    def load_shards(self, batches: List[BatchSelections]) -> "Iterator[Tuple[Shards, ...]]":
        # all selections of own images and, with mixup, all selections of partners
        columns = zip(*batches)
        return zip(*map(self._load_selections, columns))

    def _load_selections(self, selections: Sequence[BatchSelection]) -> "Iterator[Shards]":
        """Yield, for each batch in an epoch, the shards of the selected images."""
        batches = [selection.indices for selection in selections]
        bounds = [bounds_from_sizes(selection.sizes) for selection in selections]
        epoch = [self._gather_epoch(device, batches, bounds) for device in range(len(self.ctxs))]
        begins = [0] * len(self.ctxs)
        for batch in bounds:
            ends = [begins[device] + end - begin for device, (begin, end) in enumerate(batch)]
            slices = list(zip(epoch, begins, ends))
            yield (
                [slice_rows(images, begin, end) for (images, _), begin, end in slices],
                [slice_rows(labels, begin, end) for (_, labels), begin, end in slices],
            )
            begins[: len(ends)] = ends

    def _gather_epoch(
        self, device: int, batches: "List[Indices]", bounds: List[List[Tuple[int, int]]]
    ) -> Tuple[nd.NDArray, nd.NDArray]:
        """Gather the images and labels of all batches on device number ``device``, in order.

        ``bounds``: for each batch, the (begin, end) of each device's shard.
        """
        pairs = zip(batches, bounds)
        parts = [batch[slice(*bound[device])] for batch, bound in pairs if device < len(bound)]
        if not parts:
            return self.images[device][:1], self.labels[device][:1]  # no batch reaches this device
        order = nd.array(np.concatenate(parts), dtype=np.int32, ctx=self.ctxs[device])
        return nd.take(self.images[device], order), nd.take(self.labels[device], order)


# --- streaming: batches are made on the host and copied to the devices


# Pairs of sharders for images and labels. With mixup, the partners use the second pair.
_SharderPairs = List[Tuple["Sharder", "Sharder"]]


class _StreamingSource:
    """Source of shards that assembles batches on the host. ``random_crops``: see `Loader`."""

    def __init__(self, split: Split, ctxs: Sequence[mx.Context], random_crops: bool) -> None:
        self.split, self.ctxs, self.random_crops = split, ctxs, random_crops
        self._reads_ahead = isinstance(split, ReadAheadSplit)
        self._idle_sharders: List[_SharderPairs] = []

    def load_shards(self, batches: List[BatchSelections]) -> "Iterator[Tuple[Shards, ...]]":
        """Yield the shards of each batch and, with mixup, of the images to mix into the batch.

        Images have shape (n, C, H, W) and the split's type. Labels are int32 with shape (n,). The
        source starts to read each batch before the previous batch is finished, so that decoders are
        never idle. The split's errors, such as DataError for a damaged file, are raised for the
        batch that contains the file.
        """
        started: "Deque[Tuple[List[Reading], BatchSelections]]" = deque()
        sharders = (
            self._idle_sharders.pop()
            if self._idle_sharders
            else [(make_sharder(self.ctxs), make_sharder(self.ctxs)) for _ in range(2)]
        )
        try:
            for selections in batches:
                to_read = selections[: 1 if _partners_are_reversed(selections) else None]
                started.append(([self._start_reading(selection) for selection in to_read], selections))
                if len(started) > 1:
                    yield self._shard_batch(*started.popleft(), sharders)
            while started:
                yield self._shard_batch(*started.popleft(), sharders)
        finally:
            self._idle_sharders.append(sharders)
            for reading in chain(*(readings for readings, _ in started)):
                reading.cancel()

    def _start_reading(self, selection: BatchSelection) -> Reading:
        """Start to read a batch. If the split cannot read ahead, the batch is read when needed."""
        if not self._reads_ahead:
            return _DeferredReading(self.split, selection)
        seeds = selection.image_seeds() if self.random_crops else None
        return cast(ReadAheadSplit, self.split).start_reading(selection.indices, seeds)

    def _shard_batch(
        self, readings: List[Reading], selections: BatchSelections, sharders: _SharderPairs
    ) -> "Tuple[Shards, ...]":
        """Wait for the images of a batch and its mixup partners, and copy them to the devices."""
        try:
            arrays = [reading.result() for reading in readings]
        except BaseException:  # a damaged file, or Ctrl-C: the other readings are not needed
            for reading in readings:
                reading.cancel()
            raise
        if len(arrays) < len(selections):
            images, labels = arrays[0]
            arrays.append((images[::-1], labels[::-1]))
        sizes = selections[0].sizes
        shards = [
            (shard_images(images, sizes), shard_labels(labels, sizes))
            for (images, labels), (shard_images, shard_labels) in zip(arrays, sharders)
        ]
        # Not from a generator: gc.get_objects could see the growing tuple, and thereby break it.
        return tuple(shards)


class _DeferredReading(NamedTuple):
    """A batch from a split without read-ahead, which is read when `result` is called."""

    split: Split
    selection: BatchSelection

    def result(self) -> "Tuple[Images, Targets]":
        return self.split.batch(self.selection.indices)

    def cancel(self) -> None:
        """Do nothing, because reading has not started."""


def _partners_are_reversed(selections: BatchSelections) -> bool:
    """Return whether the mixup partners are this worker's own images, in reverse order.

    If the partners are the same images, the images are read only once.
    """
    return len(selections) == 2 and np.array_equal(selections[1].positions, selections[0].positions[::-1])
