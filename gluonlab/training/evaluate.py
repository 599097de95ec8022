"""Exact accuracy, loss and confusion matrix of a split, computed by all devices.

The host reads once, at the end.
"""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import (
    Any,
    Deque,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.loading.split_batch import Batch
from gluonlab.drawing.matplotlib_figures import new_figure
from gluonlab.files.atomic_files import atomic_path, on_disk
from gluonlab.finite_numbers import check_parameters, check_validation_loss
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.parallel.strategy import Scored, Strategy
from gluonlab.plain_text import escape_unprintable
from gluonlab.training.parallel_options import weights_of
from gluonlab.training.plan import Plan
from gluonlab.training.user_metrics import GatheredScores, Metric, Part, Values, measured

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
    gathered = GatheredScores()
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


COLUMNS = 80  # of a terminal
NAME = 12  # the letters of a class that a row begins with
LONG = 21  # those that a sentence has room for, in 80 columns
LISTED = 10  # the confusions that are named where the matrix does not fit
WRITTEN = 20  # classes up to which the picture has numbers in it


def table(matrix: Confusion, classes: Sequence[str]) -> str:
    """The matrix in 80 columns; if it does not fit, the most frequent confusions."""
    classes = list(map(escape_unprintable, classes))
    labels = _labels(classes)
    row = max(map(len, labels))
    cell = max(len(str(matrix.max())), len(str(len(classes) - 1)), 3) + 1
    if row + cell * len(classes) + len("   right") > COLUMNS:
        return _most_frequent(matrix, classes)
    heads = [str(label) for label in range(len(classes))]
    lines = ["rows: true classes; columns: predicted classes"]
    lines.append(" " * row + "".join(f"{head:>{cell}}" for head in heads) + "   right")
    for label, counts, right in zip(labels, matrix, _right(matrix)):
        lines.append(
            f"{label:<{row}}"
            + "".join(f"{count or '.':>{cell}}" for count in counts)
            + f"{right:>8}"
        )
    return "\n".join(lines)


def _labels(classes: Sequence[str]) -> List[str]:
    """``3 dress``; names that are their numbers stand alone."""
    width = len(str(len(classes) - 1))
    if list(classes) == [str(label) for label in range(len(classes))]:
        return list(classes)
    return [f"{label:>{width}} {name[:NAME]}" for label, name in enumerate(classes)]


def _right(matrix: Confusion) -> List[str]:
    """For each class the percentage of images that were recognised; a dash for none."""
    return [
        f"{counts[label] / counts.sum():.1%}" if counts.sum() else "-"
        for label, counts in enumerate(matrix)
    ]


def _most_frequent(matrix: Confusion, classes: Sequence[str]) -> str:
    wrong = [(int(matrix[i, j]), i, j) for i, j in zip(*matrix.nonzero()) if i != j]
    lines = [
        f"{_short(classes[i])} taken for {_short(classes[j])}: {count:,} of {matrix[i].sum():,}"
        for count, i, j in sorted(wrong, key=_order)
    ]
    if not lines:
        return "no image was taken for another class"
    return "\n".join(["the most frequent confusions", *(f"  {line}" for line in lines[:LISTED])])


def _short(name: str) -> str:
    return name if len(name) <= LONG else f"{name[: LONG - 1]}…"


def _order(entry: "tuple[int, int, int]") -> "tuple[int, int, int]":
    count, true, taken = entry
    return -count, true, taken


def write_picture(matrix: Confusion, classes: Sequence[str], path: Path) -> None:
    """Draw the matrix: colours by the share of the row, numbers where there is room for them.

    Raises OutputError.
    """
    with on_disk(path), atomic_path(path) as temporary:
        _draw(matrix, classes, temporary)


def _draw(matrix: Confusion, classes: Sequence[str], path: Path) -> None:
    count = len(classes)
    side = min(12.0, 2.6 + 0.42 * max(count, 4)) if count <= WRITTEN else 9.0
    figure = new_figure(side, side, layout="constrained")
    from matplotlib.colors import PowerNorm

    axes = figure.subplots()
    shares = matrix / matrix.sum(axis=1, keepdims=True).clip(min=1)
    # the root of the share: a few per cent are to be seen, too
    axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
    axes.set_title(
        f"{matrix.trace():,} of {matrix.sum():,} images correct, "
        f"{matrix.trace() / max(matrix.sum(), 1):.2%}",
        fontsize=10,
    )
    axes.set_xlabel("predicted class", fontsize=9)
    axes.set_ylabel("true class", fontsize=9)
    if count <= WRITTEN:
        short = [
            name if len(name) <= NAME else f"{name[: NAME - 1]}…"
            for name in map(escape_unprintable, classes)
        ]
        # else what stands between two $ were a formula
        as_written: Dict[str, Any] = dict(fontsize=8, parse_math=False)
        axes.set_xticks(
            range(count), short, rotation=90 if max(map(len, short)) > 2 else 0, **as_written
        )
        axes.set_yticks(range(count), short, **as_written)
        for i in range(count):
            for j in range(count):
                if matrix[i, j]:
                    colour = "white" if shares[i, j] > 0.3 else "black"
                    axes.text(
                        j, i, f"{matrix[i, j]}", ha="center", va="center", fontsize=7, color=colour
                    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(path, format="png", dpi=110)
