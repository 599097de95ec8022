"""Exact accuracy and loss of a split, computed by all devices; the host runs a few batches ahead of
them and reads once.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.data.loading.loader import Loader
from gluonlab.parallel.strategy import Scored
from gluonlab.training.plan import Plan

# numpy's (classes, classes) int64: [i, j] counts the images of class i that were taken for class j
Confusion = Any


ScoreShards = Callable[[Sequence[nd.NDArray], Sequence[nd.NDArray]], Iterable[Scored]]

AHEAD = 4  # batches that may wait for the devices: each holds its images
# the label is looked for among this many best scores, where there are more classes than that
TOP = 5


class Score(NamedTuple):
    """What an evaluation found; ``loss`` is the mean over the images.

    Only a finite score can be right. An image whose best score is not finite, or with NaN among its
    scores, is taken for no class. ``in_top5``: the images whose label is among the five best
    scores; None where there are not more than five classes. ``confusion``: if asked for; its
    diagonal adds up to ``correct``, and all of it to the images that were taken for some class.
    """

    images: int
    correct: int
    loss: float
    in_top5: Optional[int] = None
    confusion: Optional[Confusion] = None

    @property
    def accuracy(self) -> float:
        """The fraction of images that the network gets right."""
        return self.correct / self.images

    @property
    def top5_accuracy(self) -> Optional[float]:
        """The fraction of images whose label is among the five best scores, where there are more
        classes than five.
        """
        return None if self.in_top5 is None else self.in_top5 / self.images


def test_loader(plan: Plan) -> Loader:
    """The plan's test images, in order."""
    return Loader(
        plan.dataset.test,
        plan.ctxs,
        plan.global_batch_size,
        shuffle=False,
        raw=True,
        prefetch=plan.prefetch,
        resident_bytes=plan.resident_bytes,
    )


def evaluate(
    score: ScoreShards, loader: Loader, ctxs: Sequence[mx.Context], confusion: bool = False
) -> Score:
    """One pass over the loader's split; ``score(xs, ys)`` goes through what the network makes of a
    batch.
    """
    tallies: Dict[int, _Tally] = {}
    images = 0
    queued: Deque[List[nd.NDArray]] = deque()
    for xs, ys in loader:
        images += sum(len(x) for x in xs)
        queued.append([])
        for device, loss, scores, labels in score(xs, ys):
            queued[-1].append(loss.copy())  # ready when this part is
            if device not in tallies:
                tallies[device] = _Tally(ctxs[device], scores.shape[1], confusion)
            tallies[device].add(loss, scores, labels)
        if len(queued) > AHEAD:
            for done in queued.popleft():
                done.wait_to_read()
    losses, correct, in_top5 = (
        sum(values) for values in zip(*[tally.read() for tally in tallies.values()])
    )
    matrix = (
        sum(tally.confusion.asnumpy().astype("int64") for tally in tallies.values())
        if confusion
        else None
    )
    return Score(
        images,
        int(correct),
        float(losses) / images,
        int(in_top5) if tallies[0].classes > TOP else None,
        matrix,
    )


class _Tally:
    """What one device has counted.

    As integers: float32 would lose single images beyond 2**24 of them.
    """

    def __init__(self, ctx: mx.Context, classes: int, confusion: bool) -> None:
        self.classes = classes
        self.loss = nd.zeros((1,), ctx=ctx)
        # right, and right among the first five
        self.counts = nd.zeros((2,), ctx=ctx, dtype="int32")
        self.places = nd.array([1, min(TOP, classes)], ctx=ctx).reshape((2, 1))
        self.order = nd.arange(classes, ctx=ctx).reshape((1, classes))
        self.confusion = nd.zeros(
            (classes, classes) if confusion else (1, 1), ctx=ctx, dtype="int32"
        )
        self.wants_confusion = confusion

    def add(self, loss: nd.NDArray, scores: nd.NDArray, labels: nd.NDArray) -> None:
        """Count a shard: sum of losses (1,), scores (n, classes), labels (n,)."""
        scores, labels = scores.astype("float32"), labels.astype("float32")
        own = scores.pick(labels, keepdims=True)  # (n, 1)
        # neither NaN nor +inf is below inf: such a row has no best score, nor has one of nothing
        # but -inf, and it is no class's
        lowest = -math.inf
        decided = (scores < math.inf).min(axis=1) * (scores > lowest).max(axis=1)  # (n,), 1 or 0
        can_be_right = decided * (own > lowest).reshape((-1,))
        # of equal scores the first class counts as the better one, as in argmax: so there are no
        # ties, whatever the device
        # (n, classes)
        before = (scores > own) + (scores == own) * nd.broadcast_lesser(
            self.order, labels.expand_dims(1)
        )
        # (1, n), from 0
        rank = (before.sum(axis=1) + self.classes * (1 - can_be_right)).expand_dims(0)
        self.loss += loss.astype("float32")
        # (2, n) -> (2,)
        self.counts += nd.broadcast_lesser(rank, self.places).sum(axis=1).astype("int32")
        if self.wants_confusion:
            true = labels.one_hot(self.classes) * decided.expand_dims(1)  # (n, classes)
            taken = scores.argmax(axis=1).one_hot(self.classes)
            self.confusion += nd.dot(true, taken, transpose_a=True).astype("int32")

    def read(self) -> Tuple[float, int, int]:
        """Wait; the sum of losses, and the two counts."""
        correct, in_top5 = self.counts.asnumpy()
        return float(self.loss.asscalar()), int(correct), int(in_top5)
