"""Batches made on the host and sent to the devices; those of files are read ahead."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Deque, Iterator, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.chance import FILE_CROPS, chance
from gluonlab.data.loading.pinned import host_memory_for
from gluonlab.data.loading.shards import bounds_of, shard
from gluonlab.data.sets.dataset import ReadAheadSplit, Reading, Split
from gluonlab.engine.invoke import from_host

if TYPE_CHECKING:
    from gluonlab.data.loading.shards import Shards
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
        of_all = chance(*self.key, FILE_CROPS).randint(0, 2**32, self.size, dtype=np.uint32)
        return [int(seed) for seed in of_all[self.places]]


# What a worker's part of a batch is made of: its own images, and, where they are mixed, the partner
# of each.
Wanted = Tuple[Selection, ...]


# What makes shards of a batch's images and of its labels, and of those that they are mixed with.
_Maker = Callable[["np.ndarray[Any, Any]", Sequence[int]], List[nd.NDArray]]
_Makers = List[Tuple[_Maker, _Maker]]


class Streaming:
    """Makes batches of a split; ``random_crops`` of a `ReadAheadSplit` only."""

    def __init__(self, split: Split, ctxs: Sequence[mx.Context], random_crops: bool) -> None:
        self.ctxs = ctxs
        self._makers: List[_Makers] = []  # those that nobody uses
        self.begin: Callable[[Selection], Reading] = partial(_Later, split)
        if isinstance(split, ReadAheadSplit):
            self.begin = partial(_begin, split, random_crops)

    def load(self, batches: List[Wanted]) -> "Iterator[Tuple[Shards, ...]]":
        """The shards of each batch, of the images and then of their partners.

        Images are (n, C, H, W), of the split's type; labels (n,) int32.

        Each batch is begun before the one ahead of it is taken: processes that decode files go on
        from one to the next. Raises what the split raises, such as DataError for a file that is
        wrong, in the batch that has it.
        """
        begun: "Deque[Tuple[List[Reading], Wanted]]" = deque()
        makers = self._makers.pop() if self._makers else _new_makers(self.ctxs)
        try:
            for wanted in batches:
                read = wanted[: 1 if _turned(wanted) else None]
                begun.append(([self.begin(selection) for selection in read], wanted))
                if len(begun) > 1:
                    yield self._make(*begun.popleft(), makers)
            while begun:
                yield self._make(*begun.popleft(), makers)
        finally:
            self._makers.append(makers)
            for reading in chain(*(readings for readings, _ in begun)):
                reading.cancel()

    def _make(
        self, readings: List[Reading], wanted: Wanted, makers: _Makers
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


def _new_makers(ctxs: Sequence[mx.Context]) -> _Makers:
    return [(_new_maker(ctxs), _new_maker(ctxs)) for _ in range(2)]


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
    return [from_host(array[begin:end], ctx) for ctx, (begin, end) in bounds]


def _begin(split: ReadAheadSplit, random_crops: bool, selection: Selection) -> Reading:
    return split.begin(selection.indices, selection.seeds() if random_crops else None)


class _Later(NamedTuple):
    """A batch of a split that is not read ahead: it is read when it is needed."""

    split: Split
    selection: Selection

    def result(self) -> "Tuple[Images, Targets]":
        return self.split.batch(self.selection.indices)

    def cancel(self) -> None:
        """Nothing has begun."""


def _turned(wanted: Wanted) -> bool:
    """Whether the partners are a single worker's own images in reverse: nothing is read twice."""
    return len(wanted) == 2 and np.array_equal(wanted[1].places, wanted[0].places[::-1])
