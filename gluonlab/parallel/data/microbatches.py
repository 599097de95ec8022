"""Microbatches: each device trains on its shard in several parts, and sums their gradients.

So only the activations of one part need memory at a time. Losses are summed, not averaged, so that
the update does not depend on the number of parts. BatchNorm is an exception: it normalizes each
microbatch by its own mean and variance, and updates its running statistics once per microbatch.
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
    """Images (n, C, H, W) and labels (n,) from the shard of device number ``device``."""

    device: int
    images: nd.NDArray
    labels: nd.NDArray


@dataclass(frozen=True)
class Microbatches:
    """Settings to divide each shard into ``count`` parts, or into parts of at most ``size`` images.

    If both settings are None, shards are not divided.
    """

    count: Optional[int] = None
    size: Optional[int] = None

    def bounds(self, images: int) -> List[Tuple[int, int]]:
        """Divide a shard of ``images`` images; return the (begin, end) of each microbatch.

        Sizes are as even as possible, with the larger ones first. No microbatch is empty: a shard
        with fewer images than ``count`` is divided into single images.
        """
        parts = self.count or (math.ceil(images / self.size) if self.size else 1)
        return shard_bounds(images, max(parts, 1))

    def largest_part(self, images: int) -> int:
        """Return the number of images of the largest part of a shard."""
        return max((end - begin for begin, end in self.bounds(images)), default=0)

    def split_into_rounds(self, batch: Batch) -> List[List[Microbatch]]:
        """Divide all shards into microbatches, for several rounds of training.

        Round i has microbatch i of each shard with more than i microbatches.
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
            global_batch_size: Images of a batch.
            copies: Number of copies of the network.
            on: Name of the unit that trains on a shard: "device" or "copy of the network".
            fewest: Smallest number of images of a shard, if the batch is divided unevenly.
        """
        share = global_batch_size // copies if fewest is None else fewest
        if self.count is not None and self.count > max(share, 1):
            raise ConfigError(
                f"--microbatches {self.count}: {share} image{'s' * (share != 1)} per {on} "
                f"({global_batch_size} in all, shared by {copies}) "
                f"make{'s' * (share == 1)} no {self.count} parts: "
                f"give 1 to {max(share, 1)}, or a larger batch"
            )

    def describe(self) -> str:
        """Return a note for a run's output, such as ", in 4 microbatches"; "" for whole shards."""
        if self.count is not None:
            return f", in {self.count} microbatch{'es' * (self.count > 1)}"
        return f", in microbatches of at most {self.size}" if self.size is not None else ""


WHOLE_SHARDS = Microbatches()


class LossAccumulator:
    """On each device, the sum (1,) of the losses of its shard's microbatches."""

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        self.totals = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]
        self._start = [CopyInto(total) for total in self.totals]
        self._add = [AddInto(total) for total in self.totals]

    def add(self, device: int, loss: nd.NDArray, first: bool) -> nd.NDArray:
        """Add ``loss`` to the device's sum of losses, and return the sum.

        ``first``: start a new sum instead. Later calls overwrite the returned array.
        """
        if first:
            self._start[device].copy(loss)
        else:
            self._add[device].add(loss)
        return self.totals[device]
