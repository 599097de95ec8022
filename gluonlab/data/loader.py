"""Batches of a split, shuffled, one shard for each device.

Two paths lead to the same shards, bit for bit. The *streaming* path makes each batch on the host and sends its parts
to the devices, some batches ahead. The *resident* path keeps the whole split on every device, and sends only the
order of an epoch; it is for what fits the devices' memory.
"""

from __future__ import annotations

import math
import queue
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.data.dataset import ArraySplit, Split
from gluonlab.invoke import ARRAY_LIMIT, from_host

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from gluonlab.data.augment import Augment
    from gluonlab.data.dataset import Indices

    Shards = Tuple[List[nd.NDArray], List[nd.NDArray]]


def to_float(F: Any, images: Any) -> Any:
    """uint8 0..255 -> float32 0..1, on the device; ``F`` is mx.nd or mx.sym."""
    return F.cast(images, dtype="float32") * (1 / 255)


def shard(array: nd.NDArray, ctxs: Sequence[mx.Context]) -> List[nd.NDArray]:
    """Split the batch axis over the devices: as evenly as it goes, the first devices take what is left over.

    A batch smaller than the number of devices occupies only the first ones: the list is then shorter than ``ctxs``.
    """
    busy = list(ctxs[: len(array)])
    if not busy:  # a worker's part of a batch that is smaller than the number of workers
        return []
    return gluon.utils.split_and_load(array, busy, even_split=False)  # type: ignore[no-any-return]


def shard_bounds(size: int, parts: int) -> List[Tuple[int, int]]:
    """The (begin, end) that `shard` gives each of the parts that are not empty."""
    each, extra = divmod(size, parts)
    begins = [i * each + min(i, extra) for i in range(parts + 1)]
    return [(begin, end) for begin, end in zip(begins, begins[1:]) if end > begin]


def stays_on_devices(split: Split, resident_bytes: int) -> "TypeGuard[ArraySplit]":
    """Whether a split is resident: in memory, of at most ``resident_bytes``, and not too large for one of MXNet's arrays."""
    if not isinstance(split, ArraySplit) or split.images.size >= ARRAY_LIMIT:
        return False
    return split.images.nbytes + split.labels.nbytes <= resident_bytes


class Loader:
    """Iterates over a split in batches; each batch is ``(xs, ys)``, with one shard for each device that has one.

    ``xs``: float32 images (n, C, H, W) in 0..1, or uint8 in 0..255 when ``raw``; ``ys``: int32 labels (n,).
    Every image comes exactly once per epoch: the last batch is smaller when the sizes do not divide.
    The order depends on ``seed`` and the epoch only. A worker ``rank`` of ``world_size`` takes its part of each batch.

    ``prefetch`` batches are made ahead when streaming; a split of at most ``resident_bytes`` lies on every device.
    ``augment`` changes the images at random; how depends on seed, epoch and place in the batch only.
    """

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
        augment: "Optional[Augment]" = None,
    ) -> None:
        self.augment = augment
        self.split, self.ctxs, self.global_batch_size, self.seed = split, list(ctxs), global_batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.shuffle, self.raw, self.prefetch = shuffle, raw, prefetch
        self.epoch = 0  # the epoch that the next iteration begins, or is in
        self.step = 0  # the batches of that epoch that have been handed out
        self._source: "_Streaming | _Resident"
        if stays_on_devices(split, resident_bytes):
            self._source = _Resident(split, self.ctxs)
        else:
            self._source = _Streaming(split, self.ctxs, prefetch)

    @property
    def resident(self) -> bool:
        """Whether the split lies on the devices."""
        return isinstance(self._source, _Resident)

    def __len__(self) -> int:
        """Batches per epoch."""
        return math.ceil(len(self.split) / self.global_batch_size)

    def __iter__(self) -> "Generator[Shards, None, None]":
        batches = self._batches()[self.step :]
        finish: Callable[[nd.NDArray], nd.NDArray] = (lambda x: x) if self.raw else (lambda x: to_float(nd, x))
        for xs, ys in self._source.load(batches):
            changed = self._augmented(xs)
            self.step += 1
            yield [finish(x) for x in changed], ys
        self.epoch, self.step = self.epoch + 1, 0

    def state(self) -> Dict[str, int]:
        """Where the loader stands; `restore` goes on from there with the same batches."""
        return {"epoch": self.epoch, "step": self.step, "seed": self.seed}

    def restore(self, state: Dict[str, int]) -> None:
        """Go on from a `state`."""
        self.epoch, self.step, self.seed = state["epoch"], state["step"], state["seed"]

    def _augmented(self, xs: List[nd.NDArray]) -> List[nd.NDArray]:
        """The shards of this worker's part of the current batch as ``augment`` changes them."""
        if self.augment is None or not xs:
            return xs
        size = min(self.global_batch_size, len(self.split) - self.step * self.global_batch_size)
        draw = self.augment.draw(self.seed, self.epoch, self.step, size)
        return self.augment(xs, draw.part(*shard_bounds(size, self.world_size)[self.rank]))

    def _batches(self) -> "List[Indices]":
        """This worker's indices of every batch of this epoch."""
        order = np.arange(len(self.split))
        if self.shuffle:  # RandomState's stream is frozen by numpy: the same order on every version
            order = np.random.RandomState([self.seed, self.epoch]).permutation(order)
        whole = [order[i : i + self.global_batch_size] for i in range(0, len(order), self.global_batch_size)]
        if self.world_size == 1:
            return whole
        return [np.array_split(batch, self.world_size)[self.rank] for batch in whole]


class _Streaming:
    """Makes batches on the host in a thread, ``prefetch`` ahead of the consumer."""

    def __init__(self, split: Split, ctxs: List[mx.Context], prefetch: int) -> None:
        self.split, self.ctxs, self.prefetch = split, ctxs, prefetch

    def load(self, batches: "List[Indices]") -> "Iterator[Shards]":
        if not self.prefetch:
            return map(self._make, batches)
        return _ahead(self._make, batches, self.prefetch)

    def _make(self, indices: "Indices") -> "Shards":
        images, labels = self.split.batch(indices)
        return shard(from_host(images), self.ctxs), shard(from_host(labels), self.ctxs)


class _Resident:
    """Gathers each device's images of a whole epoch on that device, then only takes slices of them."""

    def __init__(self, split: ArraySplit, ctxs: List[mx.Context]) -> None:
        self.ctxs = ctxs
        self.images = [nd.array(split.images, dtype=np.uint8, ctx=ctx) for ctx in ctxs]
        self.labels = [nd.array(split.labels, dtype=np.int32, ctx=ctx) for ctx in ctxs]

    def load(self, batches: "List[Indices]") -> "Iterator[Shards]":
        bounds = [shard_bounds(len(batch), len(self.ctxs)) for batch in batches]
        epoch = [self._gather(device, batches, bounds) for device in range(len(self.ctxs))]
        begins = [0] * len(self.ctxs)
        for batch in bounds:
            ends = [begins[device] + end - begin for device, (begin, end) in enumerate(batch)]
            yield (
                [epoch[device][0][begins[device] : end] for device, end in enumerate(ends)],
                [epoch[device][1][begins[device] : end] for device, end in enumerate(ends)],
            )
            begins[: len(ends)] = ends

    def _gather(self, device: int, batches: "List[Indices]", bounds: List[List[Tuple[int, int]]]) -> Tuple[nd.NDArray, nd.NDArray]:
        """This device's shards of all batches, one behind the other."""
        parts = [batch[slice(*bound[device])] for batch, bound in zip(batches, bounds) if device < len(bound)]
        if not parts:
            return self.images[device][:1], self.labels[device][:1]  # no batch reaches this device
        order = nd.array(np.concatenate(parts), dtype=np.int32, ctx=self.ctxs[device])
        return nd.take(self.images[device], order), nd.take(self.labels[device], order)


def _ahead(make: "Callable[[Indices], Shards]", batches: "List[Indices]", depth: int) -> "Iterator[Shards]":
    """``map(make, batches)``, computed by a thread up to ``depth`` items ahead."""
    ready: "queue.Queue[Any]" = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                if not put((make(batch), None)):
                    return
            put((None, None))
        except BaseException as error:  # handed over to the consumer, which raises it
            put((None, error))

    thread = threading.Thread(target=work, name="gluonlab-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            shards, error = ready.get()
            if error is not None:
                raise error
            if shards is None:
                return
            yield shards
    finally:
        stop.set()
        thread.join()
