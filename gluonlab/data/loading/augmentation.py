"""How images change on their way to the network, on the device that they lie on.

Bytes become a network's numbers. Training images differ from epoch to epoch by random crops, flips
and mixup. The random numbers of a step are drawn on the host for the whole batch, from (seed,
epoch, step) alone, and each device gets those of its shard: 1, 2 and k devices, and several
workers, see the same images.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.pinned_memory import host_memory_for
from gluonlab.data.loading.split_batch import bounds_of
from gluonlab.data.sets.dataset import Colours

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gluonlab.data.loading.split_batch import Shards

# Of the random numbers of a step, one stream for each thing that is drawn.
CROPS_AND_FLIPS, MIXTURES, FILE_CROPS = 1, 2, 3
# of an alpha: a share is then 0 or 1, and smaller ones would draw no number; of a share: MXNet
# refuses 1e-45
SMALLEST = 1e-30


def step_rng(seed: int, epoch: int, step: int, stream: int) -> np.random.RandomState:
    """Random numbers of one of the streams above.

    NumPy freezes both SeedSequence with PCG64 and what RandomState makes of it; a RandomState of a
    list takes six times as long.
    """
    return np.random.RandomState(np.random.PCG64([seed, epoch, step, stream]))


def to_float(F: Any, images: Any) -> Any:
    """uint8 0..255 -> float32 0..1, on the device; ``F`` is mx.nd or mx.sym."""
    return F.cast(images, dtype="float32") * (1 / 255)


def make_input(colours: Optional[Colours]) -> Callable[[Any, Any], Any]:
    """``f(F, images)``: uint8 images -> the network's input, 0..1 or normalised by ``colours``."""
    if colours is None:
        return to_float
    mean, deviation = colours

    def normalised(F: Any, images: Any) -> Any:
        return F.image.normalize(to_float(F, images), mean=mean, std=deviation)

    return normalised


class Draw(NamedTuple):
    """The random changes of n images: ``down`` and ``right``, for crops, and ``mirrored``."""

    down: "NDArray[np.int64]"
    right: "NDArray[np.int64]"
    mirrored: "NDArray[np.bool_]"

    def at(self, places: "slice | NDArray[np.int64]") -> "Draw":
        """That of the images at these places."""
        return Draw(self.down[places], self.right[places], self.mirrored[places])


class Augment:
    """Random crops of images that are padded with black pixels; ``flip``: half are mirrored.

    The images keep their size.

    The usual way to train on CIFAR-10 (He et al., Deep Residual Learning, 2016, section 4.2:
    padding 4, and flips).
    """

    def __init__(self, padding: int = 0, flip: bool = False) -> None:
        self.padding, self.flip = padding, flip
        self._movers: Dict[Tuple[mx.Context, Tuple[int, ...], Any], _Mover] = {}

    def draw(self, seed: int, epoch: int, step: int, size: int) -> Draw:
        """The random numbers for the ``size`` images of a batch.

        Crops begin at -padding to padding, both included.
        """
        random = step_rng(seed, epoch, step, CROPS_AND_FLIPS)
        down, right = random.randint(-self.padding, self.padding + 1, (2, size))
        mirrored = random.randint(0, 2, size).astype(bool) if self.flip else np.zeros(size, bool)
        return Draw(down, right, mirrored)

    def __call__(self, shards: Sequence[nd.NDArray], draw: Draw) -> List[nd.NDArray]:
        """Each shard (n, C, H, W), changed by the batch's ``draw``; nothing waits for it."""
        bounds = bounds_of([len(shard) for shard in shards])
        return [
            self._mover(shard)(shard, draw.at(slice(*bound)))
            for shard, bound in zip(shards, bounds)
        ]

    def _mover(self, shard: nd.NDArray) -> "_Mover":
        key = (shard.context, shard.shape, shard.dtype)
        if key not in self._movers:
            self._movers[key] = _Mover(shard.shape, shard.context, shard.dtype)
        return self._movers[key]


class _Mover:
    """Moves rows and columns of images (n, C, H, W) on one device.

    Shifting and mirroring only moves rows and columns, so both are ``take`` along the rows of a
    matrix, with a transposition between them. BilinearSampler, and multiplying with matrices of
    zeros and ones, could do the same with arithmetic: 19 ms and 12 ms for 64 images of 3x64x64 on
    one core. The two buffers have a black row at the end, for what is outside.
    """

    def __init__(self, shape: Tuple[int, ...], ctx: mx.Context, dtype: Any = np.uint8) -> None:
        n, channels, height, width = shape
        self.shape, self.turned, self.ctx = shape, (n, channels, width, height), ctx
        self.dtype = dtype
        self._rows = nd.zeros((n * channels * height + 1, width), ctx, dtype)
        self._columns = nd.zeros((n * channels * width + 1, height), ctx, np.float32)
        self._rows_in, self._columns_in = (
            self._rows[:-1].reshape(shape),
            self._columns[:-1].reshape(self.turned),
        )
        self._hosts_rows, self._hosts_columns = host_memory_for(ctx), host_memory_for(ctx)
        # what is queued for a batch belongs together: two iterations have the same buffers
        self._lock = Lock()

    def __call__(self, images: nd.NDArray, draw: Draw) -> nd.NDArray:
        height, width = self.shape[2:]
        across = np.arange(width)
        rows = draw.down[:, None] + np.arange(height)
        columns = draw.right[:, None] + np.where(draw.mirrored[:, None], across[::-1], across)
        from_rows, from_columns = self._places(rows), self._places(columns)
        with self._lock:
            images.copyto(self._rows_in)
            moved = nd.take(
                self._rows, self._hosts_rows(from_rows).as_in_context(self.ctx), mode="clip"
            )
            # as floats, which oneDNN transposes, 20 times as fast as MXNet does bytes
            nd.transpose(
                nd.cast(moved.reshape(self.shape), dtype="float32"),
                (0, 1, 3, 2),
                out=self._columns_in,
            )
            moved = nd.take(
                self._columns,
                self._hosts_columns(from_columns).as_in_context(self.ctx),
                mode="clip",
            )
        return nd.cast(nd.transpose(moved.reshape(self.turned), (0, 1, 3, 2)), dtype=self.dtype)

    def _places(self, wanted: "NDArray[np.int64]") -> "NDArray[np.int32]":
        """Line k of image i is its line ``wanted[i, k]``: that line's place in the buffer (n*C*k,).

        The place of the black row where the image has no such line.
        """
        n, lines = wanted.shape
        first = np.arange(n * self.shape[1]).reshape(n, -1, 1) * lines  # (n, C, 1)
        inside = (wanted >= 0) & (wanted < lines)
        # (n, C, lines)
        places = np.where(inside[:, None], first + wanted[:, None], n * self.shape[1] * lines)
        return places.astype(np.int32).ravel()


class Mixup:
    """Mixes images and labels in pairs, with shares from Beta(``alpha``, ``alpha``).

    Shares are near 0 or 1 for a small alpha. Source: Zhang et al., "mixup: beyond empirical risk
    minimization", 2018, section 2. Image i of a batch of n is mixed with image n - 1 - i, in one
    share for the whole batch, as in gluon-cv's training scripts. The loader brings each device the
    partners of its images.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = max(alpha, SMALLEST)

    def draw(self, seed: int, epoch: int, step: int) -> float:
        """The share, 0 to 1, that each image has in its mixture; its partner has the rest."""
        share = float(step_rng(seed, epoch, step, MIXTURES).beta(self.alpha, self.alpha))
        return share if share > SMALLEST else 0.0

    def __call__(self, own: "Shards", partners: "Shards", share: float) -> "Shards":
        """Mixtures of each shard's images (n, C, H, W) and labels (n,) with their partners.

        Nothing waits for them.

        They are float32 images in the units of those given, and labels (n, 3): the image's own, its
        partner's, and ``share``; where images have weights, labels (n, 5), each label with its
        weight. They are for `gluonlab.parallel.training_loss.MixedLoss`.
        """
        images = [_mixed_images(x, partner, share) for x, partner in zip(own[0], partners[0])]
        labels = [_mixed_labels(y, partner, share) for y, partner in zip(own[1], partners[1])]
        return images, labels


def _mixed_images(own: nd.NDArray, partner: nd.NDArray, share: float) -> nd.NDArray:
    own, partner = nd.cast(own, dtype="float32"), nd.cast(partner, dtype="float32")
    # The update of SGD, weight -= lr * (wd * weight + rescale_grad * gradient), goes through the
    # pixels once.
    return nd.sgd_update(own, partner, lr=1, wd=1 - share, rescale_grad=share - 1, out=own)


def _mixed_labels(own: nd.NDArray, partner: nd.NDArray, share: float) -> nd.NDArray:
    own, partner = nd.cast(own, dtype="float32"), nd.cast(partner, dtype="float32")
    if len(own.shape) == 2:
        first = nd.slice_axis(own, axis=1, begin=0, end=1)
        return nd.concat(own, partner, nd.clip(first, share, share), dim=1)
    # clipped to it from both sides, all are the share: one call, where nd.full takes the host
    # longer than all the others
    return nd.stack(own, partner, nd.clip(own, share, share), axis=1)
