"""Batches of a split, shuffled, one shard for each device.

Two paths lead to the same shards, bit for bit. The *streaming* path makes each batch on the host
and sends its parts to the devices. The *resident* path keeps the whole split on every device, and
sends only the order of an epoch; it is for what fits the devices' memory. Changes at random are the
same on both. A thread works some batches ahead.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from contextlib import closing
from fractions import Fraction
from functools import partial
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
    TypeVar,
    cast,
)

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.config.option_hints import check_argument_names
from gluonlab.config.option_types import is_positive_integer
from gluonlab.data.loading.augmentation import FILE_CROPS, step_rng, to_float
from gluonlab.data.loading.pinned_memory import host_memory_for
from gluonlab.data.loading.split_batch import Batch, batch_count, bounds_of, shard, shard_sizes
from gluonlab.data.sets.dataset import ArraySplit, ReadAheadSplit, Reading, Split
from gluonlab.data.sets.gluon_datasets import resolve_split
from gluonlab.devices import check_device_list
from gluonlab.engine.fast_invoke import ARRAY_LIMIT, ndarray_from_numpy, slice_rows
from gluonlab.engine.np_compatibility import to_user_arrays
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from gluonlab.data.loading.augmentation import Augment, Mixup
    from gluonlab.data.loading.split_batch import Shards
    from gluonlab.data.sets.dataset import Images, Indices, Targets


class Selection(NamedTuple):
    """Some images of a batch: ``places`` among its ``size`` images, ``indices`` in the split.

    The batch is that of all workers. ``key``: the seed, the epoch and the step, from which random
    numbers are drawn. ``sizes``: how many go to each of this worker's devices that get any.
    """

    key: Tuple[int, int, int]
    size: int
    places: "Indices"
    indices: "Indices"
    sizes: Sequence[int]

    def seeds(self) -> List[int]:
        """A number below 2**32 for each image, which depends on the step and its place alone."""
        of_all = step_rng(*self.key, FILE_CROPS).randint(0, 2**32, self.size, dtype=np.uint32)
        return [int(seed) for seed in of_all[self.places]]


# What a worker's part of a batch is made of: its own images, and, where they are mixed, the partner
# of each.
BatchIndices = Tuple[Selection, ...]


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
    if not is_positive_integer(global_batch_size):
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
    evenly, as `gluonlab.data.loading.split_batch.shard_sizes` says; every worker has the same ones.

    ``prefetch`` batches are made ahead, where that is any work; a split of at most
    ``resident_bytes`` lies on every device. ``random_crops`` are cut out of image files when they
    are decoded, and so are always streamed; ``augment`` changes images on the devices. How depends
    on seed, epoch and place in the batch only. ``mixup`` then mixes each with another of the batch,
    and gives float32 images and labels (n, 3), see `gluonlab.data.loading.augmentation.Mixup`.

    Raises DeviceError for what is not a list of devices, and DataError for a batch without images,
    for weights that are not one positive number for each device, and for ``random_crops`` of a
    split that is not one of files.
    """

    @check_argument_names("Loader", _ANSWERS)
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
        self.global_batch_size = _checked(global_batch_size)
        counts = device_counts or [len(self.ctxs)] * world_size
        self._first, self._devices = sum(counts[:rank]), sum(counts)  # of all workers
        self._weights: Optional[List[Fraction]] = None  # of all workers, too
        if weights is not None:
            self._weights = _fractions(weights, len(self.ctxs)) * len(counts)
        self.shuffle, self.raw, self.prefetch = shuffle, raw, prefetch
        self.epoch = 0  # the epoch that the next iteration begins, or is in
        self.step = 0  # the batches of that epoch that have been handed out
        self._source: "_Streaming | _Resident"
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
            self._source = _Streaming(split, self.ctxs, random_crops)

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
            prefetch(made, self.prefetch) if prefetched else (shards for shards in made)
        ) as ready:
            for (xs, ys), size in zip(ready, sizes):
                self.step += 1
                yield Batch(to_user_arrays([finish(x) for x in xs]), to_user_arrays(ys), size)
        self.epoch, self.step = self.epoch + 1, 0

    def state(self) -> Dict[str, int]:
        """Where the loader stands; `restore` goes on from there with the same batches."""
        return {"epoch": self.epoch, "step": self.step, "seed": self.seed}

    def restore(self, state: Dict[str, int]) -> None:
        """Go on from a `state`."""
        self.epoch, self.step, self.seed = state["epoch"], state["step"], state["seed"]

    def _changed(self, loaded: "Tuple[Shards, ...]", wanted: BatchIndices) -> "Shards":
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

    def _batches(self) -> List[BatchIndices]:
        """This worker's part of every batch of this epoch."""
        order = np.arange(len(self.split))
        if self.shuffle:  # RandomState's stream is frozen by numpy: the same order on every version
            order = np.random.RandomState([self.seed, self.epoch]).permutation(order)
        return [
            self._part(step, order[step * self.global_batch_size :][: self.global_batch_size])
            for step in range(len(self))
        ]

    def _part(self, step: int, batch: "Indices") -> BatchIndices:
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

    def load(self, batches: List[BatchIndices]) -> "Iterator[Tuple[Shards, ...]]":
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
                [slice_rows(images, begin, end) for (images, _), begin, end in places],
                [slice_rows(labels, begin, end) for (_, labels), begin, end in places],
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


# --- batches made on the host and sent to the devices; those of files are read ahead


# What makes shards of a batch's images and of its labels, and of those that they are mixed with.
_Maker = Callable[["np.ndarray[Any, Any]", Sequence[int]], List[nd.NDArray]]
_Makers = List[Tuple[_Maker, _Maker]]


class _Streaming:
    """Makes batches of a split; ``random_crops`` of a `ReadAheadSplit` only."""

    def __init__(self, split: Split, ctxs: Sequence[mx.Context], random_crops: bool) -> None:
        self.split, self.ctxs, self.random_crops = split, ctxs, random_crops
        self._reads_ahead = isinstance(split, ReadAheadSplit)
        self._makers: List[_Makers] = []  # those that nobody uses

    def load(self, batches: List[BatchIndices]) -> "Iterator[Tuple[Shards, ...]]":
        """The shards of each batch, of the images and then of their partners.

        Images are (n, C, H, W), of the split's type; labels (n,) int32.

        Each batch is begun before the one ahead of it is taken: processes that decode files go on
        from one to the next. Raises what the split raises, such as DataError for a file that is
        wrong, in the batch that has it.
        """
        begun: "Deque[Tuple[List[Reading], BatchIndices]]" = deque()
        makers = (
            self._makers.pop()
            if self._makers
            else [(_new_maker(self.ctxs), _new_maker(self.ctxs)) for _ in range(2)]
        )
        try:
            for wanted in batches:
                read = wanted[: 1 if _turned(wanted) else None]
                begun.append(([self._begin(selection) for selection in read], wanted))
                if len(begun) > 1:
                    yield self._make(*begun.popleft(), makers)
            while begun:
                yield self._make(*begun.popleft(), makers)
        finally:
            self._makers.append(makers)
            for reading in chain(*(readings for readings, _ in begun)):
                reading.cancel()

    def _begin(self, selection: Selection) -> Reading:
        if not self._reads_ahead:
            return _Later(self.split, selection)
        seeds = selection.seeds() if self.random_crops else None
        return cast(ReadAheadSplit, self.split).begin(selection.indices, seeds)

    def _make(
        self, readings: List[Reading], wanted: BatchIndices, makers: _Makers
    ) -> "Tuple[Shards, ...]":
        try:
            read = [reading.result() for reading in readings]
        except BaseException:  # a wrong file, or Ctrl-C: nobody takes the others
            for reading in readings:
                reading.cancel()
            raise
        if len(read) < len(wanted):
            images, labels = read[0]
            read.append((images[::-1], labels[::-1]))
        sizes = wanted[0].sizes
        made = [
            (images_in(images, sizes), labels_in(labels, sizes))
            for (images, labels), (images_in, labels_in) in zip(read, makers)
        ]
        # not of a generator: a tuple that grows breaks when gc.get_objects sees it
        return tuple(made)


def _new_maker(ctxs: Sequence[mx.Context]) -> _Maker:
    if all(ctx.device_type == "cpu" for ctx in ctxs):
        return partial(_copies, ctxs)
    in_host_memory = host_memory_for(ctxs[0])
    return lambda array, sizes: shard(in_host_memory(array), ctxs, sizes)


def _copies(
    ctxs: Sequence[mx.Context], array: "np.ndarray[Any, Any]", sizes: Sequence[int]
) -> List[nd.NDArray]:
    """The shards on CPU devices; MXNet would copy from one to another at a tenth of the speed."""
    bounds = zip(ctxs, bounds_of(sizes))
    return [ndarray_from_numpy(array[begin:end], ctx) for ctx, (begin, end) in bounds]


class _Later(NamedTuple):
    """A batch of a split that is not read ahead: it is read when it is needed."""

    split: Split
    selection: Selection

    def result(self) -> "Tuple[Images, Targets]":
        return self.split.batch(self.selection.indices)

    def cancel(self) -> None:
        """Nothing has begun."""


def _turned(wanted: BatchIndices) -> bool:
    """Whether the partners are a single worker's own images in reverse: nothing is read twice."""
    return len(wanted) == 2 and np.array_equal(wanted[1].places, wanted[0].places[::-1])


# --- batches that a thread makes ahead of those who use them

WORKING, RESTING = "gluonlab-prefetch", "gluonlab-resting"  # the names of a thread
Item = TypeVar("Item")


def prefetch(items: "Iterator[Item]", depth: int) -> "Generator[Item, None, None]":
    """``items``, which a thread computes up to ``depth`` ahead.

    Raises what they raise. To stop earlier, close this generator. The thread then waits for
    the next items that anybody in the process wants: MXNet keeps some 5 MB for each thread that
    has queued operators until the process ends, so a new one for each epoch, or for each training,
    would take more and more.
    """
    thread = _rested()
    ready: "queue.Queue[Any]" = queue.Queue(depth)
    stop, stopped = threading.Event(), threading.Event()
    given = False
    try:
        thread.jobs.put(_LoadTask(lambda: _work(items, ready, stop), stopped))
        given = True
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stop.set()
        # not when Ctrl-C came before that, nor in a fork's child: there is nothing to wait for
        if given and thread.is_alive():
            stopped.wait()
        _resting.append(thread)


def _work(items: "Iterator[Item]", ready: "queue.Queue[Any]", stop: threading.Event) -> None:
    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    try:
        for item in items:
            if not put((item, None)):
                return
        put((None, None))
    except BaseException as error:  # handed over to the consumer, which raises it
        put((None, error))


class _LoadTask(NamedTuple):
    """What a thread is to do, and what it then sets."""

    work: Callable[[], None]
    done: threading.Event


class _Thread(threading.Thread):
    """A thread that does one job after another, as long as the process lives."""

    def __init__(self) -> None:
        super().__init__(name=RESTING, daemon=True)
        self.jobs: "queue.SimpleQueue[_LoadTask]" = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            job = self.jobs.get()
            self.name = WORKING
            job.work()
            self.name, done = RESTING, job.done
            del job  # and with it the arrays that were made
            done.set()
            del done


_resting: List[_Thread] = []


def _rested() -> _Thread:
    """A thread that nobody uses, a new one where all work; a fork leaves the child none of them."""
    while _resting:
        thread = _resting.pop()
        if thread.is_alive():
            return thread
    return _Thread()
