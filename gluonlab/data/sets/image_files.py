"""Splits of image files: they are decoded once, before training, or batch by batch.

Every image is resized and cropped to the same square (`gluonlab.data.images.decode_image`). A split
whose pixels fit the memory meant for it is decoded once; a larger one batch by batch, ahead of the
devices, by processes of their own. docs/own-images.md has what was measured.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import unicodedata
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np

from gluonlab.data.images.decode_image import CHANNELS, short_side
from gluonlab.data.images.decoder_pool import Decoders, Decoding
from gluonlab.data.images.image_locations import Place, chosen, name_of
from gluonlab.data.sets.dataset import (
    COLOURS,
    ArraySplit,
    Dataset,
    Defaults,
    LabelledSplit,
    Split,
)
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.errors import DataError, warn
from gluonlab.plain_text import shorten_names

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Indices, Labels, Targets

# the names of the parts of a data set of image files, of folders and of lists
TRAIN = ("train", "training")
VAL = ("val", "valid", "validation", "test", "testing")
HOLD_OUT = "--val-share 0.2"
LARGEST_SIDE = 224  # what networks for photographs are made for; smaller images stay as they are
SAMPLED = 25  # files whose headers tell how large the images are
AT_ONCE = 1024  # images between two looks at what was found, when all are tried
MOST_DECODERS = 16
DEFAULTS = Defaults(model="resnet18", batch_size=64, epochs=10, optimizer="adam", lr=0.001)
PHOTOGRAPHS = COLOURS["imagenet"]  # what networks for photographs are trained with


class ImageFiles(Protocol):
    """Files of images, or parts of files, and their labels: those of a folder or of a list."""

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
    image_size: Optional[int] = None,
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    memory: int = 0,
    random_resized_crop: bool = False,
    resizer: Optional[str] = None,
) -> Dataset:
    """Make the data set of these images, with the options of a run.

    ``image_size``: width and height of all images; by default that of the images themselves, at
    most 224. ``decoders``: processes that decode (by default one for each core, or for each of this
    process's part of them). ``skip_bad``: try every file now, leave bad ones out, and say so in one
    warning; otherwise the first bad one is an error when it is met. ``memory``: a split of at most
    so many bytes is decoded now, once and for all; the training split is not with
    ``random_resized_crop``, for which it is decoded in every epoch. ``resizer``: the library that
    resizes, by default `gluonlab.data.images.resize_image.usual_resizer`. Raises DataError.
    """
    for remark in images.remarks():
        warn(remark)
    size = image_size or usual_size(images.train[0])
    processes = Decoders(size, decoders or min(cores_per_process(), MOST_DECODERS), resizer)
    split = partial(_split, decoders=processes, classes=images.classes, skip_bad=skip_bad)
    train = split("training", *images.train, memory=0 if random_resized_crop else memory)
    test = split("test", *images.val, memory=memory)
    resizer = processes.resizer
    return Dataset(name, train, test, images.classes, DEFAULTS, PHOTOGRAPHS, resizer)


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
        files = [name_of(paths[position]) for position in sorted(bad)]
        what = f"{len(bad)} of {len(paths)} {kind} images cannot be decoded and are left out"
        warn(f"{what}: {shorten_names(files)}")
    lost = np.setdiff1d(labels, labels[good])
    if len(lost):
        raise DataError(
            f"no {kind} image of the class {classes[lost[0]]} can be decoded: "
            "give each class good images"
        )
    if fits:
        return ArraySplit(np.concatenate(kept), labels[good])
    return FileSplit(chosen(paths, good), labels[good], decoders)


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

        ``seeds``: of each what `gluonlab.data.images.decode_image.random_box` cuts out for its own.
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


def held_out(names: Sequence[str], share: float) -> List[bool]:
    """Whether each of a class's images is held out; of two or more, one at least is on each side.

    The names of the images alone decide. So the choice is the same for every seed, every number of
    devices and processes, in a run that goes on, in an evaluation, and in what is packed. Images
    that are added later move hardly any of the others from one side to the other.

    ``names``: CLASS/FILE. ``share``: between 0 and 1.

    >>> held_out(["ant/1.jpg", "ant/2.jpg", "ant/3.jpg", "ant/4.jpg"], 0.25)
    [False, False, False, True]
    >>> held_out(["ant/1.jpg"], 0.25)
    [False]
    """
    count = 0
    if len(names) > 1:
        count = min(len(names) - 1, max(1, math.floor(share * len(names) + 0.5)))
    chosen = set(sorted(range(len(names)), key=lambda place: _rank(names[place]))[:count])
    return [place in chosen for place in range(len(names))]


def _rank(name: str) -> bytes:
    # file systems differ in how they compose letters with accents
    return hashlib.sha256(os.fsencode(unicodedata.normalize("NFC", name))).digest()
