"""CIFAR-10's binary version, which needs no pickle: 60,000 images of 32x32 in 10 classes.

The format: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version": records of 3,073 bytes,
the label and then 32x32 red, green and blue values, row by row. A file says nothing of how many
records it holds, so that is checked, too. Source: A. Krizhevsky, Learning Multiple Layers of
Features from Tiny Images, 2009.
"""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Sequence

import numpy as np

from gluonlab.data.fetching.location import damaged, locate, readable
from gluonlab.data.fetching.sources import SOURCES
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults

RECORDS = 10_000  # in each file
IMAGE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DEFAULTS = Defaults(
    model="lenet",
    published_model="cifar_resnet20",
    batch_size=64,
    epochs=10,
    optimizer="adam",
    lr=0.001,
)


def load(root: Optional[str] = None, records: int = RECORDS) -> Dataset:
    """50,000 training and 10,000 test images (3, 32, 32), from ``root``/cifar10 or ``root``.

    ``root`` None: the usual folder (`gluonlab.data.fetching.location.data_root`). ``records``:
    images in each file. Raises DataError for files that are missing, with the command that fetches
    them, and for damaged ones.
    """
    source = SOURCES["cifar10"]
    *train, test = locate(source, [batch.name for batch in source.known], root).values()
    training, tests = read_split(train, records), read_split([test], records)
    return Dataset("cifar10", training, tests, CLASSES, DEFAULTS)


def read_split(paths: Sequence[Path], records: int = RECORDS) -> ArraySplit:
    """The images of some files, ``records`` in each.

    Raises DataError that names the file and what is wrong with it.
    """
    images = np.empty((len(paths), records, *IMAGE_SHAPE), np.uint8)
    labels = np.empty((len(paths), records), np.int32)
    for part, path in enumerate(paths):
        content = read_records(path, records)
        labels[part], images[part] = content[:, 0], content[:, 1:].reshape(records, *IMAGE_SHAPE)
    return ArraySplit(images.reshape(-1, *IMAGE_SHAPE), labels.reshape(-1))


def read_records(
    path: Path, records: int = RECORDS
) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    """The records of one file, (records, 3073) bytes.

    Raises DataError that names the file and what is wrong with it.
    """
    expected, last = records * RECORD_BYTES, len(CLASSES) - 1
    with readable(path), path.open("rb") as file:
        content = file.read(expected + 1)  # one more shows that it is too long
    if len(content) != expected:
        long = len(content) > expected
        count = f"too long, more than {expected:,}" if long else f"truncated, {len(content):,}"
        raise damaged(path, f"{count} bytes where {records:,} images take {expected:,}")
    values = np.frombuffer(content, np.uint8).reshape(records, RECORD_BYTES)
    wrong = np.flatnonzero(values[:, 0] > last)
    if len(wrong):
        label = values[wrong[0], 0]
        raise damaged(path, f"label {label} at position {wrong[0]}, expected 0 to {last}")
    return values
