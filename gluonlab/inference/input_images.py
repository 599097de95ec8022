"""Finds the image files to classify, and makes a data set split that a loader can read.

The images come from files, folders or standard input. This module does not import MXNet, so that
errors in the input are reported before MXNet is loaded.
"""

from __future__ import annotations

import atexit
import os
import stat
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluonlab.data.fetching.data_folders import convert_read_errors
from gluonlab.data.images.decoder_pool import REQUEST_IMAGES, DecoderPool
from gluonlab.data.images.image_locations import ENDINGS, is_image_name
from gluonlab.data.sets.dataset import Reading
from gluonlab.data.sets.image_file_dataset import CHUNK_IMAGES, MAX_DECODERS, FileSplit
from gluonlab.data.sets.image_folder import is_hidden
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Indices, Labels

STDIN, STDIN_NAME = "-", "standard input"
MAX_STDIN_BYTES = 2**28  # about ten times the size of a large photograph
INPUT_HINT = "use image files, folders with image files, or - for standard input"
# Pillow's weights of red, green and blue (ITU-R 601-2), in 1 / 2**16
GRAY_WEIGHTS = (19595, 38470, 7471)


class Picture(NamedTuple):
    """An image file: the name that the user passed, and the path from which the file is read."""

    name: str
    path: str


def find_pictures(names: Sequence[str]) -> List[Picture]:
    """Return the image files in ``names``: files, folders, or - for standard input.

    Folders are searched with their subfolders, in sorted order. Only files with an image suffix are
    included. Hidden files and links to folders are skipped. Raises DataError for a missing file, a
    file that is not regular, and a folder without images.
    """
    pictures: List[Picture] = []
    for name in names:
        if not name:
            raise DataError(
                f"the path of an image is an empty string, perhaps because a shell variable is unset: {INPUT_HINT}"
            )
        if name == STDIN:
            if any(picture.name == STDIN for picture in pictures):
                raise DataError("the path - is listed twice, but standard input contains only one image: list - once")
            pictures.append(Picture(STDIN, _save_standard_input()))
            continue
        with convert_read_errors(Path(name), "file or folder"):
            if os.path.isdir(name):
                pictures += _find_in_folder(name)
                continue
            _check_file(name)
        pictures.append(Picture(name, name))
    return pictures


def _check_file(name: str) -> None:
    """Raise DataError unless ``name`` is the path of a regular file."""
    try:
        kind = Path(name).stat().st_mode
    except FileNotFoundError:
        raise DataError(f"{name} does not exist: {INPUT_HINT}") from None
    except ValueError:
        raise DataError(f"{name!r} is not a valid file name: {INPUT_HINT}") from None
    if not stat.S_ISREG(kind):  # reading a pipe would wait
        raise DataError(f"{name} is not a regular file: {INPUT_HINT}")


def _find_in_folder(folder: str) -> List[Picture]:
    """Return the image files in a folder and its subfolders. Raises DataError if it has none."""

    def raise_error(error: OSError) -> None:
        raise error

    paths = []
    for parent, folders, files in os.walk(folder, onerror=raise_error):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        pictures = sorted(name for name in files if is_image_name(name))
        paths += [os.path.join(parent, name) for name in pictures if not is_hidden(name)]
    if not paths:
        raise DataError(f"{folder} contains no images ({ENDINGS}): {INPUT_HINT}")
    for path in paths:
        _check_file(path)
    return [Picture(path, path) for path in paths]


def _save_standard_input() -> str:
    """Copy standard input to an anonymous file; return a path that is valid in this process."""
    if sys.stdin is None or sys.stdin.isatty():
        raise DataError(
            "the path - means standard input, but no file was redirected: add a file, as in ... - < picture.png"
        )
    content = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if not content:
        raise DataError(f"{STDIN_NAME} is empty: pass the content of an image file")
    if len(content) > MAX_STDIN_BYTES:
        raise DataError(f"{STDIN_NAME} contains more than {MAX_STDIN_BYTES:,} bytes: pass a single image")
    # An anonymous file: it needs no removal, and decoder processes can open it by this path.
    if not hasattr(os, "memfd_create"):  # not Linux
        with tempfile.NamedTemporaryFile(prefix="gluonlab-picture-", delete=False) as named:
            named.write(content)
        atexit.register(os.unlink, named.name)
        return named.name
    file = os.memfd_create("gluonlab-picture")
    with open(file, "wb", closefd=False) as target:
        target.write(content)
    return f"/proc/{os.getpid()}/fd/{file}"


@contextmanager
def name_pictures_in_errors(pictures: Sequence[Picture]) -> Iterator[None]:
    """In a with block, make DataErrors name standard input, not the path of its copy."""
    try:
        yield
    except DataError as error:
        raise DataError(_replace_paths(str(error), pictures)) from None


def _replace_paths(message: str, pictures: Sequence[Picture]) -> str:
    """Replace the path of standard input's copy in ``message`` with STDIN_NAME."""
    for picture in pictures:
        if picture.name == STDIN:
            message = message.replace(picture.path, STDIN_NAME)
    return message


class GraySplit:
    """Data set split of image files. Images are converted to one gray channel, as in Pillow."""

    def __init__(self, split: FileSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """Shape of an image: (1, height, width)."""
        return (1, *self.split.image_shape[1:])

    def batch(self, indices: "Indices") -> "Tuple[Images, Labels]":
        """Return the decoded uint8 images (n, 1, H, W) and int32 labels (n,) at these n indices."""
        return self.start_reading(indices).result()

    def start_reading(self, indices: "Indices", seeds: Optional[Sequence[int]] = None) -> Reading:
        """Start decoding the n images at these indices. ``seeds``: see `FileSplit`."""
        return _PendingGrayBatch(self.split.start_reading(indices, seeds))


class _PendingGrayBatch(NamedTuple):
    reading: Reading

    def result(self) -> "Tuple[Images, Labels]":
        images, labels = self.reading.result()
        return to_gray(images), labels

    def cancel(self) -> None:
        self.reading.cancel()


def to_gray(images: "Images") -> "Images":
    """Convert RGB images (n, 3, H, W) to gray (n, 1, H, W), like Pillow's convert("L")."""
    red, green, blue = (images[:, channel].astype(np.uint32) for channel in range(3))
    gray = red * GRAY_WEIGHTS[0] + green * GRAY_WEIGHTS[1] + blue * GRAY_WEIGHTS[2] + 0x8000
    return np.asarray((gray >> 16).astype(np.uint8)[:, None])


def make_picture_split(
    pictures: Sequence[Picture],
    shape: Tuple[int, int, int],
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    resizer: Optional[str] = None,
) -> "Tuple[FileSplit | GraySplit, List[Picture], List[str]]":
    """Make a data set split of image files, which are decoded to ``shape``.

    Args:
        pictures: The image files.
        shape: Shape of the network's images, (channels, height, width): one or three channels, and
            equal height and width.
        decoders: Number of decoder processes.
        skip_bad: Whether to decode all files first, and leave out those that cannot be decoded.
        resizer: The library that resizes the images (see `DecoderPool`).

    Returns:
        The split, its image files, and an error message for each file that was left out.

    Raises:
        DataError: Image files cannot be decoded to this shape, or all of them are left out.
    """
    channels, height, width = shape
    if channels not in (1, 3) or height != width:
        raise DataError(
            f"the run's images have the shape {'x'.join(map(str, shape))}, which image files cannot "
            "have: pass arrays of this shape to load_run(RUN).predict in Python"
        )
    count = min(decoders or min(cores_per_process(), MAX_DECODERS), -(-len(pictures) // REQUEST_IMAGES))
    pool, errors = DecoderPool(width, count, resizer), {}
    if skip_bad:
        paths = [picture.path for picture in pictures]
        for chunk, (_, chunk_errors) in enumerate(pool.decode_in_chunks(paths, CHUNK_IMAGES)):
            errors.update({chunk * CHUNK_IMAGES + position: reason for position, reason in chunk_errors.items()})
    readable = [picture for position, picture in enumerate(pictures) if position not in errors]
    reasons = [_replace_paths(reason, pictures) for _, reason in sorted(errors.items())]
    if not readable:
        raise DataError(f"no image could be decoded: {reasons[0]}")
    labels = np.zeros(len(readable), np.int32)
    split = FileSplit([picture.path for picture in readable], labels, pool)
    return (split if channels == 3 else GraySplit(split)), readable, reasons
