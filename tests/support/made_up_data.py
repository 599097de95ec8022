"""Data sets for networks of any shape."""

import dataclasses

from gluonlab.data import load_dataset

CLASSES = tuple(f"class {label}" for label in range(10))


def make_dataset(shape, classes=CLASSES, samples=1, **changes):
    """What an export describes: nothing but its images' shape, classes and colours."""
    return dataclasses.replace(
        load_dataset("synthetic", samples=samples, shape=shape), classes=tuple(classes), **changes
    )
