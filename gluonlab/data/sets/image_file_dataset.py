"""Makes splits from image files, which are decoded once before training, or batch by batch.

Every image is cropped and resized to the same square (`gluonlab.data.images.decode_image`). A split
is decoded once if its pixels fit in memory. Larger splits are decoded batch by batch, in processes
that work ahead of the devices. For measurements, see docs/data.md.
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

from gluonlab.data.images.decode_image import CHANNELS, read_short_side
from gluonlab.data.images.decoder_pool import DecoderPool, PendingImages
from gluonlab.data.images.image_locations import ImageLocation, location_name, select_locations
from gluonlab.data.sets.dataset import NORMALIZATIONS, ArraySplit, Dataset, Defaults, LabeledSplit, Split
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.errors import DataError, warn
from gluonlab.plain_text import shorten_names

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Indices, Labels, Targets

# names of the training and validation parts, as folders and as files
TRAIN = ("train", "training")
VAL = ("val", "valid", "validation", "test", "testing")
HOLD_OUT_OPTION = "--val-split 0.2"
MAX_SIDE = 224  # the usual size of photographs; smaller images are not enlarged
SAMPLED_FILES = 25  # files whose size determines the default size
CHUNK_IMAGES = 1024  # images per step, if all are decoded first
MAX_DECODERS = 16
DEFAULTS = Defaults(model="resnet18", batch_size=64, epochs=10, optimizer="adam", lr=0.001)
PHOTO_NORMALIZATION = NORMALIZATIONS["imagenet"]  # as usual for networks for photographs


class ImageFiles(Protocol):
    """Interface of labeled image files, found in a folder or a list."""

    @property
    def train(self) -> "Tuple[Sequence[ImageLocation], Labels]":
        """Locations and labels of the training images."""

    @property
    def val(self) -> "Tuple[Sequence[ImageLocation], Labels]":
        """Locations and labels of the validation images."""

    @property
    def classes(self) -> Tuple[str, ...]:
        """Names of the classes, by label."""

    def warnings(self) -> List[str]:
        """Return a warning for each reason why images are left out."""


def make_image_dataset(
    images: ImageFiles,
    name: str,
    image_size: Optional[int] = None,
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    memory: int = 0,
    random_resized_crop: bool = False,
    resizer: Optional[str] = None,
) -> Dataset:
    """Make a data set from image files. Raise DataError if a file is invalid.

    Args:
        images: The files, labels and classes.
        name: Name of the data set.
        image_size: Width and height of all images; by default, `median_short_side`.
        decoders: Number of decoder processes; by default, one per core available to this process.
        skip_bad: Whether to decode every file now, leave out bad files, and warn once. If false, a
            bad file raises an error when it is read.
        memory: Maximum size, in bytes of pixels, of a split that is decoded now.
        random_resized_crop: Whether training images are decoded again in every epoch, with random
            crops.
        resizer: The library that resizes images; by default,
            `gluonlab.data.images.resize_image.default_resizer`.
    """
    for message in images.warnings():
        warn(message)
    size = image_size or median_short_side(images.train[0])
    pool = DecoderPool(size, decoders or min(cores_per_process(), MAX_DECODERS), resizer)
    make_split = partial(_make_split, decoders=pool, classes=images.classes, skip_bad=skip_bad)
    train = make_split("training", *images.train, memory=0 if random_resized_crop else memory)
    test = make_split("validation", *images.val, memory=memory)
    resizer = pool.resizer
    return Dataset(name, train, test, images.classes, DEFAULTS, PHOTO_NORMALIZATION, resizer)


def median_short_side(paths: Sequence[ImageLocation]) -> int:
    """Return the median of the images' short sides, in pixels, at most MAX_SIDE.

    Only a sample of about SAMPLED_FILES files is read, and unreadable files are left out.
    """
    sides = []
    with warnings.catch_warnings():
        # Pillow's warnings are hidden, because damage is reported when the image is decoded.
        warnings.simplefilter("ignore")
        for path in paths[:: max(1, len(paths) // SAMPLED_FILES)]:
            with suppress(DataError):
                sides.append(read_short_side(path))
    return min(MAX_SIDE, int(statistics.median(sides))) if sides else MAX_SIDE


def _make_split(
    kind: str,
    paths: Sequence[ImageLocation],
    labels: "Labels",
    decoders: DecoderPool,
    classes: Sequence[str],
    skip_bad: bool,
    memory: int,
) -> Split:
    """Make a split that is decoded now if it fits in ``memory`` bytes, else batch by batch.

    ``kind``: "training" or "validation", for error messages.
    """
    fits_in_memory = len(paths) * CHANNELS * decoders.size**2 + labels.nbytes <= memory
    if not fits_in_memory and not skip_bad:
        return FileSplit(paths, labels, decoders)
    chunks, bad_images = [], {}
    for chunk_number, (images, errors) in enumerate(decoders.decode_in_chunks(paths, CHUNK_IMAGES)):
        bad_images.update({chunk_number * CHUNK_IMAGES + position: reason for position, reason in errors.items()})
        if bad_images and not skip_bad:
            raise DataError(bad_images[min(bad_images)])
        readable = [position for position in range(len(images)) if position not in errors]
        chunks.append(images[readable] if fits_in_memory else images[:0])
    readable = [position for position in range(len(paths)) if position not in bad_images]
    if bad_images:
        files = [location_name(paths[position]) for position in sorted(bad_images)]
        message = f"{len(bad_images)} of {len(paths)} {kind} images cannot be decoded and are skipped"
        warn(f"{message}: {shorten_names(files)}")
    lost_classes = np.setdiff1d(labels, labels[readable])
    if len(lost_classes):
        raise DataError(
            f"no {kind} image of the class {classes[lost_classes[0]]} can be decoded: add valid images to this class"
        )
    if fits_in_memory:
        return ArraySplit(np.concatenate(chunks), labels[readable])
    return FileSplit(select_locations(paths, readable), labels[readable], decoders)


class FileSplit(LabeledSplit):
    """A split whose images are decoded when a batch is read."""

    def __init__(self, paths: Sequence[ImageLocation], labels: "Labels", decoders: DecoderPool) -> None:
        super().__init__(labels)
        self.paths, self.decoders = paths, decoders

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """Shape of an image: (channels, height, width)."""
        return CHANNELS, self.decoders.size, self.decoders.size

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """Return the decoded uint8 images (n, C, H, W) and the labels at ``indices``.

        Labels are int32 with shape (n,) or, if the images have weights, float32 with shape (n, 2):
        each label and its weight. Raises DataError for an invalid file.
        """
        return self.start_reading(indices).result()

    def start_reading(self, indices: "Indices", seeds: Optional[Sequence[int]] = None) -> "_PendingBatch":
        """Start to decode the images at these indices, and return at once.

        ``seeds``: one per image, for `gluonlab.data.images.decode_image.random_crop_box`.
        """
        paths = [self.paths[index] for index in indices]
        return _PendingBatch(self.decoders.submit(paths, seeds), self.targets[indices])


class _PendingBatch(NamedTuple):
    """A batch that is being decoded."""

    images: PendingImages
    targets: "Targets"

    def result(self) -> "Tuple[Images, Targets]":
        """Wait for the batch. Raises DataError for a damaged file."""
        return self.images.result(), self.targets

    def cancel(self) -> None:
        """Stop decoding the batch."""
        self.images.cancel()


def select_held_out(names: Sequence[str], share: float) -> List[bool]:
    """Return, for each image in a class, whether it is held out for validation.

    If a class has at least two images, at least one is held out, and at least one is not. The
    choice depends only on the names, so it is the same for every seed, for any number of devices
    and processes, and after resuming. If images are added, the choice for the other images hardly
    changes.

    ``names``: a text CLASS/FILE for each image. ``share``: the fraction to hold out, between 0 and
    1.

    >>> select_held_out(["ant/1.jpg", "ant/2.jpg", "ant/3.jpg", "ant/4.jpg"], 0.25)
    [False, False, True, False]
    >>> select_held_out(["ant/1.jpg"], 0.25)
    [False]
    """
    count = 0
    if len(names) > 1:
        count = min(len(names) - 1, max(1, math.floor(share * len(names) + 0.5)))
    held_out = set(sorted(range(len(names)), key=lambda position: _hash_name(names[position]))[:count])
    return [position in held_out for position in range(len(names))]


def _hash_name(name: str) -> bytes:
    # file systems differ in the Unicode form of letters with accents
    return hashlib.sha256(os.fsencode(unicodedata.normalize("NFC", name))).digest()
