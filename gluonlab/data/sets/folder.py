"""Data sets of image files: a folder for each class, below train/ and below val/ (or test/).

docs/own-images.md says how folders may look; `gluonlab.data.sets.layout` reads them.

Every image is resized and cropped to the same square (`gluonlab.data.images.decode`). A split whose
pixels fit the memory meant for it is decoded once, before training; a larger one batch by batch,
ahead of the devices, by processes of their own; and one that was packed (`gluonlab.data.sets.pack`)
is read as it lies on the disk. docs/own-images.md has what was measured.
"""

from __future__ import annotations

import os
import statistics
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np

from gluonlab.data.fetching.location import readable
from gluonlab.data.images.decode import CHANNELS, short_side
from gluonlab.data.images.places import Place, chosen, name_of
from gluonlab.data.images.pool import Decoders, Decoding
from gluonlab.data.sets.colours import COLOURS
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, LabelledSplit, Split
from gluonlab.data.sets.layout import ImageFolder
from gluonlab.data.sets.pack import is_packed, read
from gluonlab.engine.neighbours import own_cores
from gluonlab.errors import DataError, warn
from gluonlab.plain import plain_name

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Indices, Labels, Targets

LARGEST_SIDE = 224  # what networks for photographs are made for; smaller images stay as they are
SAMPLED = 25  # files whose headers tell how large the images are
AT_ONCE = 1024  # images between two looks at what was found, when all are tried
MOST_DECODERS = 16
NAMED = 3  # bad files that are named in a line; the others are counted
DEFAULTS = Defaults(model="resnet18", batch_size=64, epochs=10, optimizer="adam", lr=0.001)
PHOTOGRAPHS = COLOURS["imagenet"]  # what networks for photographs are trained with


class FileSplit(LabelledSplit):
    """A split whose images are decoded when a batch of them is asked for."""

    def __init__(self, paths: Sequence[Place], labels: "Labels", decoders: Decoders) -> None:
        super().__init__(labels)
        self.paths, self.decoders = paths, decoders

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """(channels, height, width)"""
        return CHANNELS, self.decoders.size, self.decoders.size

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """The images (n, C, H, W) uint8 and labels (n,) int32 at these n indices.

        If images have weights: each label and its weight, (n, 2) float32. Raises DataError for an
        invalid file.
        """
        return self.begin(indices).result()

    def begin(self, indices: "Indices", seeds: Optional[Sequence[int]] = None) -> "_Files":
        """Have these n images decoded.

        ``seeds``: of each what `gluonlab.data.images.crop.random_box` cuts out for its own.
        """
        paths = [self.paths[index] for index in indices]
        return _Files(self.decoders.begin(paths, seeds), self.targets[indices])


class _Files(NamedTuple):
    """A batch that is being decoded."""

    images: Decoding
    targets: "Targets"

    def result(self) -> "Tuple[Images, Targets]":
        """Wait for it. Raises DataError for a file that is wrong."""
        return self.images.result(), self.targets

    def cancel(self) -> None:
        """Give the batch up."""
        self.images.cancel()


def load(
    path: "str | os.PathLike[str]",
    image_size: Optional[int] = None,
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    memory: int = 0,
    random_resized_crop: bool = False,
    name: Optional[str] = None,
    val_share: Optional[float] = None,
    resizer: Optional[str] = None,
) -> Dataset:
    """The folder ``path``, or what `gluonlab.data.sets.pack` made of one, as a data set.

    ``image_size``: width and height of all images; by default that of the images themselves, at
    most 224. ``decoders``: processes that decode (by default one for each core, or for each of this
    process's part of them). ``skip_bad``: try every file now, leave bad ones out, and say so in one
    warning; otherwise the first bad one is an error when it is met. ``memory``: a split of at most
    so many bytes is decoded now, once and for all; the training split is not with
    ``random_resized_crop``, for which it is decoded in every epoch. ``val_share``: of a folder
    without val, so much of each class is held out for it (`gluonlab.data.sets.holdout`).
    ``resizer``: the library that resizes, by default `gluonlab.data.images.resize.usual_resizer`.
    What is no image is left out with one warning. Raises DataError.
    """
    if packed(Path(path)):
        if random_resized_crop:
            raise DataError(
                f"--random-resized-crop cuts image files, and {path} is packed: "
                "give the folder that it was made of"
            )
        if decoders or skip_bad or resizer:
            option = "--decoders" if decoders else "--skip-bad" if skip_bad else "--resizer"
            raise DataError(f"{path} is packed, so nothing is left to decode: leave {option} out")
        if val_share is not None:
            raise DataError(
                f"--val-share {val_share:g} is for folders without val, and {path} is packed with "
                "its validation images: leave --val-share out"
            )
        packed_name, train, test, classes = read(Path(path), image_size, memory)
        return Dataset(name or packed_name, train, test, classes, DEFAULTS, PHOTOGRAPHS)
    folder = ImageFolder(path, val_share)
    name = name or plain_name(folder.root.resolve().name, "folder")
    options = (image_size, decoders, skip_bad, memory, random_resized_crop, resizer)
    return decoded(folder, name, *options)


class ImageFiles(Protocol):
    """Files of images, or parts of files, and their labels, as `ImageFolder` finds them."""

    @property
    def train(self) -> "Tuple[Sequence[Place], Labels]":
        """The training images."""

    @property
    def val(self) -> "Tuple[Sequence[Place], Labels]":
        """The images that accuracies are measured on."""

    @property
    def classes(self) -> Tuple[str, ...]:
        """The names of the classes, by their labels."""

    def remarks(self) -> List[str]:
        """Return a line for each kind of image that is left out."""


def decoded(
    images: ImageFiles,
    name: str,
    image_size: Optional[int],
    decoders: Optional[int],
    skip_bad: bool,
    memory: int,
    random_resized_crop: bool,
    resizer: Optional[str],
) -> Dataset:
    """Make the data set of these images, with the options of `load`."""
    for remark in images.remarks():
        warn(remark)
    size = image_size or usual_size(images.train[0])
    processes = Decoders(size, decoders or min(own_cores(), MOST_DECODERS), resizer)
    split = partial(_split, decoders=processes, classes=images.classes, skip_bad=skip_bad)
    train = split("training", *images.train, memory=0 if random_resized_crop else memory)
    test = split("test", *images.val, memory=memory)
    resizer = processes.resizer
    return Dataset(name, train, test, images.classes, DEFAULTS, PHOTOGRAPHS, resizer)


def packed(path: Path) -> bool:
    """Whether `gluonlab.data.sets.pack` made this folder.

    Raises DataError for one that cannot be read.
    """
    with readable(path, "folder"):
        return is_packed(path)


def usual_size(paths: Sequence[Place]) -> int:
    """The median of the readable images' short sides, at most LARGEST_SIDE."""
    sides = []
    with warnings.catch_warnings():
        # Pillow's; who decodes the image says what is wrong with it
        warnings.simplefilter("ignore")
        for path in paths[:: max(1, len(paths) // SAMPLED)]:
            with suppress(DataError):
                sides.append(short_side(path))
    return min(LARGEST_SIDE, int(statistics.median(sides))) if sides else LARGEST_SIDE


def _split(
    kind: str,
    paths: Sequence[Place],
    labels: "Labels",
    decoders: Decoders,
    classes: Sequence[str],
    skip_bad: bool,
    memory: int,
) -> Split:
    fits = len(paths) * CHANNELS * decoders.size**2 + labels.nbytes <= memory
    if not fits and not skip_bad:
        return FileSplit(paths, labels, decoders)
    kept, bad = [], {}
    for number, (images, wrong) in enumerate(decoders.in_turns(paths, AT_ONCE)):
        bad.update({number * AT_ONCE + position: reason for position, reason in wrong.items()})
        if bad and not skip_bad:
            raise DataError(bad[min(bad)])
        good = [position for position in range(len(images)) if position not in wrong]
        kept.append(images[good] if fits else images[:0])
    good = [position for position in range(len(paths)) if position not in bad]
    if bad:
        named = ", ".join(name_of(paths[position]) for position in sorted(bad)[:NAMED])
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        what = f"{len(bad)} of {len(paths)} {kind} images cannot be decoded and are left out"
        warn(f"{what}: {named}{more}")
    lost = np.setdiff1d(labels, labels[good])
    if len(lost):
        raise DataError(
            f"no {kind} image of the class {classes[lost[0]]} can be decoded: "
            "give each class good images"
        )
    if fits:
        return ArraySplit(np.concatenate(kept), labels[good])
    return FileSplit(chosen(paths, good), labels[good], decoders)
