"""Data sets of image files: a folder for each class, below train/ and below val/ (or test/).

Every image is resized and cropped to the same square (`gluonlab.data.images.decode`). A split whose
pixels fit the memory meant for it is decoded once, before training; a larger one batch by batch,
ahead of the devices, by processes of their own; and one that was packed (`gluonlab.data.sets.pack`)
is read as it lies on the disk. README.md, "Images from files", has what was measured.
"""

from __future__ import annotations

import os
import re
import statistics
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluonlab.data.images.decode import CHANNELS, short_side
from gluonlab.data.images.pool import Decoders, Decoding
from gluonlab.data.sets.colours import COLOURS
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, Split
from gluonlab.data.sets.pack import is_packed, read
from gluonlab.engine.neighbours import own_cores
from gluonlab.errors import DataError, GluonlabWarning

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Indices, Labels

SUFFIXES = (".jpg", ".jpeg", ".png")
LARGEST_SIDE = 224  # what networks for photographs are made for; smaller images stay as they are
SAMPLED = 25  # files whose headers tell how large the images are
AT_ONCE = 1024  # images between two looks at what was found, when all are tried
MOST_DECODERS = 16
NAMED = 3  # bad files that are named in a line; the others are counted
DEFAULTS = Defaults(model="resnet18", batch_size=64, epochs=10, optimizer="adam", lr=0.001)
LAYOUT = "folders train and val (or test), each with a folder of JPEG or PNG images for every class"
PHOTOGRAPHS = COLOURS["imagenet"]  # what networks for photographs are trained with


class FileSplit:
    """A split whose images are decoded when a batch of them is asked for."""

    def __init__(self, paths: Sequence[str], labels: "Labels", decoders: Decoders) -> None:
        self.paths, self.labels, self.decoders = list(paths), labels, decoders

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """(channels, height, width)"""
        return CHANNELS, self.decoders.size, self.decoders.size

    def batch(self, indices: "Indices") -> "Tuple[Images, Labels]":
        """The images (n, C, H, W) uint8 and labels (n,) int32 at these n indices.

        Raises DataError for a file that is wrong.
        """
        return self.begin(indices).result()

    def begin(self, indices: "Indices", seeds: Optional[Sequence[int]] = None) -> "_Files":
        """Have these n images decoded.

        ``seeds``: of each what `gluonlab.data.images.crop.random_box` cuts out for its own.
        """
        return _Files(
            self.decoders.begin([self.paths[index] for index in indices], seeds),
            self.labels[indices],
        )


class _Files(NamedTuple):
    """A batch that is being decoded."""

    images: Decoding
    labels: "Labels"

    def result(self) -> "Tuple[Images, Labels]":
        """Wait for it. Raises DataError for a file that is wrong."""
        return self.images.result(), self.labels

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.images.cancel()


class ImageFolder:
    """The classes and files below a folder.

    Raises DataError, naming the place, for everything that is not as it should be.

    ``classes``: the names of train's folders, sorted; ``train``, ``val``: (paths, labels).
    """

    def __init__(self, root: "str | os.PathLike[str]") -> None:
        self.root = Path(root)
        with _readable(self.root):
            if not self.root.exists():
                raise DataError(f"{self.root} does not exist: give a folder with {LAYOUT}")
            if not self.root.is_dir():
                raise DataError(f"{self.root} is a file: give a folder with {LAYOUT}")
            train, val = self._part("train"), self._part("val", "test")
        self.classes = _class_names(train)
        if len(self.classes) < 2:
            count = "no class" if not self.classes else f"one class, {self.classes[0]}"
            raise DataError(
                f"{train} has folders for {count}: give at least two, "
                "each with the images of one class"
            )
        self._same_classes(train, val)
        self.train, self.val = self._files(train), self._files(val)

    def _part(self, *names: str) -> Path:
        found = next((self.root / name for name in names if (self.root / name).is_dir()), None)
        if found is None:
            raise DataError(
                f"{self.root} has no folder {' or '.join(names)}: give one with {LAYOUT}"
            )
        return found

    def _same_classes(self, train: Path, val: Path) -> None:
        others = _class_names(val)
        for only, has, lacks in (
            (set(self.classes) - set(others), train, val),
            (set(others) - set(self.classes), val, train),
        ):
            if only:
                raise DataError(
                    f"{has} has the class {min(only)} and {lacks} has not: "
                    "give both the same class folders"
                )

    def _files(self, part: Path) -> "Tuple[List[str], Labels]":
        paths: List[str] = []
        labels: List[int] = []
        for label, name in enumerate(self.classes):
            found = _images(part / name)
            paths += found
            labels += [label] * len(found)
        return paths, np.array(labels, np.int32)


def load(
    path: "str | os.PathLike[str]",
    image_size: Optional[int] = None,
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    memory: int = 0,
    random_resized_crop: bool = False,
    name: Optional[str] = None,
) -> Dataset:
    """The folder ``path`` as a data set, as it is or packed by `gluonlab.data.sets.pack`.

    ``image_size``: width and height of all images; by default that of the images themselves, at
    most 224. ``decoders``: processes that decode (by default one for each core, or for each of this
    process's part of them). ``skip_bad``: try every file now, leave bad ones out, and say so in one
    warning; otherwise the first bad one is an error when it is met. ``memory``: a split of at most
    so many bytes is decoded now, once and for all; the training split is not with
    ``random_resized_crop``, for which it is decoded in every epoch. Raises DataError.
    """
    if packed(Path(path)):
        if random_resized_crop:
            raise DataError(
                f"--random-resized-crop cuts image files, and {path} is packed: "
                "give the folder that it was made of"
            )
        for option, given in (("--decoders", decoders), ("--skip-bad", skip_bad)):
            if given:
                raise DataError(
                    f"{path} is packed, so nothing is left to decode: leave {option} out"
                )
        packed_name, train, test, classes = read(Path(path), image_size, memory)
        return Dataset(name or packed_name, train, test, classes, DEFAULTS, PHOTOGRAPHS)
    folder = ImageFolder(path)
    size = image_size or usual_size(folder.train[0])
    processes = Decoders(size, decoders or min(own_cores(), MOST_DECODERS))
    return Dataset(
        name=name or plain_name(folder.root),
        train=_split(
            "training",
            *folder.train,
            processes,
            folder.classes,
            skip_bad,
            0 if random_resized_crop else memory,
        ),
        test=_split("validation", *folder.val, processes, folder.classes, skip_bad, memory),
        classes=folder.classes,
        defaults=DEFAULTS,
        colours=PHOTOGRAPHS,
    )


def packed(path: Path) -> bool:
    """Whether `gluonlab.data.sets.pack` made this folder.

    Raises DataError for one that cannot be read.
    """
    with _readable(path):
        return is_packed(path)


def plain_name(folder: Path) -> str:
    """A folder's own name, fit to become a part of another's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name) or "folder"


def usual_size(paths: Sequence[str]) -> int:
    """The median of the images' short sides, at most LARGEST_SIDE; files that cannot be read are
    not counted here.
    """
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
    paths: List[str],
    labels: "Labels",
    decoders: Decoders,
    classes: Sequence[str],
    skip_bad: bool,
    memory: int,
) -> Split:
    fits = len(paths) * CHANNELS * decoders.size**2 + labels.nbytes <= memory
    if not fits and not skip_bad:
        return FileSplit(paths, labels, decoders)
    kept = []
    bad = {}
    for number, (images, wrong) in enumerate(decoders.in_turns(paths, AT_ONCE)):
        bad.update({number * AT_ONCE + position: reason for position, reason in wrong.items()})
        if bad and not skip_bad:
            raise DataError(bad[min(bad)])
        good = [position for position in range(len(images)) if position not in wrong]
        kept.append(images[good] if fits else images[:0])
    good = [position for position in range(len(paths)) if position not in bad]
    _report(kind, [paths[position] for position in sorted(bad)], len(paths))
    _check_classes(kind, labels[good], classes)
    if fits:
        return ArraySplit(np.concatenate(kept), labels[good])
    return FileSplit([paths[position] for position in good], labels[good], decoders)


def _report(kind: str, bad: List[str], files: int) -> None:
    if bad:
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        warnings.warn(
            f"{len(bad)} of {files} {kind} images cannot be decoded and are left out: "
            f"{', '.join(bad[:NAMED])}{more}",
            GluonlabWarning,
            stacklevel=5,
        )


def _check_classes(kind: str, labels: "Labels", classes: Sequence[str]) -> None:
    empty = np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0)
    if len(empty):
        raise DataError(
            f"no {kind} image of the class {classes[empty[0]]} can be decoded: "
            "give each class good images"
        )


def _class_names(part: Path) -> Tuple[str, ...]:
    with _readable(part):
        return tuple(
            sorted(
                entry.name
                for entry in os.scandir(part)
                if entry.is_dir() and not entry.name.startswith(".")
            )
        )


def _images(folder: Path) -> List[str]:
    """The image files of a class, sorted by name; hidden files are nobody's images."""
    with _readable(folder):
        entries = sorted(
            (entry for entry in os.scandir(folder) if not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )
    for entry in entries:
        if entry.is_dir():
            raise DataError(
                f"{entry.path} is a folder: put the images straight into the folder of their class"
            )
        if not entry.name.lower().endswith(SUFFIXES):
            raise DataError(
                f"{entry.path} is no image: keep files ending in {', '.join(SUFFIXES)} only in "
                "the folder of a class"
            )
        if not entry.is_file():  # a pipe would be waited for
            raise DataError(
                f"{entry.path} is no regular file, or a link to nowhere: replace or remove it"
            )
    if not entries:
        raise DataError(
            f"{folder} holds no images: give each class JPEG or PNG files, or remove its folder"
        )
    return [entry.path for entry in entries]


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """A folder that cannot be listed becomes a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read ({error.strerror}): make it readable, or give another folder"
        ) from None
