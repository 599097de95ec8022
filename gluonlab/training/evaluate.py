"""Computes accuracy, loss and confusion matrix on the validation images, on all devices.

The devices count correct images in integers. The host reads the counts once, at the end.
"""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, Iterable, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.loading.split_batch import Batch
from gluonlab.divergence_checks import check_parameters, check_validation_loss
from gluonlab.drawing.matplotlib_figures import new_figure
from gluonlab.files.atomic_files import atomic_path, raise_output_errors
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel.strategy import ScoredImages, Strategy
from gluonlab.plain_text import escape_unprintable
from gluonlab.training.parallel_options import resolve_device_weights
from gluonlab.training.plan import Plan
from gluonlab.training.user_metrics import DeviceScores, GatheredScores, Metric, MetricValues, compute_metrics

# A numpy array (classes, classes), int64: [i, j] counts the images of class i that were classified
# as class j.
Confusion = Any


BATCHES_AHEAD = 4  # batches that may be queued at a time; each keeps its images in memory
TOP = 5  # number of best scores for in_top5


class Score(NamedTuple):
    """The result of an evaluation.

    An image whose best score is not finite, or that has NaN among its scores, counts as wrong and
    is assigned to no class.

    Attributes:
        images: the number of images.
        correct: the number of images whose label has the best score.
        loss: the mean loss per image.
        in_top5: the number of images whose label is among the five best scores. This is None for
            five classes or fewer.
        confusion: the confusion matrix (classes, classes), if requested. The diagonal adds up to
            ``correct``. All entries add up to the number of images that were assigned to a class.
        metrics: the values of the user's metrics, by name.
    """

    images: int
    correct: int
    loss: float
    in_top5: Optional[int] = None
    confusion: Optional[Confusion] = None
    metrics: Optional[MetricValues] = None

    @property
    def accuracy(self) -> float:
        """The fraction of images that are classified correctly."""
        return self.correct / self.images

    @property
    def top5_accuracy(self) -> Optional[float]:
        """The fraction of images whose label is among the five best scores, or None."""
        return None if self.in_top5 is None else self.in_top5 / self.images


def evaluation_loader(plan: Plan, ctxs: List[mx.Context]) -> Loader:
    """Return the loader of the plan's validation images, in order."""
    return Loader(
        plan.dataset.test,
        ctxs,
        plan.global_batch_size,
        rank=plan.group.rank,
        world_size=plan.group.size,
        shuffle=False,
        raw=True,
        prefetch=plan.prefetch,
        resident_bytes=plan.device_cache_bytes,
        device_counts=plan.device_counts,
        weights=resolve_device_weights(plan.device_weights),
    )


class Scorer(Protocol):
    """The part of `gluonlab.parallel.strategy.Strategy` that an evaluation needs."""

    @property
    def outputs(self) -> List[mx.Context]:
        """The devices that hold the scores."""

    def score(self, batch: Batch) -> Iterable[ScoredImages]:
        """Compute the scores of the batch's shards."""


def validate(strategy: Strategy, batches: Iterable[Batch], plan: Plan, step: int) -> Score:
    """Evaluate the network on the validation images during training, after step ``step``.

    Raises DivergedError if parameters are not finite, or if the loss is too large to recover.
    """
    when = f"after step {step}"
    strategy.sync_running_statistics()
    check_parameters(strategy.net, when)
    classes = len(plan.dataset.classes)
    score = evaluate(strategy, batches, classes, plan.confusion, plan.group, plan.user_components.metrics)
    check_validation_loss(score.loss, when, strategy.has_running_statistics)
    return score


def evaluate(
    strategy: Scorer,
    batches: Iterable[Batch],
    classes: int,
    confusion: bool = False,
    group: ProcessGroup = SINGLE_PROCESS,
    metrics: Optional[Mapping[str, Metric]] = None,
) -> Score:
    """Evaluate a network on batches. Each process of a group scores its shards of each batch."""
    gathered = GatheredScores()
    tallies = [_DeviceTally(ctx, classes, confusion) for ctx in strategy.outputs]
    images = 0
    queued_losses: Deque[List[nd.NDArray]] = deque()
    queued_scores: Deque[List[DeviceScores]] = deque()  # of the same batches
    for batch in batches:
        images += batch.size
        queued_losses.append([])
        queued_scores.append([])
        for device, loss, scores, labels in strategy.score(batch):
            queued_losses[-1].append(loss.copy())  # computed together with the scores of this part
            tallies[device].add(loss, scores, labels)
            if metrics:
                queued_scores[-1].append((device, scores.copy(), labels.copy()))
        if len(queued_losses) > BATCHES_AHEAD:
            for loss in queued_losses.popleft():
                loss.wait_to_read()
            gathered.add(queued_scores.popleft())
    for shards in queued_scores:
        gathered.add(shards)
    counts = np.array([sum(values) for values in zip(*[tally.read() for tally in tallies])])
    losses, correct, in_top5 = group.all_reduce_values(counts)  # float64: whole up to 2**53
    matrix = None
    if confusion:
        confusion_counts = sum(tally.confusion.asnumpy().astype("int64") for tally in tallies)
        matrix = group.all_reduce_values(confusion_counts).astype("int64")
    top5 = int(in_top5) if classes > TOP else None
    metric_values = compute_metrics(metrics, *gathered.gather(group)) if metrics else None
    return Score(images, int(correct), float(losses) / images, top5, matrix, metric_values)


class _DeviceTally:
    """The sums and counts of one device, which stay on the device until `read`.

    The counts are integers, because float32 cannot count beyond 2**24.
    """

    def __init__(self, ctx: mx.Context, classes: int, confusion: bool) -> None:
        self.classes = classes
        self.loss = nd.zeros((1,), ctx=ctx)
        # number of images whose label has the best score, and one of the five best scores
        self.counts = nd.zeros((2,), ctx=ctx, dtype="int32")
        self._top_counts = nd.array([1, min(TOP, classes)], ctx=ctx).reshape((2, 1))
        self._class_indices = nd.arange(classes, ctx=ctx).reshape((1, classes))
        self.confusion = nd.zeros((classes, classes) if confusion else (1, 1), ctx=ctx, dtype="int32")
        self._has_confusion = confusion

    def add(self, loss: nd.NDArray, scores: nd.NDArray, labels: nd.NDArray) -> None:
        """Add a shard: the sum of its losses (1,), its scores (n, classes), and its labels (n,)."""
        scores, labels = scores.astype("float32"), labels.astype("float32")
        label_scores = scores.pick(labels, keepdims=True)  # (n, 1)
        # Rows with NaN or +inf, and rows with only -inf, have no best score. NaN < inf is false.
        lowest = -math.inf
        has_best = (scores < math.inf).min(axis=1) * (scores > lowest).max(axis=1)  # (n,), 1 or 0
        can_be_right = has_best * (label_scores > lowest).reshape((-1,))
        # If scores are equal, the first class counts as better, as in argmax. So ties have the same
        # result on all devices. Shape (n, classes).
        is_earlier = nd.broadcast_lesser(self._class_indices, labels.expand_dims(1))
        better = (scores > label_scores) + (scores == label_scores) * is_earlier
        # (1, n), from 0
        rank = (better.sum(axis=1) + self.classes * (1 - can_be_right)).expand_dims(0)
        self.loss += loss.astype("float32")
        # (2, n) -> (2,)
        self.counts += nd.broadcast_lesser(rank, self._top_counts).sum(axis=1).astype("int32")
        if self._has_confusion:
            true = labels.one_hot(self.classes) * has_best.expand_dims(1)  # (n, classes)
            predicted = scores.argmax(axis=1).one_hot(self.classes)
            self.confusion += nd.dot(true, predicted, transpose_a=True).astype("int32")

    def read(self) -> Tuple[float, int, int]:
        """Wait for the device; return (sum of losses, correct images, correct images in the top 5).

        An image is in the top 5 if its label has one of the five best scores.
        """
        correct, in_top5 = self.counts.asnumpy()
        return float(self.loss.asscalar()), int(correct), int(in_top5)


COLUMNS = 80  # width of a terminal
NAME_LENGTH = 12  # letters of a class name at the start of a row
LONG_NAME_LENGTH = 21  # letters of a class name in the list of confusions
MAX_LISTED = 10  # confusions that are listed if the matrix does not fit
MAX_ANNOTATED_CLASSES = 20  # the picture contains numbers for up to this many classes


def format_confusion(matrix: Confusion, classes: Sequence[str]) -> str:
    """Return the confusion matrix as lines of text.

    If the matrix is wider than 80 columns, the lines list the most frequent confusions instead.
    """
    classes = list(map(escape_unprintable, classes))
    labels = _row_labels(classes)
    label_width = max(map(len, labels))
    cell_width = max(len(str(matrix.max())), len(str(len(classes) - 1)), 3) + 1
    if label_width + cell_width * len(classes) + len("   right") > COLUMNS:
        return _list_confusions(matrix, classes)
    column_labels = [str(label) for label in range(len(classes))]
    lines = ["rows: true classes; columns: predicted classes"]
    lines.append(" " * label_width + "".join(f"{head:>{cell_width}}" for head in column_labels) + "   right")
    for label, counts, accuracy in zip(labels, matrix, _class_accuracies(matrix)):
        lines.append(
            f"{label:<{label_width}}" + "".join(f"{count or '.':>{cell_width}}" for count in counts) + f"{accuracy:>8}"
        )
    return "\n".join(lines)


def _row_labels(classes: Sequence[str]) -> List[str]:
    """Return labels such as ``3 dress``, or only the number for classes without names."""
    width = len(str(len(classes) - 1))
    if list(classes) == [str(label) for label in range(len(classes))]:
        return list(classes)
    return [f"{label:>{width}} {name[:NAME_LENGTH]}" for label, name in enumerate(classes)]


def _class_accuracies(matrix: Confusion) -> List[str]:
    """Return each class's percentage of correctly classified images; a dash without images."""
    return [f"{counts[label] / counts.sum():.1%}" if counts.sum() else "-" for label, counts in enumerate(matrix)]


def _list_confusions(matrix: Confusion, classes: Sequence[str]) -> str:
    """Return the most frequent confusions as lines of text."""
    # the most frequent first, then by class
    confusions = sorted((-int(matrix[i, j]), i, j) for i, j in zip(*matrix.nonzero()) if i != j)
    names = [_shorten(name, LONG_NAME_LENGTH) for name in classes]
    lines = [f"{names[i]} taken for {names[j]}: {-negated:,} of {matrix[i].sum():,}" for negated, i, j in confusions]
    if not lines:
        return "no image was misclassified"
    return "\n".join(["most frequent confusions", *(f"  {line}" for line in lines[:MAX_LISTED])])


def _shorten(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def write_confusion_picture(matrix: Confusion, classes: Sequence[str], path: Path) -> None:
    """Draw the confusion matrix as a PNG file. Raises OutputError if the file cannot be written.

    The color of a cell shows its fraction of the row's images. If there are few classes, the cells
    also contain numbers.
    """
    with raise_output_errors(path), atomic_path(path) as temporary:
        _draw_confusion(matrix, classes, temporary)


def _draw_confusion(matrix: Confusion, classes: Sequence[str], path: Path) -> None:
    """Draw the matrix into a PNG file."""
    count = len(classes)
    side = min(12.0, 2.6 + 0.42 * max(count, 4)) if count <= MAX_ANNOTATED_CLASSES else 9.0
    figure = new_figure(side, side, layout="constrained")
    from matplotlib.colors import PowerNorm

    axes = figure.subplots()
    shares = matrix / matrix.sum(axis=1, keepdims=True).clip(min=1)
    # the square root makes a few percent visible
    axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
    axes.set_title(
        f"{matrix.trace():,} of {matrix.sum():,} images correct, {matrix.trace() / max(matrix.sum(), 1):.2%}",
        fontsize=10,
    )
    axes.set_xlabel("predicted class", fontsize=9)
    axes.set_ylabel("true class", fontsize=9)
    if count <= MAX_ANNOTATED_CLASSES:
        short_names = [_shorten(escape_unprintable(name), NAME_LENGTH) for name in classes]
        # without parse_math=False, text between two $ would become a formula
        text_options: Dict[str, Any] = dict(fontsize=8, parse_math=False)
        axes.set_xticks(range(count), short_names, rotation=90 if max(map(len, short_names)) > 2 else 0, **text_options)
        axes.set_yticks(range(count), short_names, **text_options)
        for i in range(count):
            for j in range(count):
                if matrix[i, j]:
                    text_color = "white" if shares[i, j] > 0.3 else "black"
                    axes.text(j, i, f"{matrix[i, j]}", ha="center", va="center", fontsize=7, color=text_color)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(path, format="png", dpi=110)
