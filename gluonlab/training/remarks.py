"""What a person who looks at a run would remark: one line each, before and after the training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Iterator, Optional

import numpy as np

from gluonlab.data.sets.dataset import Split
from gluonlab.data.sets.gluon_data import GluonSplit
from gluonlab.data.sets.image_files import FileSplit
from gluonlab.data.sets.standard import SYNTHETIC
from gluonlab.runs.result import Result
from gluonlab.training.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

MUCH_WAITING = 0.1  # of an epoch's time; more is worth a word
HUGE = 10.0  # times the loss of guessing: no network that learns is there after an epoch
DEVIATIONS = 2.0  # of an accuracy that is guessed: it is as good in one of 40 cases


def before(plan: Plan) -> Iterator[str]:
    """What the data and the batch make of such a training."""
    images, classes = len(plan.dataset.train), plan.dataset.classes
    if plan.global_batch_size > images > 0:
        yield (
            f"a batch of {plan.global_batch_size:,} is more than all {images:,} training images: "
            "each epoch is one step; choose a smaller --batch-size"
        )
    counts = _counts(plan.dataset.train, len(classes))
    if counts is not None and np.count_nonzero(counts) == 1:
        only = classes[int(np.argmax(counts))]
        yield f"all training images are of one class, {only}: there is nothing to tell apart"


def after(result: Result) -> Iterator[str]:
    """What the epoch that is kept says, and what would make the next such run better, or faster."""
    yield from _learned_nothing(result)
    train, waiting = result.plan.dataset.train, result.waiting
    if waiting > MUCH_WAITING and isinstance(train, (FileSplit, GluonSplit)):
        if isinstance(train, GluonSplit):
            cure = "transform them once, by transform(function, lazy=False), if none is random"
        elif result.plan.random_resized_crop:
            cure = (
                "decode them with more --decoders, or once and for all with "
                "--no-random-resized-crop"
            )
        else:
            cure = (
                "decode them once (python -m gluonlab.data pack), with more --decoders, "
                "or into memory with --resident-bytes"
            )
        yield f"training waited for images {waiting:.0%} of its time: {cure}"


def _learned_nothing(result: Result) -> Iterator[str]:
    """The loss is absurd, or the accuracy that of guessing: the larger fault alone.

    What a loss of the user's own is by guessing, nobody knows.
    """
    plan, last = result.plan, result.kept
    classes = len(plan.dataset.classes)
    if classes < 2 or plan.dataset.name == SYNTHETIC:
        return
    guessing, cure = math.log(classes), "a smaller --lr; --find-lr 100 finds one"
    if plan.own.loss is None and last.loss > HUGE * guessing:
        yield f"loss {last.loss:.4g} is far above that of guessing, {guessing:.2f}: try {cure}"
        return
    counts = _counts(plan.dataset.test, classes)
    if counts is None or not counts.sum() or np.count_nonzero(counts) == 1:
        return
    share, images = counts.max() / counts.sum(), counts.sum()
    chance = share + DEVIATIONS * math.sqrt(share * (1 - share) / images)
    if last.accuracy <= chance:
        yield (
            f"test accuracy {last.accuracy:.4f} on {images:,} images may still be chance (always "
            f"saying {plan.dataset.classes[int(np.argmax(counts))]} has {share:.4f}): "
            f"train longer, or try another --lr; --find-lr 100 finds one"
        )


def _counts(split: Split, classes: int) -> "Optional[NDArray[np.int64]]":
    """How many images each class has, where the split says."""
    labels = getattr(split, "labels", None)
    return None if labels is None else np.bincount(labels, minlength=classes)
