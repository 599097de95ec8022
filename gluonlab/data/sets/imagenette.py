"""Imagenette, ten easy classes of ImageNet, as its archives unpack: folders of JPEGs.

Source: https://github.com/fastai/imagenette. Version 1 (imagenette) and version 2 (imagenette2) are
split differently; -320 and -160 are the length of the short side.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Callable, Optional

from gluonlab.data.fetching.location import data_root, download_command
from gluonlab.data.fetching.sources import SOURCES
from gluonlab.data.sets import folder
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.pack import is_packed
from gluonlab.errors import DataError

NAMES = tuple(
    f"{version}{size}" for version in ("imagenette", "imagenette2") for size in ("", "-320", "-160")
)
CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def summary(name: str) -> str:
    """One line about this one of NAMES.

    >>> summary("imagenette2-320")
    'JPEGs of ten classes of ImageNet, version 2, short side 320: in colour, 10 classes'
    """
    version, _, size = name.partition("-")
    number, side = version[-1:] if version[-1].isdigit() else 1, f"short side {size}"
    images = f"JPEGs of ten classes of ImageNet, version {number}, {side if size else 'full size'}"
    return f"{images}: in colour, 10 classes"


def loader(name: str) -> Callable[..., Dataset]:
    """The function that reads this one of NAMES, with the options of `folder.load`."""

    def load(
        root: Optional[str] = None,
        image_size: Optional[int] = None,
        decoders: Optional[int] = None,
        skip_bad: bool = False,
        memory: int = 0,
        random_resized_crop: bool = False,
        val_share: Optional[float] = None,
        resizer: Optional[str] = None,
    ) -> Dataset:
        place = find(name, root)
        options = (image_size, decoders, skip_bad, memory, random_resized_crop)
        return _named(folder.load(place, *options, name, val_share, resizer))

    return load


def find(name: str, root: Optional[str]) -> Path:
    """The folder with train and val: ``root``/``name``, its own folder of that name, or ``root``.

    ``root`` None is the usual folder, see `gluonlab.data.fetching.location`. Raises DataError that
    says what is missing.
    """
    if root is not None and not os.path.isdir(root):
        raise DataError(
            f"--data-dir {root} is not a folder: "
            f"give the one that holds {name}/train and {name}/val"
        )
    folder_of_all = data_root(root)
    folders = [folder_of_all / name, folder_of_all / name / name, folder_of_all]
    found = next(
        (place for place in folders if os.path.isdir(place / "train") or is_packed(place)), None
    )
    if found is None:
        fetch = download_command(name, root) if name in SOURCES else f"unpack {name}.tgz there"
        raise DataError(
            f"{name} lacks its folder train, in {folders[0]} and {folder_of_all}: "
            f"{fetch}, or give another --data-dir"
        )
    return found


def _named(dataset: Dataset) -> Dataset:
    """The same data set with classes that a person can read. Raises DataError if it has others."""
    if set(dataset.classes) == set(CLASSES.values()):  # it was packed under these names
        return dataset
    if dataset.classes != tuple(CLASSES):
        classes, wanted = ", ".join(dataset.classes), ", ".join(CLASSES)
        raise DataError(
            f"{dataset.name} has the classes {classes}, expected {wanted}: fetch it again"
        )
    return dataclasses.replace(dataset, classes=tuple(CLASSES.values()))
