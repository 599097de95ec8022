"""scikit-learn's handwritten digits, which need no download: 1,797 real 8x8 images in 10 classes.

Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images

TEST_IMAGES = 360  # a fifth of all
# of the split into training and test images: fixed, so that accuracies can be compared
SPLIT_SEED = 0
# with the lab's plain SGD the accuracy after 5 epochs is a matter of luck; this reaches 0.97 for
# every seed tried
DEFAULTS = Defaults(batch_size=32, epochs=10, optimizer="adam", lr=0.002)


def load() -> Dataset:
    """1,437 training and 360 test images of shape (1, 28, 28), the shape that LeNet wants."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = as_28x28(digits.images), digits.target.astype(np.int32)
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    parts = (order[TEST_IMAGES:], order[:TEST_IMAGES])
    train, test = (ArraySplit(images[part], labels[part]) for part in parts)
    return Dataset("digits", train, test, tuple(map(str, digits.target_names)), DEFAULTS)


def as_28x28(images: "np.ndarray[tuple[int, int, int], np.dtype[np.float64]]") -> "Images":
    """(N, 8, 8) grey values 0..16 -> (N, 1, 28, 28) uint8: pixels of 3x3 in a border of 2."""
    grey = np.rint(images * (255 / 16)).astype(np.uint8)
    large = grey.repeat(3, axis=1).repeat(3, axis=2)  # (N, 24, 24)
    return np.pad(large, ((0, 0), (2, 2), (2, 2)))[:, None]
