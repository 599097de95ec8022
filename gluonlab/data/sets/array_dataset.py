"""Makes data sets from the user's arrays, and sets image weights for the training loss."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

import numpy as np

from gluonlab.config.option_checks import BALANCED
from gluonlab.data.sets.convert_user_arrays import (
    CHANNELS_FIRST,
    check_layout_name,
    convert_labels,
    resolve_class_names,
    shares_user_memory,
    to_channels_first,
    to_numpy,
    to_pixels,
)
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, LabeledSplit
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Labels, Weights

DEFAULT_NAME = "arrays"
MAX_NAMED_CLASSES = 5  # classes in a message
WEIGHT_MEANING = "0 excludes an image from the loss, and 2 counts it twice"


def from_arrays(
    x_train: Any,
    y_train: Any,
    x_test: Any,
    y_test: Any,
    classes: Optional[Sequence[str]] = None,
    name: str = DEFAULT_NAME,
    layout: Optional[str] = None,
    weights: Any = None,
) -> Dataset:
    """Create a data set from arrays of images and labels.

    Pass arrays from NumPy, MXNet or another library, or lists of arrays. The arrays are copied,
    unless they are memory-mapped files. The model receives integer images divided by 255, and float
    images unchanged.

    Args:
        x_train: Training images (N, C, H, W), or grayscale (N, H, W).
        y_train: Training labels (N,), integers starting from 0.
        x_test: Validation images.
        y_test: Validation labels.
        classes: The class names. The default names are the numbers up to the largest label.
        name: The name of the data set in the run directory.
        layout: ``"NCHW"`` or ``"NHWC"``. If None, images that look like (N, H, W, C) raise an
            error.
        weights: The training images' weights in the loss, of shape (N,).

    Returns:
        The data set.

    Raises:
        DataError: An array has the wrong shape or type.
    """
    check_layout_name(layout)
    train = make_split(x_train, y_train, "train", layout)
    test = make_split(x_test, y_test, "test", layout)
    check_same_shape(train.image_shape, test.image_shape, "x_train", "x_test")
    names = resolve_class_names(train.labels, test.labels, classes)
    if weights is not None:
        train = train.with_weights(check_weights("weights", to_numpy(weights, "weights"), len(train)))
    return Dataset(name, train, test, names, Defaults())


def check_same_shape(shape: Sequence[int], other_shape: Sequence[int], name: str, other_name: str) -> None:
    """Raise DataError unless the images of both splits have the same shape."""
    if tuple(shape) != tuple(other_shape):
        raise DataError(
            f"{name} has images of shape {shape}, but {other_name} has images of shape {other_shape}: use the same "
            "shape for both"
        )


def make_split(images: Any, labels: Any, part: str, layout: Optional[str] = None) -> ArraySplit:
    """Make a split from the user's arrays. Raise DataError for a wrong shape or type.

    The arrays are copied, unless they are mapped from a file. ``part``: "train" or "test", for
    error messages.
    """
    name = f"x_{part}"
    x = to_numpy(images, name)
    if x.ndim not in (3, 4):
        raise DataError(
            f"{name} has type {x.dtype} and shape {x.shape}: use images of shape (N, C, H, W), or "
            "(N, H, W) for gray images"
        )
    if not x.size:
        raise DataError(f"{name} has the shape {x.shape} and contains no images: pass at least one image")
    x = x[:, np.newaxis] if x.ndim == 3 else to_channels_first(x, name, layout)
    y = convert_labels(labels, f"y_{part}", len(x))
    pixels = np.ascontiguousarray(to_pixels(x, name))
    if np.may_share_memory(pixels, x) and shares_user_memory(x, images):
        pixels = pixels.copy()  # the user's later writes to the array must not change the run
    return ArraySplit(pixels, y, CHANNELS_FIRST)


# --- weights of images: per image, per class, or balanced


def check_weights(name: str, given: Any, images: int) -> "Weights":
    """Convert the weights of ``images`` images to float64. Raise DataError for invalid weights."""
    try:
        values = given.asnumpy() if hasattr(given, "asnumpy") else np.asarray(given)
        weights: "Weights" = values.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{name} contains values that are not numbers: use numbers of at least 0; {WEIGHT_MEANING}"
        ) from None
    if weights.shape != (images,):
        raise DataError(
            f"{name} has the shape {weights.shape}, but there are {images} images: use one number per "
            f"image, in an array of shape ({images},)"
        )
    invalid = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(invalid):
        raise DataError(
            f"{name}[{invalid[0]}] is {weights[invalid[0]]:g}: use finite numbers of at least 0; {WEIGHT_MEANING}"
        )
    if not weights.any():
        raise DataError(
            f"{name} is 0 for every image, so the model would not learn anything: set at least one weight above 0"
        )
    return weights


def balanced_weights(labels: "Labels", classes: int) -> List[float]:
    """Compute one weight per class, such that all classes contribute equally to the loss.

    The weight of a class is N / (K * n). N is the number of all images, n the number of images in
    the class, and K the number of classes that occur. The mean weight of the images is 1. The
    weight of a class without images is 1.
    """
    counts = np.bincount(labels, minlength=classes)
    occurring = int((counts > 0).sum())
    return [len(labels) / (occurring * int(count)) if count else 1.0 for count in counts]


def apply_class_weights(dataset: Dataset, class_weights: Union[str, Sequence[float]]) -> Dataset:
    """Return the data set with the class weights applied to its training images.

    ``class_weights``: BALANCED, or one number per class. Existing image weights are multiplied by
    the class weights. Raises DataError if the weights do not match the classes.
    """
    train, classes = dataset.train, dataset.classes
    if not isinstance(train, LabeledSplit):
        raise DataError(
            "--class-weights requires the labels of all training images, but the training split of "
            f"{dataset.name}, a {type(train).__name__}, has no labels: pass images and weights to "
            "gluonlab.data.from_arrays"
        )
    labels = train.labels
    if labels.dtype.kind not in "iu":
        raise DataError(
            f"--class-weights requires class numbers as labels, but the labels of {dataset.name} have "
            f"type {labels.dtype}: omit --class-weights, or use integers as labels"
        )
    weight_per_class = balanced_weights(labels, len(classes)) if class_weights == BALANCED else list(class_weights)
    if len(weight_per_class) != len(classes):
        named = ", ".join(classes[:MAX_NAMED_CLASSES]) + ", ..." * (len(classes) > MAX_NAMED_CLASSES)
        count = f"{len(weight_per_class)} number{'s' * (len(weight_per_class) != 1)}"
        raise DataError(
            f"--class-weights has {count}, but {dataset.name} has {len(classes)} classes ({named}): "
            f"use one number per class, in this order, or {BALANCED}"
        )
    weights = np.array(weight_per_class, np.float64)[labels]
    if train.weights is not None:
        weights = weights * train.weights
    if not weights.any():
        raise DataError(
            "--class-weights is 0 for every class of the training images, so the model would not learn "
            "anything: set at least one of these weights above 0"
        )
    return dataclasses.replace(dataset, train=train.with_weights(weights))
