"""MNIST and Fashion-MNIST from IDX files, plain or gzipped; everything in a file is checked before
it is used.

The format: http://yann.lecun.com/exdb/mnist/ as archived; two zero bytes, a type byte (8: unsigned
byte), the number of dimensions, one big-endian 32-bit size per dimension, then the values.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from gluonlab.data.fetching.location import data_root, download_command, places
from gluonlab.data.fetching.sources import SOURCES
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
IMAGE_SHAPE = (28, 28)
UNSIGNED_BYTE = 8
CHUNK_BYTES = 2**18
DEFLATE_RATIO = 1032  # no byte of a gzip file inflates to more: 258 bytes for two bits (RFC 1951)
MOST_INFLATED = 2**30  # of any gzip file; the largest sets in this format have half of that
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def loader(
    name: str, classes: Tuple[str, ...], defaults: Defaults
) -> "Callable[[Optional[str]], Dataset]":
    """The function that reads the IDX data set ``name`` from a folder."""

    def load(root: Optional[str] = None) -> Dataset:
        paths = find_files(name, root)
        splits = {split: read_split(*paths[split], len(classes)) for split in FILES}
        return Dataset(name, splits["train"], splits["test"], classes, defaults)

    return load


def find_files(name: str, root: Optional[str]) -> Dict[str, Tuple[Path, Path]]:
    """For each split its images file and its labels file, plain or .gz, in ``root``/``name`` or
    ``root``.

    ``root`` None: the usual folder (`gluonlab.data.fetching.location.data_root`). Nothing is downloaded
    here: a run that is started without a network, or a hundred times at once, should not find that
    out on its way. Raises DataError with the names of the files that are missing, where they were
    looked for, and the command that fetches them.
    """
    fetch = download_command(name, root)
    if root is not None and not Path(root).is_dir():
        raise DataError(
            f"--data-dir {root} is no folder: give the one with {_wanted()} (plain or .gz), "
            f"or fetch them: {fetch}"
        )
    folders = places(data_root(root), SOURCES[name])
    found = {split: tuple(_find(file, folders) for file in pair) for split, pair in FILES.items()}
    missing = [
        file
        for split, pair in FILES.items()
        for file, path in zip(pair, found[split])
        if path is None
    ]
    if missing:
        looked = " and ".join(str(folder) for folder in folders)
        raise DataError(
            f"{name} lacks {', '.join(missing)} (plain or .gz) in {looked}: "
            f"fetch what is missing ({fetch}), or give another folder with --data-dir DIR"
        )
    return found  # type: ignore[return-value]  # no None is left


def _wanted() -> str:
    return ", ".join(file for pair in FILES.values() for file in pair)


def _find(file: str, folders: List[Path]) -> Optional[Path]:
    candidates = (folder / (file + ending) for folder in folders for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def read_split(images_path: Path, labels_path: Path, classes: int) -> ArraySplit:
    """Images and labels of one split.

    Raises DataError that names the file and what is wrong with it.
    """
    images = read_idx(images_path, dimensions=3)
    if images.shape[1:] != IMAGE_SHAPE:
        raise _wrong(
            images_path, f"images of {images.shape[1]}x{images.shape[2]} pixels, expected 28x28"
        )
    labels = read_idx(labels_path, dimensions=1)
    if len(labels) != len(images):
        raise _wrong(
            labels_path, f"{len(labels)} labels for the {len(images)} images of {images_path.name}"
        )
    if not len(labels):
        raise _wrong(images_path, "it holds no images")
    if labels.max() >= classes:
        raise _wrong(
            labels_path,
            f"label {labels.max()} at position {labels.argmax()}, expected 0 to {classes - 1}",
        )
    return ArraySplit(images[:, None], labels.astype(np.int32))


def read_idx(path: "str | os.PathLike[str]", dimensions: int) -> "NDArray[np.uint8]":
    """The array in an IDX file of unsigned bytes.

    Raises DataError that names the file and what is wrong with it.

    No more is read, or inflated, than the header promises, and no more is promised than a file of
    this size can inflate to.
    """
    with _opened(Path(path)) as (file, most_bytes):
        header = file.read(4 + 4 * dimensions)
        shape = _shape(path, header, dimensions)
        expected = len(header) + math.prod(shape)
        if expected > most_bytes:
            raise _wrong(
                path,
                f"its header {shape} promises {expected} bytes, "
                f"more than the {most_bytes} that it can inflate to",
            )
        values = _read(file, expected - len(header))
        if len(header) + len(values) < expected:
            raise _wrong(
                path,
                f"truncated, {len(header) + len(values)} bytes where its header {shape} promises "
                f"{expected}",
            )
        if file.read(1):
            raise _wrong(
                path, f"too long, more than the {expected} bytes that its header {shape} promises"
            )
    try:
        return np.frombuffer(values, np.uint8).reshape(shape)
    except ValueError:  # no values, in a shape that numpy cannot count
        raise _wrong(path, f"its header promises the impossible shape {shape}") from None


def _shape(path: "str | os.PathLike[str]", header: bytes, dimensions: int) -> Tuple[int, ...]:
    if len(header) < 4 or header[:2] != b"\0\0":
        raise _wrong(
            path,
            f"no IDX file (it begins with {header[:4].hex(' ') or 'nothing'}, "
            f"expected 00 00 08 {dimensions:02x})",
        )
    if header[2] != UNSIGNED_BYTE:
        raise _wrong(path, f"values of type {header[2]:#04x}, expected unsigned bytes (0x08)")
    if header[3] != dimensions:
        raise _wrong(path, f"{header[3]} dimensions, expected {dimensions}")
    if len(header) < 4 + 4 * dimensions:
        raise _wrong(path, f"truncated in its header, {len(header)} of {4 + 4 * dimensions} bytes")
    return struct.unpack(f">{dimensions}I", header[4:])


def _read(file: IO[bytes], size: int) -> bytearray:
    """``size`` bytes, or fewer where the file ends; memory is taken as they come, whatever was
    promised.
    """
    values = bytearray()
    while len(values) < size:
        chunk = file.read(min(CHUNK_BYTES, size - len(values)))
        if not chunk:
            break
        values += chunk
    return values


@contextmanager
def _opened(path: Path) -> Iterator[Tuple[IO[bytes], float]]:
    """The content of a plain or gzipped file, and the most bytes that may be asked of it: a plain
    one ends by itself.
    """
    try:
        with path.open("rb") as file:
            if path.suffix == ".gz":
                size = os.fstat(file.fileno()).st_size
                with gzip.GzipFile(fileobj=file) as content:
                    yield content, min(DEFLATE_RATIO * size, MOST_INFLATED)  # type: ignore[misc]  # it reads like any other
            else:
                yield file, math.inf
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _wrong(path, f"damaged gzip file ({error})") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}): "
            "make it readable, or give another --data-dir"
        ) from None


def _wrong(path: "str | os.PathLike[str]", what: str) -> DataError:
    return DataError(f"{path}: {what}: fetch it again, or give another --data-dir")
