"""Weights of images in the training loss: per image, per class, or balanced."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, List, Sequence, Union

import numpy as np

from gluonlab.config.values import BALANCED
from gluonlab.data.sets.dataset import Dataset, LabelledSplit
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Labels, Weights

MOST_NAMED = 5  # classes in a message
MEANS = "0 leaves an image out of the loss, and 2 counts it twice"


def checked_weights(name: str, given: Any, images: int) -> "Weights":
    """Convert the weights of ``images`` images to float64. Raises DataError for invalid weights."""
    try:
        values = given.asnumpy() if hasattr(given, "asnumpy") else np.asarray(given)
        weights: "Weights" = values.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name} has values that are not numbers: {MEANS}") from None
    if weights.shape != (images,):
        raise DataError(
            f"{name} has the shape {weights.shape}, but there are {images} images: "
            f"give one number per image, shape ({images},)"
        )
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise DataError(
            f"{name}[{wrong[0]}] is {weights[wrong[0]]:g}: give finite numbers from 0 up; {MEANS}"
        )
    if not weights.any():
        raise DataError(f"{name} is 0 for every image, so the network would learn nothing: {MEANS}")
    return weights


def balanced_weights(labels: "Labels", classes: int) -> List[float]:
    """Compute one weight per class, so that all classes have the same share of the loss.

    A class with n of N images gets N / (K n), where K is the number of classes that occur. The mean
    weight of the images is 1. A class without images gets 1.
    """
    counts = np.bincount(labels, minlength=classes)
    occur = int((counts > 0).sum())
    return [len(labels) / (occur * int(count)) if count else 1.0 for count in counts]


def weigh_classes(dataset: Dataset, asked: Union[str, Sequence[float]]) -> Dataset:
    """Return the data set with the class weights applied to its training images.

    ``asked``: BALANCED, or one number per class. Existing weights of images are multiplied by the
    class weights. Raises DataError if the weights do not fit the classes.
    """
    train, classes = dataset.train, dataset.classes
    if not isinstance(train, LabelledSplit):
        raise DataError(
            f"--class-weights needs the labels of all training images, but the split of "
            f"{dataset.name}, a {type(train).__name__}, has no labels: "
            "give images and weights to gluonlab.data.from_arrays"
        )
    labels = train.labels
    if labels.dtype.kind not in "iu":
        raise DataError(
            f"--class-weights needs the number of a class for each training image, and the labels "
            f"of {dataset.name} are {labels.dtype}: leave it out, or number the classes"
        )
    by_class = balanced_weights(labels, len(classes)) if asked == BALANCED else list(asked)
    if len(by_class) != len(classes):
        named = ", ".join(classes[:MOST_NAMED]) + ", ..." * (len(classes) > MOST_NAMED)
        many = f"{len(by_class)} number{'s' * (len(by_class) != 1)}"
        raise DataError(
            f"--class-weights has {many}, but {dataset.name} has {len(classes)} classes ({named}): "
            f"give one number per class, in this order, or {BALANCED}"
        )
    weights = np.array(by_class, np.float64)[labels]
    if train.weights is not None:
        weights = weights * train.weights
    if not weights.any():
        raise DataError(
            "--class-weights is 0 for every class that occurs, so the network would learn nothing: "
            "give at least one of them more than 0"
        )
    return dataclasses.replace(dataset, train=train.weighted(weights))
