"""A batch as a strategy takes it: its shards on this process's devices, and its whole size."""

from __future__ import annotations

from typing import Iterator, Sequence

from mxnet import nd


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
