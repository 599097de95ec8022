"""Fake data sets for networks of any input shape."""

import dataclasses

from gluonlab.data import load_dataset

CLASSES = tuple(f"class {label}" for label in range(10))


def make_dataset(shape, classes=CLASSES, samples=1, **changes):
    """Return a data set with images of a shape, some classes, and other changed fields."""
    return dataclasses.replace(
        load_dataset("synthetic", samples=samples, shape=shape), classes=tuple(classes), **changes
    )
