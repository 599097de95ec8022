"""Exact accuracy and loss of a split, computed by all devices, with one synchronisation at the end."""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.data.loader import Loader

ScoreShards = Callable[[Sequence[nd.NDArray], Sequence[nd.NDArray]], List[Tuple[nd.NDArray, nd.NDArray]]]


class Score(NamedTuple):
    """What an evaluation found; ``loss`` is the mean over the images."""

    images: int
    correct: int
    loss: float

    @property
    def accuracy(self) -> float:
        """The fraction of images that the network gets right."""
        return self.correct / self.images


def evaluate(score: ScoreShards, loader: Loader, ctxs: Sequence[mx.Context]) -> Score:
    """One pass over the loader's split; ``score(xs, ys)`` gives each shard's (sum of losses, correct answers)."""
    loss = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]
    # counted as integers: float32 would lose single images beyond 2**24 of them
    correct = [nd.zeros((1,), ctx=ctx, dtype="int32") for ctx in ctxs]
    images = 0
    for xs, ys in loader:
        images += sum(len(x) for x in xs)
        for device, (shard_loss, shard_correct) in enumerate(score(xs, ys)):
            loss[device] += shard_loss
            correct[device] += shard_correct.astype("int32")
    return Score(images, int(_total(correct)), _total(loss) / images)


def _total(parts: List[nd.NDArray]) -> float:
    return float(sum(part.asscalar() for part in parts))
