"""A data set of the user's own arrays."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.data.sets.host_arrays import (
    CHANNELS_FIRST,
    channels_first,
    check_layout_name,
    class_names,
    is_shared,
    read_labels,
    to_host,
    to_pixels,
)
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
    layout: Optional[str] = None,
    weights: Any = None,
) -> Dataset:
    """Make a data set from images (N, C, H, W), or grayscale (N, H, W), and their labels.

    Arrays can be from numpy, MXNet or another library, or lists of such arrays. Networks get bytes
    divided by 255, and floats unchanged. Labels are whole numbers from 0. The arrays are copied,
    except arrays that numpy maps from a file.

    ``classes``: the class names; by default, the numbers up to the largest label. ``name``: the
    name of the data in the run's folder. ``layout``: ``NCHW``, or ``NHWC`` for images
    (N, H, W, C); without it, images that look like (N, H, W, C) are refused. ``weights`` (N,):
    factors for the loss of each training image. Raises DataError for other arrays.
    """
    check_layout_name(layout)
    train = make_split(x_train, y_train, "train", layout)
    test = make_split(x_test, y_test, "test", layout)
    check_same_shape(train.image_shape, test.image_shape, "x_train", "x_test")
    names = class_names(train.labels, test.labels, classes)
    if weights is not None:
        train = train.weighted(checked_weights("weights", to_host(weights, "weights"), len(train)))
    return Dataset(name, train, test, names, Defaults())


def check_same_shape(first: Sequence[int], second: Sequence[int], a: str, b: str) -> None:
    """Raise DataError unless the images of ``a`` and ``b`` have the same shape."""
    if tuple(first) != tuple(second):
        raise DataError(f"{a} has images of {first}, but {b} of {second}: give both the same shape")


def make_split(images: Any, labels: Any, of: str, layout: Optional[str] = None) -> ArraySplit:
    """Make a split from copies of the user's arrays. ``of``: train or test. Raises DataError."""
    name = f"x_{of}"
    x = to_host(images, name)
    if x.ndim not in (3, 4):
        raise DataError(
            f"{name} is {x.dtype} of shape {x.shape}: give images of shape (N, C, H, W), "
            "or (N, H, W) in grey"
        )
    if not x.size:
        raise DataError(f"{name} has the shape {x.shape} and contains no images: give at least one")
    x = x[:, np.newaxis] if x.ndim == 3 else channels_first(x, name, layout)
    y = read_labels(labels, f"y_{of}", len(x))
    pixels = np.ascontiguousarray(to_pixels(x, name))
    if np.may_share_memory(pixels, x) and is_shared(x, images):
        pixels = pixels.copy()  # later writes of the user to the array must not change the run
    return ArraySplit(pixels, y, CHANNELS_FIRST)
