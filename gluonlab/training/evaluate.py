"""Exact accuracy and loss of a split, computed by all devices; the host reads once."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Deque, Iterable, List, Mapping, NamedTuple, Optional, Protocol, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.loader import Loader
from gluonlab.data.loading.shards import Batch
from gluonlab.finite import check_parameters, check_validation_loss
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.strategy import Scored, Strategy
from gluonlab.training.device_weights import weights_of
from gluonlab.training.metrics import Gathered, Metric, Part, Values, measured
from gluonlab.training.plan import Plan

# numpy's (classes, classes) int64: [i, j] counts the images of class i classified as class j
Confusion = Any


AHEAD = 4  # batches that may wait for the devices: each holds its images
# the label is looked for among this many best scores, where there are more classes than that
TOP = 5


class Score(NamedTuple):
    """The result of an evaluation; ``loss`` is the mean over the images.

    Only a finite score can be right. An image whose best score is not finite, or with NaN among its
    scores, is classified as no class. ``in_top5``: the images whose label is among the five best
    scores; None for five classes or fewer. ``confusion``: the confusion matrix, if asked for; its
    diagonal adds up to ``correct``, and all of it to the images that were classified. ``metrics``:
    the numbers of the user's own metrics.
    """

    images: int
    correct: int
    loss: float
    in_top5: Optional[int] = None
    confusion: Optional[Confusion] = None
    metrics: Optional[Values] = None

    @property
    def accuracy(self) -> float:
        """The fraction of images that the network gets right."""
        return self.correct / self.images

    @property
    def top5_accuracy(self) -> Optional[float]:
        """The fraction of images whose label is among the five best scores, of more classes."""
        return None if self.in_top5 is None else self.in_top5 / self.images


def evaluation_loader(plan: Plan, ctxs: List[mx.Context]) -> Loader:
    """The plan's test images for these devices, in order."""
    return Loader(
        plan.dataset.test,
        ctxs,
        plan.global_batch_size,
        rank=plan.group.rank,
        world_size=plan.group.size,
        shuffle=False,
        raw=True,
        prefetch=plan.prefetch,
        resident_bytes=plan.resident_bytes,
        device_counts=plan.device_counts,
        weights=weights_of(plan.device_weights),
    )


class Scoring(Protocol):
    """What an evaluation needs of a `gluonlab.parallel.strategy.Strategy`."""

    @property
    def outputs(self) -> List[mx.Context]:
        """The devices on which scores appear."""

    def score(self, batch: Batch) -> Iterable[Scored]:
        """The scores of the batch's parts."""


def validate(strategy: Strategy, batches: Iterable[Batch], plan: Plan, step: int) -> Score:
    """`evaluate` a network after training up to this step.

    Raises DivergedError when its parameters are not finite, or its loss is beyond recovery.
    """
    when = f"after step {step}"
    strategy.settle_statistics()
    check_parameters(strategy.net, when)
    classes = len(plan.dataset.classes)
    score = evaluate(strategy, batches, classes, plan.confusion, plan.group, plan.own.metrics)
    check_validation_loss(score.loss, when, strategy.has_statistics)
    return score


def evaluate(
    strategy: Scoring,
    batches: Iterable[Batch],
    classes: int,
    confusion: bool = False,
    group: Group = ALONE,
    metrics: Optional[Mapping[str, Metric]] = None,
) -> Score:
    """One pass over a split's batches, of which each process of a group scores its part."""
    gathered = Gathered()
    tallies = [_Tally(ctx, classes, confusion) for ctx in strategy.outputs]
    images = 0
    queued: Deque[List[nd.NDArray]] = deque()
    kept: Deque[List[Part]] = deque()  # of the same batches
    for batch in batches:
        images += batch.size
        queued.append([])
        kept.append([])
        for device, loss, scores, labels in strategy.score(batch):
            queued[-1].append(loss.copy())  # ready when this part is
            tallies[device].add(loss, scores, labels)
            if metrics:
                kept[-1].append((device, scores.copy(), labels.copy()))
        if len(queued) > AHEAD:
            for done in queued.popleft():
                done.wait_to_read()
            gathered.add(kept.popleft())
    for parts in kept:
        gathered.add(parts)
    counts = np.array([sum(values) for values in zip(*[tally.read() for tally in tallies])])
    losses, correct, in_top5 = group.total(counts)  # float64: whole up to 2**53
    matrix = None
    if confusion:
        counted = sum(tally.confusion.asnumpy().astype("int64") for tally in tallies)
        matrix = group.total(counted).astype("int64")
        matrix = matrix.astype("int64")
    top5 = int(in_top5) if classes > TOP else None
    own = measured(metrics, *gathered.whole(group)) if metrics else None
    return Score(images, int(correct), float(losses) / images, top5, matrix, own)


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
        earlier = nd.broadcast_lesser(self.order, labels.expand_dims(1))
        before = (scores > own) + (scores == own) * earlier
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
