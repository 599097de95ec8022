"""A data set of the user's own arrays."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import numpy as np

from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.data.sets.weighting import checked_weights
from gluonlab.errors import DataError

NAME = "arrays"


def from_arrays(
    x_train: Any,
    y_train: Any,
    x_test: Any,
    y_test: Any,
    classes: Optional[Sequence[str]] = None,
    name: str = NAME,
    weights: Any = None,
) -> Dataset:
    """Images (N, C, H, W), or (N, H, W) in grey, of bytes, and a label for each.

    Labels are whole numbers from 0. ``classes``: their names; without, the numbers up to the
    largest label. ``name``: what the run's folder calls the data. ``weights`` (N,): what the loss
    of each training image is multiplied by. Raises DataError for other arrays.
    """
    splits = [_split("train", x_train, y_train), _split("test", x_test, y_test)]
    train, test = splits
    if weights is not None:
        train = train.weighted(checked_weights("weights", weights, len(train)))
    if train.image_shape != test.image_shape:
        raise DataError(
            f"x_train has images of {train.image_shape}, and x_test of {test.image_shape}: "
            "give both the same"
        )
    largest = max(int(split.labels.max()) for split in splits)
    names: Tuple[str, ...] = tuple(map(str, classes if classes is not None else range(largest + 1)))
    if largest >= len(names):
        raise DataError(
            f"a label is {largest}, and there are {len(names)} classes, from 0: "
            "name all classes, or leave them out"
        )
    return Dataset(name, train, test, names, Defaults())


def _split(of: str, images: Any, labels: Any) -> ArraySplit:
    x, y = np.asarray(images), np.asarray(labels)
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise DataError(
            f"x_{of} is {x.dtype} of shape {x.shape}: give bytes (uint8) from 0 to 255, of shape "
            "(N, C, H, W), or (N, H, W) in grey; of fractions f: (f * 255).round().astype('uint8')"
        )
    if not x.size:
        raise DataError(f"x_{of} has the shape {x.shape}, without any image: give some")
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or len(y) != len(x):
        raise DataError(
            f"y_{of} is {y.dtype} of shape {y.shape}: give the number of its class for each image, "
            f"integers of shape ({len(x)},)"
        )
    if y.min() < 0 or y.max() >= 2**31:
        raise DataError(f"y_{of} goes from {y.min()} to {y.max()}: give classes from 0 up")
    return ArraySplit(x[:, np.newaxis] if x.ndim == 3 else x, y)
