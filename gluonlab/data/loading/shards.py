"""A batch cut into shards, one for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.shares import split_evenly

if TYPE_CHECKING:
    Shards = Tuple[List[nd.NDArray], List[nd.NDArray]]


def shard(array: nd.NDArray, ctxs: Sequence[mx.Context]) -> List[nd.NDArray]:
    """Split the first axis of (n, ...) over the devices, as evenly as `shard_bounds` does.

    A batch smaller than the number of devices occupies only the first ones: the list is then
    shorter than ``ctxs``.
    """
    busy = list(ctxs[: len(array)])
    if not busy:  # a worker's part of a batch that is smaller than the number of workers
        return []
    return gluon.utils.split_and_load(array, busy, even_split=False)  # type: ignore[no-any-return]


def shard_bounds(size: int, parts: int) -> List[Tuple[int, int]]:
    """The (begin, end) that `shard` gives each of the parts that are not empty."""
    return split_evenly(size, min(size, parts))
