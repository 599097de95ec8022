"""Random images with random labels, of any shape and number: for measuring, not for learning."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.data.sets.host_arrays import CHANNELS_FIRST

DEFAULTS = Defaults(lr=0.01, epochs=3)
NAME, SAMPLES, SHAPE = "synthetic", 8192, (1, 28, 28)


def load(
    samples: int = SAMPLES, shape: Tuple[int, int, int] = SHAPE, classes: int = 10, seed: int = 0
) -> Dataset:
    """``samples`` training images of ``shape`` (C, H, W) and a quarter as many test images."""
    random = np.random.RandomState(seed)

    def split(count: int) -> ArraySplit:
        images = random.randint(0, 256, (count, *shape), dtype=np.uint8)
        labels = random.randint(0, classes, count).astype(np.int32)
        return ArraySplit(images, labels, CHANNELS_FIRST)

    train, test = split(samples), split(max(1, samples // 4))
    return Dataset(NAME, train, test, tuple(map(str, range(classes))), DEFAULTS)
