"""Defines image file formats, and image locations: a file, or a segment of a larger file.

All these formats are common in data sets and supported by every build of Pillow, so a folder is
read in the same way on every machine. EPS is excluded, because rendering an EPS file runs a
program.
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
ENDINGS = ", ".join(suffixes[0] for suffixes in FORMATS.values())  # for messages
FORMAT_NAMES = "JPEG, PNG, WebP, BMP, GIF, TIFF or PPM"

ByteRange = Tuple[int, int]  # offset in the file, and length in bytes


def is_image_name(name: str) -> bool:
    """Return whether a file name has the suffix of an image format.

    >>> is_image_name("IMG_0001.JPG"), is_image_name("Thumbs.db")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)


class FileSegment(NamedTuple):
    """An image stored in one or more byte ranges of a file.

    ``name``: the image's name in error messages.
    """

    path: str
    name: str
    ranges: Sequence[ByteRange]

    @property
    def size(self) -> int:
        """The size of the image in bytes."""
        return sum(length for _, length in self.ranges)


class FileSegments(Sequence[FileSegment]):
    """Many images in a file, stored compactly as arrays.

    ``ranges``: the byte ranges of each image, usually a single range. ``numbers``: the images'
    numbers in messages, by default 0, 1, 2, ...
    """

    def __init__(
        self, path: str, ranges: Sequence[Sequence[ByteRange]], numbers: Optional[Sequence[int]] = None
    ) -> None:
        self.path = path
        self._several = {
            position: list(image_ranges) for position, image_ranges in enumerate(ranges) if len(image_ranges) > 1
        }
        self._first = np.array([image_ranges[0] if image_ranges else (0, 0) for image_ranges in ranges], np.int64)
        self._numbers = np.arange(len(ranges)) if numbers is None else np.asarray(numbers)

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, index: int) -> FileSegment: ...

    @overload
    def __getitem__(self, index: slice) -> List[FileSegment]: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[FileSegment, List[FileSegment]]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        begin, length = self._first[index].tolist()  # Python integers, for JSON
        name = record_name(self.path, int(self._numbers[index]))
        return FileSegment(self.path, name, self._several.get(int(index)) or [(begin, length)])

    def select(self, positions: Sequence[int]) -> FileSegments:
        """Return the images at ``positions``, with unchanged numbers."""
        ranges = [self[position].ranges for position in positions]
        return FileSegments(self.path, ranges, [self._numbers[position] for position in positions])


def record_name(path: str, number: int) -> str:
    """Return the name of a record for error messages."""
    return f"{path}, record {number}"


def select_locations(locations: Sequence[ImageLocation], indices: Sequence[int]) -> Sequence[ImageLocation]:
    """Return the locations at ``indices``."""
    if isinstance(locations, FileSegments):
        return locations.select(indices)
    return [locations[index] for index in indices]


# The path of a file, or a FileSegment. JSON turns a FileSegment into a list of its fields.
ImageLocation = Union[str, Sequence[Any]]


def location_name(location: ImageLocation) -> str:
    """Return the name of an image for error messages."""
    return location if isinstance(location, str) else str(FileSegment(*location).name)


def open_image_file(location: ImageLocation) -> BinaryIO:
    """Open an image as a binary file, positioned at its start. Raise OSError on failure."""
    if isinstance(location, str):
        return open(location, "rb")
    segment, content = FileSegment(*location), b""
    with open(segment.path, "rb") as file:
        for begin, length in segment.ranges:
            file.seek(begin)
            content += file.read(length)
    return io.BytesIO(content)


def stream_size(file: BinaryIO) -> Optional[int]:
    """Return the size in bytes of an opened image; None for a pipe."""
    if isinstance(file, io.BytesIO):
        return file.getbuffer().nbytes
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None
