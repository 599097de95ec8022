"""Microbatches: a shard goes through the network in parts, whose gradients add up.

Only one part's activations need memory at a time. The update is the big batch's: losses are added
up, not averaged, so it does not matter how a shard is cut. What looks across the images of a batch
sees a part only: BatchNorm normalises each microbatch by its own mean and variance, and moves its
running statistics once per microbatch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.data.loading.split_batch import Batch, shard_bounds
from gluonlab.engine.fast_invoke import AddInto, CopyInto, slice_rows
from gluonlab.errors import ConfigError


class Microbatch(NamedTuple):
    """Some images (n, C, H, W) and labels (n,) of one device's shard.

    ``device``: its position.
    """

    device: int
    images: nd.NDArray
    labels: nd.NDArray


@dataclass(frozen=True)
class Microbatches:
    """How every shard is cut: into ``count`` parts, or into parts of at most ``size`` images.

    Neither: it stays whole.
    """

    count: Optional[int] = None
    size: Optional[int] = None

    def bounds(self, images: int) -> List[Tuple[int, int]]:
        """The (begin, end) of each part of a shard, as even as they can be.

        No part is empty, and the larger ones come first. A shard with fewer images than ``count``
        is cut into single images.
        """
        parts = self.count or (math.ceil(images / self.size) if self.size else 1)
        return shard_bounds(images, max(parts, 1))

    def largest(self, images: int) -> int:
        """How many images the largest part of a shard has."""
        return max((end - begin for begin, end in self.bounds(images)), default=0)

    def rounds(self, batch: Batch) -> List[List[Microbatch]]:
        """The parts of all shards, in rounds: in each, one part of every shard that has any left.

        None without shards.
        """
        xs, ys = batch.xs, batch.ys
        if self.count is None and self.size is None:
            return [[Microbatch(i, x, y) for i, (x, y) in enumerate(zip(xs, ys))]] if xs else []
        cuts = [self.bounds(len(x)) for x in xs]
        return [
            [
                # views: nothing is copied before the graph's own input
                Microbatch(device, slice_rows(x, begin, end), slice_rows(y, begin, end))
                for device, (x, y, cut) in enumerate(zip(xs, ys, cuts))
                for begin, end in cut[number : number + 1]
            ]
            for number in range(max(map(len, cuts), default=0))
        ]

    def check(
        self, global_batch_size: int, copies: int, on: str = "device", fewest: Optional[int] = None
    ) -> None:
        """Raise ConfigError when a copy of the network has fewer images of a batch than parts.

        ``on``: what has one, "device" or "copy of the network". ``fewest``: how many images one
        may have, where the batch is not shared evenly.
        """
        share = global_batch_size // copies if fewest is None else fewest
        if self.count is not None and self.count > max(share, 1):
            raise ConfigError(
                f"--microbatches {self.count}: {share} image{'s' * (share != 1)} per {on} "
                f"({global_batch_size} in all, shared by {copies}) "
                f"make{'s' * (share == 1)} no {self.count} parts: "
                f"give 1 to {max(share, 1)}, or a larger batch"
            )

    def in_words(self) -> str:
        """How the shards are cut, to be said after the batch size; empty when they stay whole."""
        if self.count is not None:
            return f", in {self.count} microbatch{'es' * (self.count > 1)}"
        return f", in microbatches of at most {self.size}" if self.size is not None else ""


WHOLE = Microbatches()


class LossSums:
    """On each device the sum of the losses (1,) of its shard's parts."""

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        self.totals = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]
        self._begin = [CopyInto(total) for total in self.totals]
        self._add = [AddInto(total) for total in self.totals]

    def add(self, device: int, loss: nd.NDArray, first: bool) -> nd.NDArray:
        """Add a part's loss, or begin with it; the sum so far, which the next call changes."""
        if first:
            self._begin[device].copy(loss)
        else:
            self._add[device].add(loss)
        return self.totals[device]
