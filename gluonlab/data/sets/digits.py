"""scikit-learn's handwritten digits, which need no download: 1,797 real 8x8 images in 10 classes.

Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998.
"""

from __future__ import annotations

import gzip
import importlib.machinery
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Tuple

import numpy as np

from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Labels

TEST_IMAGES = 360  # a fifth of all
# of the split into training and test images: fixed, so that accuracies can be compared
SPLIT_SEED = 0
# with the lab's plain SGD the accuracy after 5 epochs is a matter of luck; this reaches 0.97 for
# every seed tried
DEFAULTS = Defaults(batch_size=32, epochs=10, optimizer="adam", lr=0.002)


def load() -> Dataset:
    """1,437 training and 360 test images of shape (1, 28, 28), the shape that LeNet wants."""
    pixels, labels = read_digits()
    images = as_28x28(pixels)
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    parts = (order[TEST_IMAGES:], order[:TEST_IMAGES])
    train, test = (ArraySplit(images[part], labels[part]) for part in parts)
    return Dataset("digits", train, test, tuple(map(str, range(10))), DEFAULTS)


@lru_cache(maxsize=1)
def read_digits() -> "Tuple[np.ndarray[tuple[int, int, int], np.dtype[np.float64]], Labels]":
    """Read scikit-learn's file: grey values 0..16 of shape (1797, 8, 8), labels of shape (1797,).

    `sklearn.datasets.load_digits` gives the same, but scikit-learn's import takes half a second.

    Raises:
        DataError: scikit-learn is not installed, or is without the file.
    """
    package = importlib.machinery.PathFinder.find_spec("sklearn")
    folders = (package and package.submodule_search_locations) or [""]
    try:
        with gzip.open(Path(folders[0], "datasets", "data", "digits.csv.gz"), "rt") as file:
            rows = np.array([line.split(",") for line in file], dtype=np.float64)
    except OSError as error:
        raise DataError(
            f"scikit-learn's digits cannot be read: {error}; pip install scikit-learn"
        ) from error
    pixels, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int32)
    for array in (pixels, labels):
        array.flags.writeable = False  # every caller gets the same arrays
    return pixels, labels


def as_28x28(images: "np.ndarray[tuple[int, int, int], np.dtype[np.float64]]") -> "Images":
    """(N, 8, 8) grey values 0..16 -> (N, 1, 28, 28) uint8: pixels of 3x3 in a border of 2."""
    grey = np.rint(images * (255 / 16)).astype(np.uint8)
    large = grey.repeat(3, axis=1).repeat(3, axis=2)  # (N, 24, 24)
    return np.pad(large, ((0, 0), (2, 2), (2, 2)))[:, None]
