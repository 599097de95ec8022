"""Divide a batch over devices.

`shard_sizes` says how many images each device gets: evenly, or by --device-weights. `shard` copies
these images to the devices. A `Batch` holds the shards of all devices, as a strategy takes them.

The loader (loader.py) divides each batch by these functions. training/parallel_options.py checks
--device-weights, and the options of --split, which divide the network instead of the batch.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.devices import check_distinct

if TYPE_CHECKING:
    Shards = Tuple[List[nd.NDArray], List[nd.NDArray]]

Weights = Sequence[Fraction]  # one for each device, above 0: how many images it gets, relatively


class Batch:
    """``xs[i]`` (n, C, H, W) and ``ys[i]`` (n,) or (n, columns) are on device i, if it has a shard.

    ``size`` counts the images of all devices and processes: what an update divides by. A process
    without a part of a small batch has no shards. ``xs, ys = batch`` unpacks the shards.
    """

    __slots__ = ("size", "xs", "ys")

    def __init__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray], size: int) -> None:
        self.xs, self.ys, self.size = xs, ys, size

    @property
    def here(self) -> int:
        """How many images this process has."""
        return sum(map(len, self.xs))

    def __iter__(self) -> Iterator[Sequence[nd.NDArray]]:
        yield self.xs
        yield self.ys


def whole(xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> Batch:
    """The batch all of whose shards are on this process's devices."""
    return Batch(xs, ys, sum(map(len, xs)))


def shard(
    array: nd.NDArray, ctxs: Sequence[mx.Context], sizes: Optional[Sequence[int]] = None
) -> List[nd.NDArray]:
    """Split the first axis of (n, ...) over the devices: evenly, or into shards of these ``sizes``.

    A batch smaller than the number of devices occupies only the first ones: the list is then
    shorter than ``ctxs``. Sizes are as `shard_sizes` gives them. Raises DeviceError for a device
    that comes twice, unless the caller has looked at them, and gives sizes.
    """
    if sizes is None:
        check_distinct(ctxs)
        sizes = shard_sizes(len(array), len(ctxs))
    busy = list(ctxs[: len(sizes)])
    if not busy:  # a worker's part of a batch that is smaller than the number of workers
        return []
    if not isinstance(array, nd.NDArray):
        [array] = gluon.utils.split_and_load(array, busy[:1])
    bounds = bounds_of(sizes)
    return [array[begin:end].as_in_context(ctx) for ctx, (begin, end) in zip(busy, bounds)]


def shard_sizes(size: int, parts: int, weights: Optional[Weights] = None) -> List[int]:
    """How many of ``size`` images each of the parts gets that are not empty, the first ones.

    Without ``weights``, as many each, the first ones one more. With them `in_proportion`, but no
    part is empty, whatever its weight: while one would be, it gets an image of the largest. Fewer
    images than parts go to the first ones, one each.
    """
    if weights is None or size <= parts:
        share, more = divmod(size, parts)
        return [share + 1] * more + [share] * (parts - more if share else 0)
    sizes = in_proportion(size, weights)
    while 0 in sizes:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(0)] += 1
    return sizes


def in_proportion(size: int, weights: Weights) -> List[int]:
    """Whole numbers that add up to ``size``, by the largest remainder; some may be 0.

    Of equal remainders the first ones are rounded up, so that equal weights share evenly.
    """
    total = sum(weights)
    quotas = [size * weight / total for weight in weights]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda part: sizes[part] - quotas[part])
    for part in by_remainder[: size - sum(sizes)]:
        sizes[part] += 1
    return sizes


def shard_bounds(size: int, parts: int) -> List[Tuple[int, int]]:
    """The (begin, end) of each of as even ``parts`` as there can be that are not empty."""
    return bounds_of(shard_sizes(size, parts))


def bounds_of(sizes: Sequence[int]) -> List[Tuple[int, int]]:
    """The (begin, end) of parts of these sizes, one behind the other."""
    ends = list(accumulate(sizes))
    return list(zip([0, *ends], ends))


def batch_count(images: int, size: int, drop_last: bool = False) -> int:
    """How many batches of ``size`` images make; ``drop_last``: without a smaller last one."""
    return images // size if drop_last else -(-images // size)
