"""Divides a batch into one shard per device, and a shard into microbatches.

`shard_sizes` divides the number of images between the devices, evenly or in proportion to
--device-weights. `shard` and `make_sharder` copy the images to the devices. A `Batch` contains the
shards of all devices of this process. `Microbatches` divides shards further (--microbatches).

`gluonlab.data.loading.batch_loader` calls `shard_sizes` for every batch. If the images are not yet
on the devices, the loader copies the shards with `make_sharder`. Otherwise, a shard is a slice of
the images on the device. To divide the network instead of the batch (--strategy), see
`gluonlab.training.parallel_options`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.devices import check_distinct
from gluonlab.engine.fast_invoke import ndarray_from_numpy, slice_rows
from gluonlab.errors import ConfigError

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
    Sharder = Callable[[Array, Sequence[int]], List[nd.NDArray]]
    Shards = Tuple[List[nd.NDArray], List[nd.NDArray]]

Weights = Sequence[Fraction]  # one positive number per device: its share of the images


class Batch:
    """The shards of a batch. Unpack the batch with ``xs, ys = batch``.

    ``xs[i]`` (n, C, H, W) contains the images on device i, and ``ys[i]`` (n,) or (n, columns)
    contains the labels. If the batch is smaller than the number of devices, the last devices have
    no shard. ``size``: the number of images on all devices of all processes. The update divides the
    sum of the gradients by this number.
    """

    __slots__ = ("size", "xs", "ys")

    def __init__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray], size: int) -> None:
        self.xs, self.ys, self.size = xs, ys, size

    @property
    def local_size(self) -> int:
        """Number of images in this process's shards."""
        return sum(map(len, self.xs))

    def __iter__(self) -> Iterator[Sequence[nd.NDArray]]:
        yield self.xs
        yield self.ys


def make_local_batch(xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> Batch:
    """Return a batch whose shards are all on devices of this process."""
    return Batch(xs, ys, sum(map(len, xs)))


def shard(array: nd.NDArray, ctxs: Sequence[mx.Context], sizes: Optional[Sequence[int]] = None) -> List[nd.NDArray]:
    """Split an array (n, ...) along its first axis, and copy one part to each device.

    The parts have equal sizes, or the given ``sizes`` (see `shard_sizes`). If n is smaller than the
    number of devices, only the first devices get a part, and the list is shorter than ``ctxs``.
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
        from gluonlab.data.loading.pinned_memory import make_host_copier

        copy_to_host_memory = make_host_copier(ctxs[0])
        return lambda array, sizes: shard(copy_to_host_memory(array), ctxs, sizes)

    def shard_on_cpus(array: "Array", sizes: Sequence[int]) -> List[nd.NDArray]:
        # Copied directly from NumPy, because MXNet copies between CPU devices 10 times slower.
        parts = zip(ctxs, bounds_from_sizes(sizes))
        return [ndarray_from_numpy(array[begin:end], ctx) for ctx, (begin, end) in parts]

    return shard_on_cpus


def shard_sizes(size: int, parts: int, weights: Optional[Weights] = None) -> List[int]:
    """Return the sizes of the shards into which ``size`` images are divided. No shard is empty.

    - Without ``weights``, sizes are equal or differ by one image, with the larger sizes first.
    - With ``weights``, `proportional_sizes` computes the sizes. A shard that would be empty gets an
      image from the largest shard.
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
    """Divide ``size`` into integers in proportion to ``weights``. Some integers may be 0.

    Uses the largest remainder method. If remainders are equal, the first integers are rounded up.
    """
    total = sum(weights)
    quotas = [size * weight / total for weight in weights]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda part: sizes[part] - quotas[part])
    for part in by_remainder[: size - sum(sizes)]:
        sizes[part] += 1
    return sizes


def shard_bounds(size: int, parts: int) -> List[Tuple[int, int]]:
    """Return the (begin, end) of each shard when ``size`` images are divided evenly."""
    return bounds_from_sizes(shard_sizes(size, parts))


def bounds_from_sizes(sizes: Sequence[int]) -> List[Tuple[int, int]]:
    """Return the (begin, end) of consecutive parts with the given ``sizes``."""
    ends = list(accumulate(sizes))
    return list(zip([0, *ends], ends))


def batch_count(images: int, size: int, drop_last: bool = False) -> int:
    """Return the number of batches of size ``size`` in ``images`` images.

    ``drop_last``: whether to omit a smaller last batch.
    """
    return images // size if drop_last else -(-images // size)


class Microbatch(NamedTuple):
    """Images (n, C, H, W) and labels (n,) from the shard of device number ``device``."""

    device: int
    images: nd.NDArray
    labels: nd.NDArray


@dataclass(frozen=True)
class Microbatches:
    """Settings for dividing a shard into ``count`` parts, or into parts of at most ``size`` images.

    If both settings are None, shards are not divided. A device trains on one part after the other
    and sums the gradients, so only one part's activations need memory at a time. Losses are summed,
    not averaged, so that the update does not depend on the number of parts. BatchNorm is an
    exception: it normalizes each microbatch with the microbatch's own mean and variance, and
    updates its running statistics once per microbatch.
    """

    count: Optional[int] = None
    size: Optional[int] = None

    def bounds(self, images: int) -> List[Tuple[int, int]]:
        """Divide a shard of ``images`` images. Return the (begin, end) of each microbatch.

        Sizes are as even as possible, with the larger sizes first. No microbatch is empty: a shard
        with fewer images than ``count`` is divided into single images.
        """
        parts = self.count or (math.ceil(images / self.size) if self.size else 1)
        return shard_bounds(images, max(parts, 1))

    def largest_part(self, images: int) -> int:
        """Return the number of images in the largest part of a shard."""
        return max((end - begin for begin, end in self.bounds(images)), default=0)

    def split_into_rounds(self, batch: Batch) -> List[List[Microbatch]]:
        """Divide all shards into microbatches, for several rounds of training.

        Round i contains microbatch i of each shard with more than i microbatches.
        """
        xs, ys = batch.xs, batch.ys
        if self.count is None and self.size is None:
            return [[Microbatch(i, x, y) for i, (x, y) in enumerate(zip(xs, ys))]] if xs else []
        bounds = [self.bounds(len(x)) for x in xs]
        return [
            [
                # Views, so that images are copied only once, into the input of the graph.
                Microbatch(device, slice_rows(x, begin, end), slice_rows(y, begin, end))
                for device, (x, y, of_device) in enumerate(zip(xs, ys, bounds))
                for begin, end in of_device[number : number + 1]
            ]
            for number in range(max(map(len, bounds), default=0))
        ]

    def check(self, global_batch_size: int, copies: int, on: str = "device", fewest: Optional[int] = None) -> None:
        """Raise ConfigError if a shard has too few images for ``count`` microbatches.

        Args:
            global_batch_size: The number of images in a batch.
            copies: Number of replicas of the network.
            on: Name of the unit that trains on a shard: "device" or "replica of the model".
            fewest: The number of images in the smallest shard, if the batch is divided unevenly.
        """
        share = global_batch_size // copies if fewest is None else fewest
        if self.count is not None and self.count > max(share, 1):
            raise ConfigError(
                f"--microbatches {self.count}: in a batch of {global_batch_size} images, a {on} has only "
                f"{share} image{'s' * (share != 1)}: use {max(share, 1)} or fewer microbatches, or a larger batch"
            )

    def describe(self) -> str:
        """Return text for a run's output, such as ", in 4 microbatches", or "" for whole shards."""
        if self.count is not None:
            return f", in {self.count} microbatch{'es' * (self.count > 1)}"
        return f", in microbatches of at most {self.size}" if self.size is not None else ""


WHOLE_SHARDS = Microbatches()
