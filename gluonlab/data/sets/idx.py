"""MNIST and Fashion-MNIST from IDX files, plain or gzipped, which are checked before they are used.

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
from typing import IO, TYPE_CHECKING, Callable, Dict, Iterator, Optional, Tuple, cast

import numpy as np

from gluonlab.data.fetching.location import damaged, locate, readable
from gluonlab.data.fetching.sources import SOURCES
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
IMAGE_SHAPE = (28, 28)
MNIST = Defaults()
FASHION_MNIST = Defaults(model="lenet-avg", batch_size=256, epochs=10, lr=0.2)
UNSIGNED_BYTE = 8
CHUNK_BYTES = 2**18
DEFLATE_RATIO = 1032  # no byte of a gzip file inflates to more: 258 bytes for two bits (RFC 1951)
MOST_INFLATED = 2**30  # of any gzip file; the largest sets in this format have half of that
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip


def loader(
    name: str, classes: Tuple[str, ...], defaults: Defaults
) -> "Callable[[Optional[str]], Dataset]":
    """The function that reads the IDX data set ``name`` from a folder."""

    def load(root: Optional[str] = None) -> Dataset:
        paths = find_files(name, root)
        train, test = (read_split(*paths[split], len(classes)) for split in FILES)
        return Dataset(name, train, test, classes, defaults)

    return load


def find_files(name: str, root: Optional[str]) -> Dict[str, Tuple[Path, Path]]:
    """For each split its images file and its labels file, plain or .gz.

    They lie in ``root``/``name`` or ``root``; None: the usual folder. Raises what
    `gluonlab.data.fetching.location.locate` does.
    """
    names = [file for pair in FILES.values() for file in pair]
    paths = locate(SOURCES[name], names, root, endings=("", ".gz"))
    return {split: (paths[images], paths[labels]) for split, (images, labels) in FILES.items()}


def read_split(images_path: Path, labels_path: Path, classes: int) -> ArraySplit:
    """Images and labels of one split.

    Raises DataError that names the file and what is wrong with it.
    """
    images = read_idx(images_path, dimensions=3)
    if images.shape[1:] != IMAGE_SHAPE:
        size = f"{images.shape[1]}x{images.shape[2]}"
        raise damaged(images_path, f"images of {size} pixels, expected 28x28")
    labels = read_idx(labels_path, dimensions=1)
    if len(labels) != len(images):
        what = f"{len(labels)} labels for the {len(images)} images of {images_path.name}"
        raise damaged(labels_path, what)
    if not len(labels):
        raise damaged(images_path, "it holds no images")
    if labels.max() >= classes:
        what = f"label {labels.max()} at position {labels.argmax()}, expected 0 to {classes - 1}"
        raise damaged(labels_path, what)
    return ArraySplit(images[:, None], labels.astype(np.int32))


def read_idx(path: "str | os.PathLike[str]", dimensions: int) -> "NDArray[np.uint8]":
    """The array in an IDX file of unsigned bytes.

    Raises DataError that names the file and what is wrong with it. No more is read, or inflated,
    than the header promises, and no more is promised than a file of this size can inflate to.
    """
    path = Path(path)
    with _opened(path) as (file, most_bytes):
        header = file.read(4 + 4 * dimensions)
        wrong = _wrong_header(header, dimensions)
        if wrong:
            raise damaged(path, wrong)
        shape = struct.unpack(f">{dimensions}I", header[4:])
        expected, promise = len(header) + math.prod(shape), f"its header {shape} promises"
        if expected > most_bytes:
            more = f"more than the {most_bytes} that it can inflate to"
            raise damaged(path, f"{promise} {expected} bytes, {more}")
        values = _read(file, expected - len(header))
        count = len(header) + len(values)
        if count < expected:
            raise damaged(path, f"truncated, {count} bytes where {promise} {expected}")
        if file.read(1):
            raise damaged(path, f"too long, more than the {expected} bytes that {promise}")
    try:
        return np.frombuffer(values, np.uint8).reshape(shape)
    except ValueError:  # no values, in a shape that numpy cannot count
        raise damaged(path, f"its header promises the impossible shape {shape}") from None


def _wrong_header(header: bytes, dimensions: int) -> str:
    """What is wrong with a header; empty if nothing is."""
    if len(header) < 4 or header[:2] != b"\0\0":
        begin = header[:4].hex(" ") or "nothing"
        return f"not an IDX file (it begins with {begin}, expected 00 00 08 {dimensions:02x})"
    if header[2] != UNSIGNED_BYTE:
        return f"values of type {header[2]:#04x}, expected unsigned bytes (0x08)"
    if header[3] != dimensions:
        return f"{header[3]} dimensions, expected {dimensions}"
    if len(header) < 4 + 4 * dimensions:
        return f"truncated in its header, {len(header)} of {4 + 4 * dimensions} bytes"
    return ""


def _read(file: IO[bytes], size: int) -> bytearray:
    """``size`` bytes, or fewer where the file ends; memory grows as they arrive."""
    values = bytearray()
    while len(values) < size:
        chunk = file.read(min(CHUNK_BYTES, size - len(values)))
        if not chunk:
            break
        values += chunk
    return values


@contextmanager
def _opened(path: Path) -> Iterator[Tuple[IO[bytes], float]]:
    """The content of a plain or gzipped file, and the most bytes that may be read of it."""
    with readable(path), path.open("rb") as file:
        if path.suffix != ".gz":
            yield file, math.inf  # it ends by itself
            return
        size = os.fstat(file.fileno()).st_size
        try:
            with gzip.GzipFile(fileobj=file) as content:
                yield cast(IO[bytes], content), min(DEFLATE_RATIO * size, MOST_INFLATED)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise damaged(path, f"damaged gzip file ({error})") from None
