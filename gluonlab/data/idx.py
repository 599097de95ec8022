"""MNIST and Fashion-MNIST from IDX files, plain or gzipped; everything in a file is checked before it is used.

The format: http://yann.lecun.com/exdb/mnist/ as archived; two zero bytes, a type byte (8: unsigned byte), the number of
dimensions, one big-endian 32-bit size per dimension, then the values.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

import numpy as np

from gluonlab.data.dataset import ArraySplit, Dataset, Defaults
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
IMAGE_SHAPE = (28, 28)
UNSIGNED_BYTE = 8
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def loader(name: str, classes: Tuple[str, ...], defaults: Defaults) -> "Callable[[Optional[str]], Dataset]":
    """The function that reads the IDX data set ``name`` from a folder."""

    def load(root: Optional[str] = None) -> Dataset:
        paths = find_files(name, root)
        splits = {split: read_split(*paths[split], len(classes)) for split in FILES}
        return Dataset(name, splits["train"], splits["test"], classes, defaults)

    return load


def find_files(name: str, root: Optional[str]) -> Dict[str, Tuple[Path, Path]]:
    """For each split its images file and its labels file, in ``root`` or ``root``/``name``, plain or .gz.

    Raises DataError with the four names, and where they were looked for, when one is missing.
    """
    if root is None:
        raise DataError(f"{name} is read from files: give --data-dir DIR, a folder with {_wanted()} (plain or .gz)")
    if not Path(root).is_dir():
        raise DataError(f"--data-dir {root} is no folder: give the one with {_wanted()} (plain or .gz)")
    folders = [Path(root), Path(root) / name]
    found = {split: tuple(_find(file, folders) for file in pair) for split, pair in FILES.items()}
    missing = [file for split, pair in FILES.items() for file, path in zip(pair, found[split]) if path is None]
    if missing:
        looked = " and ".join(str(folder) for folder in folders)
        raise DataError(
            f"{name} lacks {', '.join(missing)} (plain or .gz) in {looked}: fetch what is missing, or give another --data-dir"
        )
    return found  # type: ignore[return-value]  # no None is left


def _wanted() -> str:
    return ", ".join(file for pair in FILES.values() for file in pair)


def _find(file: str, folders: List[Path]) -> Optional[Path]:
    candidates = (folder / (file + ending) for folder in folders for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def read_split(images_path: Path, labels_path: Path, classes: int) -> ArraySplit:
    """Images and labels of one split. Raises DataError that names the file and what is wrong with it."""
    images = read_idx(images_path, dimensions=3)
    if images.shape[1:] != IMAGE_SHAPE:
        raise _wrong(images_path, f"images of {images.shape[1]}x{images.shape[2]} pixels, expected 28x28")
    labels = read_idx(labels_path, dimensions=1)
    if len(labels) != len(images):
        raise _wrong(labels_path, f"{len(labels)} labels for the {len(images)} images of {images_path.name}")
    if not len(labels):
        raise _wrong(images_path, "it holds no images")
    if labels.max() >= classes:
        raise _wrong(labels_path, f"label {labels.max()} at position {labels.argmax()}, expected 0 to {classes - 1}")
    return ArraySplit(images[:, None], labels.astype(np.int32))


def read_idx(path: "str | os.PathLike[str]", dimensions: int) -> "NDArray[np.uint8]":
    """The array in an IDX file of unsigned bytes. Raises DataError that names the file and what is wrong with it."""
    content = _content(Path(path))
    if len(content) < 4 or content[:2] != b"\0\0":
        raise _wrong(path, f"no IDX file (it begins with {content[:4].hex(' ') or 'nothing'}, expected 00 00 08 {dimensions:02x})")
    if content[2] != UNSIGNED_BYTE:
        raise _wrong(path, f"values of type {content[2]:#04x}, expected unsigned bytes (0x08)")
    if content[3] != dimensions:
        raise _wrong(path, f"{content[3]} dimensions, expected {dimensions}")
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise _wrong(path, f"truncated in its header, {len(content)} of {header} bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = header + math.prod(shape)
    if len(content) != expected:
        word = "truncated" if len(content) < expected else "too long"
        raise _wrong(path, f"{word}, {len(content)} bytes where its header {shape} promises {expected}")
    try:
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    except ValueError:  # no values, in a shape that numpy cannot count
        raise _wrong(path, f"its header promises the impossible shape {shape}") from None


def _content(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _wrong(path, f"damaged gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): make it readable, or give another --data-dir") from None


def _wrong(path: "str | os.PathLike[str]", what: str) -> DataError:
    return DataError(f"{path}: {what}: fetch it again, or give another --data-dir")
