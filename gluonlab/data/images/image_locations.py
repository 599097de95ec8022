"""Files of images: their formats, and places of images, a file or a part of one with many images.

The formats are those of Pillow's that data sets come in. Not those that run a program to be drawn
(EPS), nor those that only some builds of Pillow read, so that a folder is the same everywhere.
"""

from __future__ import annotations

import io
import os
import stat
from typing import Any, BinaryIO, List, NamedTuple, Optional, Sequence, Tuple, Union, overload

import numpy as np

FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
ENDINGS = ", ".join(suffixes[0] for suffixes in FORMATS.values())  # one for each, for messages
NAMES = "JPEG, PNG, WebP, BMP, GIF, TIFF or PPM"

Piece = Tuple[int, int]  # its start in the file, and its length in bytes


def is_image_name(name: str) -> bool:
    """Whether a file of this name is taken for an image.

    >>> is_image_name("IMG_0001.JPG"), is_image_name("Thumbs.db")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)


class Stretch(NamedTuple):
    """An image in a part of a file; ``name``: its name in messages."""

    path: str
    name: str
    pieces: Sequence[Piece]

    @property
    def size(self) -> int:
        """The size of the image in bytes."""
        return sum(length for _, length in self.pieces)


class Stretches(Sequence[Stretch]):
    """Many images in a file, stored compactly as arrays; ``pieces``: of each image, usually one.

    ``numbers``: the numbers of the images in messages, by default from 0.
    """

    def __init__(
        self, path: str, pieces: Sequence[Sequence[Piece]], numbers: Optional[Sequence[int]] = None
    ) -> None:
        self.path = path
        self._several = {at: list(each) for at, each in enumerate(pieces) if len(each) > 1}
        self._first = np.array([each[0] if each else (0, 0) for each in pieces], np.int64)
        self._numbers = np.arange(len(pieces)) if numbers is None else np.asarray(numbers)

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, place: int) -> Stretch: ...

    @overload
    def __getitem__(self, place: slice) -> List[Stretch]: ...

    def __getitem__(self, place: Union[int, slice]) -> Union[Stretch, List[Stretch]]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        begin, length = self._first[place].tolist()  # Python integers, for JSON
        name = part_name(self.path, int(self._numbers[place]))
        return Stretch(self.path, name, self._several.get(int(place)) or [(begin, length)])

    def chosen(self, places: Sequence[int]) -> Stretches:
        """Select the images at these places; they keep their numbers."""
        pieces = [self[place].pieces for place in places]
        return Stretches(self.path, pieces, [self._numbers[place] for place in places])


def part_name(path: str, number: int) -> str:
    """Return the name of a record in messages."""
    return f"{path}, record {number}"


def chosen(places: Sequence[Place], indices: Sequence[int]) -> Sequence[Place]:
    """Select the places at these indices."""
    if isinstance(places, Stretches):
        return places.chosen(indices)
    return [places[index] for index in indices]


# The path of a file, or a Stretch; a list of its fields once it has been through JSON.
Place = Union[str, Sequence[Any]]


def name_of(place: Place) -> str:
    """Return the name of an image in messages."""
    return place if isinstance(place, str) else str(Stretch(*place).name)


def opened(place: Place) -> BinaryIO:
    """Open an image as a binary file, at its start. Raises OSError."""
    if isinstance(place, str):
        return open(place, "rb")
    stretch, content = Stretch(*place), b""
    with open(stretch.path, "rb") as file:
        for begin, length in stretch.pieces:
            file.seek(begin)
            content += file.read(length)
    return io.BytesIO(content)


def size_of(file: BinaryIO) -> Optional[int]:
    """Return the size in bytes of a file from `opened`; None for a pipe, which is read once."""
    if isinstance(file, io.BytesIO):
        return file.getbuffer().nbytes
    about = os.fstat(file.fileno())
    return about.st_size if stat.S_ISREG(about.st_mode) else None
