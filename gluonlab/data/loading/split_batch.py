"""Divides a batch into one shard per device.

`shard_sizes` computes how many images each device gets: evenly, or in proportion to
--device-weights. `shard` and `make_sharder` copy the images to the devices. A `Batch` contains the
shards of all devices of this process.

`gluonlab.data.loading.batch_loader` calls `shard_sizes` for every batch. If the images are not yet
on the devices, it copies the shards with `make_sharder`. Otherwise a shard is a slice of the images
on the device. For dividing the network instead of the batch (--strategy), see
`gluonlab.training.parallel_options`.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.data.loading.pinned_memory import make_host_copier
from gluonlab.devices import check_distinct
from gluonlab.engine.fast_invoke import ndarray_from_numpy

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
    Sharder = Callable[[Array, Sequence[int]], List[nd.NDArray]]
    Shards = Tuple[List[nd.NDArray], List[nd.NDArray]]

Weights = Sequence[Fraction]  # one positive number per device: its share of the images


class Batch:
    """Shards of a batch, which ``xs, ys = batch`` unpacks.

    ``xs[i]`` (n, C, H, W) are the images on device i, and ``ys[i]`` (n,) or (n, columns) the
    labels. If the batch is smaller than the number of devices, the last devices have no shard.
    ``size``: the number of images on all devices of all processes; the update divides the sum of
    the gradients by it.
    """

    __slots__ = ("size", "xs", "ys")

    def __init__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray], size: int) -> None:
        self.xs, self.ys, self.size = xs, ys, size

    @property
    def local_size(self) -> int:
        """Number of images in the shards of this process."""
        return sum(map(len, self.xs))

    def __iter__(self) -> Iterator[Sequence[nd.NDArray]]:
        yield self.xs
        yield self.ys


def make_local_batch(xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> Batch:
    """Return the batch with all its shards on the devices of this process."""
    return Batch(xs, ys, sum(map(len, xs)))


def shard(array: nd.NDArray, ctxs: Sequence[mx.Context], sizes: Optional[Sequence[int]] = None) -> List[nd.NDArray]:
    """Split an array (n, ...) along its first axis, and copy a part to each device.

    The parts are of equal size, or of the given ``sizes`` (see `shard_sizes`). If n is smaller than
    the number of devices, only the first devices get a part, and the list is shorter than ``ctxs``.
    Without ``sizes``, raises DeviceError for duplicate devices.
    """
    if sizes is None:
        check_distinct(ctxs)
        sizes = shard_sizes(len(array), len(ctxs))
    used_ctxs = list(ctxs[: len(sizes)])
    if not used_ctxs:  # a small batch may leave this worker without images
        return []
    if not isinstance(array, nd.NDArray):
        [array] = gluon.utils.split_and_load(array, used_ctxs[:1])
    bounds = bounds_from_sizes(sizes)
    return [array[begin:end].as_in_context(ctx) for ctx, (begin, end) in zip(used_ctxs, bounds)]


def make_sharder(ctxs: Sequence[mx.Context]) -> "Sharder":
    """Return ``f(array, sizes)``, which copies a NumPy array (n, ...) to the devices in shards.

    Reuse the function for all batches, and call it from one thread at a time.
    """
    if any(ctx.device_type != "cpu" for ctx in ctxs):
        copy_to_host_memory = make_host_copier(ctxs[0])
        return lambda array, sizes: shard(copy_to_host_memory(array), ctxs, sizes)

    def shard_on_cpus(array: "Array", sizes: Sequence[int]) -> List[nd.NDArray]:
        # Copied directly from NumPy, because MXNet copies between CPU devices 10 times slower.
        parts = zip(ctxs, bounds_from_sizes(sizes))
        return [ndarray_from_numpy(array[begin:end], ctx) for ctx, (begin, end) in parts]

    return shard_on_cpus


def shard_sizes(size: int, parts: int, weights: Optional[Weights] = None) -> List[int]:
    """Return the sizes of the shards into which ``size`` images are divided. No shard is empty.

    - Without ``weights``, sizes are equal, or differ by one image: then the first are larger.
    - With ``weights``, sizes are `proportional_sizes`. A shard that would be empty gets an image of
      the largest shard.
    - If there are fewer images than ``parts``, each image is a shard, and the list is shorter.
    """
    if weights is None or size <= parts:
        even_size, rest = divmod(size, parts)
        return [even_size + 1] * rest + [even_size] * (parts - rest if even_size else 0)
    sizes = proportional_sizes(size, weights)
    while 0 in sizes:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(0)] += 1
    return sizes


def proportional_sizes(size: int, weights: Weights) -> List[int]:
    """Divide ``size`` into whole numbers in proportion to ``weights``; some may be 0.

    Uses the largest remainder method. If remainders are equal, the first parts are rounded up.
    """
    total = sum(weights)
    quotas = [size * weight / total for weight in weights]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda part: sizes[part] - quotas[part])
    for part in by_remainder[: size - sum(sizes)]:
        sizes[part] += 1
    return sizes


def shard_bounds(size: int, parts: int) -> List[Tuple[int, int]]:
    """Return the (begin, end) of each shard of an even division of ``size`` images."""
    return bounds_from_sizes(shard_sizes(size, parts))


def bounds_from_sizes(sizes: Sequence[int]) -> List[Tuple[int, int]]:
    """Return the (begin, end) of consecutive parts of these sizes."""
    ends = list(accumulate(sizes))
    return list(zip([0, *ends], ends))


def batch_count(images: int, size: int, drop_last: bool = False) -> int:
    """Return the number of batches of ``size`` images in ``images`` images.

    ``drop_last``: whether to leave out a smaller last batch.
    """
    return images // size if drop_last else -(-images // size)
