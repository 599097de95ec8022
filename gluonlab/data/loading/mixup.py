"""Mixup: images and labels mixed in pairs.

Zhang et al., "mixup: beyond empirical risk minimization", 2018, section 2.

Image i of a batch of n is mixed with image n - 1 - i, in one share for the whole batch, as in
gluon-cv's training scripts. Which image that is and how large the share, depends on seed, epoch and
step alone: the batch is that of all devices and workers, so any number of them sees the same
mixtures. The loader brings each device the partners of its images; they are mixed there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Tuple

from mxnet import nd

from gluonlab.data.loading.chance import MIXTURES, chance

if TYPE_CHECKING:
    Shards = Tuple[List[nd.NDArray], List[nd.NDArray]]

# of an alpha: a share is then 0 or 1, and smaller ones would draw no number; of a share: MXNet
# refuses 1e-45
SMALLEST = 1e-30


class Mixup:
    """Mixes with shares from Beta(``alpha``, ``alpha``): near 0 or 1 for a small alpha."""

    def __init__(self, alpha: float) -> None:
        self.alpha = max(alpha, SMALLEST)

    def draw(self, seed: int, epoch: int, step: int) -> float:
        """The share, 0 to 1, that each image has in its mixture; its partner has the rest."""
        share = float(chance(seed, epoch, step, MIXTURES).beta(self.alpha, self.alpha))
        return share if share > SMALLEST else 0.0

    def __call__(self, own: "Shards", partners: "Shards", share: float) -> "Shards":
        """Mixtures of each shard's images (n, C, H, W) and labels (n,) with their partners.

        Nothing waits for them.

        They are float32 images in the units of those given, and labels (n, 3): the image's own, its
        partner's, and ``share``; where images have weights, labels (n, 5), each label with its
        weight. They are for `gluonlab.parallel.objective.MixedLoss`.
        """
        images = [_images(x, partner, share) for x, partner in zip(own[0], partners[0])]
        labels = [_labels(y, partner, share) for y, partner in zip(own[1], partners[1])]
        return images, labels


def _images(own: nd.NDArray, partner: nd.NDArray, share: float) -> nd.NDArray:
    own, partner = nd.cast(own, dtype="float32"), nd.cast(partner, dtype="float32")
    # The update of SGD, weight -= lr * (wd * weight + rescale_grad * gradient), goes through the
    # pixels once.
    return nd.sgd_update(own, partner, lr=1, wd=1 - share, rescale_grad=share - 1, out=own)


def _labels(own: nd.NDArray, partner: nd.NDArray, share: float) -> nd.NDArray:
    own, partner = nd.cast(own, dtype="float32"), nd.cast(partner, dtype="float32")
    if len(own.shape) == 2:
        first = nd.slice_axis(own, axis=1, begin=0, end=1)
        return nd.concat(own, partner, nd.clip(first, share, share), dim=1)
    # clipped to it from both sides, all are the share: one call, where nd.full takes the host
    # longer than all the others
    return nd.stack(own, partner, nd.clip(own, share, share), axis=1)
