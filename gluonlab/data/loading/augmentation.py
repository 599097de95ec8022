"""Image transforms on the devices: float conversion, normalization, random crops, flips and mixup.

The random numbers of a step depend only on the seed, epoch and step. The numbers are drawn on the
host for the whole batch, and each device uses the numbers for its shard. So the augmented images
are the same for any number of devices and workers.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.split_batch import bounds_from_sizes
from gluonlab.data.sets.dataset import Normalization

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gluonlab.data.loading.split_batch import Shards

# Each augmentation has its own random numbers, so that it does not change the others.
CROPS_AND_FLIPS_STREAM, MIXUP_STREAM, FILE_CROPS_STREAM = 1, 2, 3
# The smallest alpha of mixup: for smaller ones, NumPy would return NaN instead of 0 or 1. Also the
# smallest share that is not rounded to 0, because MXNet refuses numbers such as 1e-45.
MIN_ALPHA = 1e-30


def make_step_rng(seed: int, epoch: int, step: int, stream: int) -> np.random.RandomState:
    """Return a step's random number generator for one augmentation.

    ``stream``: the number of the augmentation, one of the constants ``*_STREAM``.

    NumPy guarantees that PCG64 and RandomState return the same numbers in every version. Creating a
    RandomState directly from the list of numbers would take six times as long.
    """
    return np.random.RandomState(np.random.PCG64([seed, epoch, step, stream]))


def to_float(F: Any, images: Any) -> Any:
    """Convert uint8 images (0 to 255) to float32 (0 to 1). ``F``: mx.nd or mx.sym."""
    return F.cast(images, dtype="float32") * (1 / 255)


def make_input_transform(normalization: Optional[Normalization]) -> Callable[[Any, Any], Any]:
    """Return ``f(F, images)``, which converts uint8 images to the network's input."""
    if normalization is None:
        return to_float
    mean, std = normalization

    def normalize(F: Any, images: Any) -> Any:
        return F.image.normalize(to_float(F, images), mean=mean, std=std)

    return normalize


class CropsAndFlips(NamedTuple):
    """The random crops and flips of n images. Each array has shape (n,).

    ``down`` and ``right``: by how many pixels the crop is shifted. ``mirrored``: whether the image
    is flipped.
    """

    down: "NDArray[np.int64]"
    right: "NDArray[np.int64]"
    mirrored: "NDArray[np.bool_]"

    def select(self, positions: "slice | NDArray[np.int64]") -> "CropsAndFlips":
        """Return the crops and flips of the images at ``positions``."""
        return CropsAndFlips(self.down[positions], self.right[positions], self.mirrored[positions])


class Augment:
    """Random crops of zero-padded images. With ``flip``, half of the images are mirrored.

    The images keep their size. This is the usual augmentation for CIFAR-10: He et al., "Deep
    Residual Learning", 2016, section 4.2, with padding 4 and flips.
    """

    def __init__(self, padding: int = 0, flip: bool = False) -> None:
        self.padding, self.flip = padding, flip
        self._shifters: Dict[Tuple[mx.Context, Tuple[int, ...], Any], _ImageShifter] = {}

    def draw(self, seed: int, epoch: int, step: int, size: int) -> CropsAndFlips:
        """Draw random crops (as shifts) and flips for the ``size`` images in a batch.

        Shifts are from -padding to padding, inclusive.
        """
        random = make_step_rng(seed, epoch, step, CROPS_AND_FLIPS_STREAM)
        down, right = random.randint(-self.padding, self.padding + 1, (2, size))
        mirrored = random.randint(0, 2, size).astype(bool) if self.flip else np.zeros(size, bool)
        return CropsAndFlips(down, right, mirrored)

    def __call__(self, shards: Sequence[nd.NDArray], draw: CropsAndFlips) -> List[nd.NDArray]:
        """Queue the transforms of each shard (n, C, H, W). ``draw``: values for the whole batch."""
        bounds = bounds_from_sizes([len(shard) for shard in shards])
        return [self._get_shifter(shard)(shard, draw.select(slice(*bound))) for shard, bound in zip(shards, bounds)]

    def _get_shifter(self, shard: nd.NDArray) -> "_ImageShifter":
        """Return the `_ImageShifter` for the device, shape and type of ``shard``.

        The first call for each device, shape and type creates the object.
        """
        key = (shard.context, shard.shape, shard.dtype)
        if key not in self._shifters:
            self._shifters[key] = _ImageShifter(shard.shape, shard.context, shard.dtype)
        return self._shifters[key]


class _ImageShifter:
    """Shifts and mirrors images (n, C, H, W) on one device.

    First, ``take`` selects the rows of the result. Then the images are transposed, and ``take``
    selects the columns. The alternatives, BilinearSampler and multiplication by 0/1 matrices, need
    floating-point arithmetic: for 64 images of 3x64x64 on one core, they take 19 ms and 12 ms. The
    last row of each of the two buffers is black, for pixels outside the image.
    """

    def __init__(self, shape: Tuple[int, ...], ctx: mx.Context, dtype: Any = np.uint8) -> None:
        n, channels, height, width = shape
        self.shape, self.transposed_shape, self.ctx = shape, (n, channels, width, height), ctx
        self.dtype = dtype
        self._rows = nd.zeros((n * channels * height + 1, width), ctx, dtype)
        self._columns = nd.zeros((n * channels * width + 1, height), ctx, np.float32)
        self._image_rows, self._image_columns = (
            self._rows[:-1].reshape(shape),
            self._columns[:-1].reshape(self.transposed_shape),
        )
        from gluonlab.data.loading.pinned_memory import make_host_copier

        self._copy_rows, self._copy_columns = make_host_copier(ctx), make_host_copier(ctx)
        # Two iterations may share the buffers, so a lock keeps the operators of a batch together.
        self._lock = Lock()

    def __call__(self, images: nd.NDArray, draw: CropsAndFlips) -> nd.NDArray:
        height, width = self.shape[2:]
        positions = np.arange(width)
        rows = draw.down[:, None] + np.arange(height)
        columns = draw.right[:, None] + np.where(draw.mirrored[:, None], positions[::-1], positions)
        row_indices, column_indices = self._buffer_rows(rows), self._buffer_rows(columns)
        with self._lock:
            images.copyto(self._image_rows)
            shifted = nd.take(self._rows, self._copy_rows(row_indices).as_in_context(self.ctx), mode="clip")
            # Floats, because oneDNN transposes floats 20 times as fast as MXNet transposes bytes.
            nd.transpose(nd.cast(shifted.reshape(self.shape), dtype="float32"), (0, 1, 3, 2), out=self._image_columns)
            shifted = nd.take(self._columns, self._copy_columns(column_indices).as_in_context(self.ctx), mode="clip")
        return nd.cast(nd.transpose(shifted.reshape(self.transposed_shape), (0, 1, 3, 2)), dtype=self.dtype)

    def _buffer_rows(self, sources: "NDArray[np.int64]") -> "NDArray[np.int32]":
        """Return, for each row of the shifted images, the buffer row to copy: (n * C * rows,).

        ``sources`` (n, rows): ``sources[i, k]`` is the row of image i that becomes row k of the
        result. For row numbers outside the image, the buffer's black row is returned.
        """
        n, lines = sources.shape
        first_rows = np.arange(n * self.shape[1]).reshape(n, -1, 1) * lines  # (n, C, 1)
        is_inside = (sources >= 0) & (sources < lines)
        # (n, C, lines)
        indices = np.where(is_inside[:, None], first_rows + sources[:, None], n * self.shape[1] * lines)
        return indices.astype(np.int32).ravel()


class Mixup:
    """Mixup: mixes pairs of images and labels, with weights from Beta(``alpha``, ``alpha``).

    Image i of a batch of n is mixed with image n - 1 - i, its partner. All pairs in a batch have
    the same weight, as in the training scripts of gluon-cv. For a small alpha, weights are near 0
    or 1. The loader copies the partners of a device's images to the device. Source: Zhang et al.,
    "mixup: beyond empirical risk minimization", 2018, section 2.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = max(alpha, MIN_ALPHA)

    def draw(self, seed: int, epoch: int, step: int) -> float:
        """Draw w from 0 to 1, the weight of each image in its mixture.

        The partner's weight is 1 - w.
        """
        share = float(make_step_rng(seed, epoch, step, MIXUP_STREAM).beta(self.alpha, self.alpha))
        return share if share > MIN_ALPHA else 0.0

    def __call__(self, shards: "Shards", partners: "Shards", share: float) -> "Shards":
        """Mix the images (n, C, H, W) and labels (n,) of each shard with their partners.

        This function does not wait for the devices. The images become float32, on the same scale.
        The labels become (n, 3): the image's own label, the partner's label, and ``share``. If
        images have loss weights, labels become (n, 5), with a loss weight after each label. The
        loss for these labels is `gluonlab.parallel.training_loss.MixedLoss`.
        """
        images = [_mix_images(x, partner, share) for x, partner in zip(shards[0], partners[0])]
        labels = [_mix_labels(y, partner, share) for y, partner in zip(shards[1], partners[1])]
        return images, labels


def _mix_images(images: nd.NDArray, partner: nd.NDArray, share: float) -> nd.NDArray:
    """Return ``share`` * ``images`` + (1 - ``share``) * ``partner``, as float32."""
    images, partner = nd.cast(images, dtype="float32"), nd.cast(partner, dtype="float32")
    # The operator of SGD, weight -= lr * (wd * weight + rescale_grad * gradient), computes the
    # mixture in a single pass over the pixels.
    return nd.sgd_update(images, partner, lr=1, wd=1 - share, rescale_grad=share - 1, out=images)


def _mix_labels(labels: nd.NDArray, partner: nd.NDArray, share: float) -> nd.NDArray:
    """Append the partner's label and ``share``, the weight of the first label, to each label."""
    labels, partner = nd.cast(labels, dtype="float32"), nd.cast(partner, dtype="float32")
    if len(labels.shape) == 2:
        label_column = nd.slice_axis(labels, axis=1, begin=0, end=1)
        return nd.concat(labels, partner, nd.clip(label_column, share, share), dim=1)
    # Clipping from both sides fills the column with the share, in less host time than nd.full.
    return nd.stack(labels, partner, nd.clip(labels, share, share), axis=1)
