"""Loads standard data sets: digits, MNIST, Fashion-MNIST, CIFAR-10, and random images."""

from __future__ import annotations

import gzip
import importlib.machinery
import math
import os
import struct
import zlib
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Iterator, Optional, Sequence, Tuple, cast

import numpy as np

from gluonlab.data.fetching.data_folders import convert_read_errors, damaged_file_error, find_data_files
from gluonlab.data.fetching.download_sources import SOURCES
from gluonlab.data.sets.convert_user_arrays import CHANNELS_FIRST
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gluonlab.data.sets.dataset import Images, Labels


# --- random images

SYNTHETIC, SYNTHETIC_SAMPLES, SYNTHETIC_SHAPE = "synthetic", 8192, (1, 28, 28)
SYNTHETIC_DEFAULTS = Defaults(lr=0.01, epochs=3)


def load_synthetic(
    samples: int = SYNTHETIC_SAMPLES, shape: Tuple[int, int, int] = SYNTHETIC_SHAPE, classes: int = 10, seed: int = 0
) -> Dataset:
    """Generate random images with random labels, for measurements.

    ``samples``: the number of training images. The test split has a quarter as many images.
    ``shape``: the shape of an image, (C, H, W).
    """
    random = np.random.RandomState(seed)

    def split(count: int) -> ArraySplit:
        images = random.randint(0, 256, (count, *shape), dtype=np.uint8)
        labels = random.randint(0, classes, count).astype(np.int32)
        return ArraySplit(images, labels, CHANNELS_FIRST)

    train, test = split(samples), split(max(1, samples // 4))
    return Dataset(SYNTHETIC, train, test, tuple(map(str, range(classes))), SYNTHETIC_DEFAULTS)


# --- scikit-learn's digits

TEST_IMAGES = 360  # a fifth of all
# The split is the same in every run, so that accuracies can be compared.
SPLIT_SEED = 0
# With plain SGD, as in the labs, the accuracy after 5 epochs depends strongly on the seed. With
# these settings, it was at least 0.97 for every seed that was tried.
DIGITS_DEFAULTS = Defaults(batch_size=32, epochs=10, optimizer="adam", lr=0.002)


def load_digits() -> Dataset:
    """Load scikit-learn's handwritten digits, 1,797 images of 8x8 pixels, which need no download.

    Returns 1,437 training and 360 test images of shape (1, 28, 28), as LeNet expects. Source: E.
    Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
    1998.
    """
    pixels, labels = read_digits()
    images = enlarge_to_28x28(pixels)
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    parts = (order[TEST_IMAGES:], order[:TEST_IMAGES])
    train, test = (ArraySplit(images[part], labels[part]) for part in parts)
    return Dataset("digits", train, test, tuple(map(str, range(10))), DIGITS_DEFAULTS)


@lru_cache(maxsize=1)
def read_digits() -> "Tuple[np.ndarray[tuple[int, int, int], np.dtype[np.float64]], Labels]":
    """Read scikit-learn's file: gray values from 0 to 16 (1797, 8, 8), and labels (1797,).

    `sklearn.datasets.load_digits` returns the same arrays, but importing scikit-learn takes half a
    second.

    Raises:
        DataError: scikit-learn is not installed, or does not contain the file.
    """
    package = importlib.machinery.PathFinder.find_spec("sklearn")
    folders = (package and package.submodule_search_locations) or [""]
    try:
        with gzip.open(Path(folders[0], "datasets", "data", "digits.csv.gz"), "rt") as file:
            rows = np.array([line.split(",") for line in file], dtype=np.float64)
    except OSError as error:
        raise DataError(f"the digits of scikit-learn cannot be read ({error}): run pip install scikit-learn") from error
    pixels, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int32)
    for array in (pixels, labels):
        array.flags.writeable = False  # every caller gets the same arrays
    return pixels, labels


def enlarge_to_28x28(images: "np.ndarray[tuple[int, int, int], np.dtype[np.float64]]") -> "Images":
    """Convert gray values from 0 to 16 (N, 8, 8) to uint8 images (N, 1, 28, 28).

    Each value becomes a block of 3x3 pixels. A border of 2 black pixels is added on each side.
    """
    gray = np.rint(images * (255 / 16)).astype(np.uint8)
    enlarged = gray.repeat(3, axis=1).repeat(3, axis=2)  # (N, 24, 24)
    return np.pad(enlarged, ((0, 0), (2, 2), (2, 2)))[:, None]


# --- MNIST and Fashion-MNIST

IDX_FILES = (  # images and labels of the training split, and of the test split
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
IDX_SHAPE = (28, 28)
MNIST_DEFAULTS = Defaults()
FASHION_MNIST_DEFAULTS = Defaults(model="lenet-avg", batch_size=256, epochs=10, lr=0.2)
UNSIGNED_BYTE = 8
CHUNK_BYTES = 2**18
DEFLATE_RATIO = 1032  # the limit of deflate: 258 bytes from two bits (RFC 1951)
MAX_INFLATED_BYTES = 2**30  # twice the size of the largest data sets in this format
DIGIT_CLASSES = tuple(str(digit) for digit in range(10))
CLOTHING_CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip


def load_idx(name: str, classes: Tuple[str, ...], defaults: Defaults, root: Optional[str] = None) -> Dataset:
    """Load MNIST or Fashion-MNIST from its IDX files.

    The plain or gzipped files are in ``root``/``name`` or ``root``. If ``root`` is None, the
    default folder is used. Raises the errors of
    `gluonlab.data.fetching.data_folders.find_data_files`.
    """
    names = [file for pair in IDX_FILES for file in pair]
    paths = find_data_files(SOURCES[name], names, root, endings=("", ".gz"))
    train, test = (read_idx_split(paths[images], paths[labels], len(classes)) for images, labels in IDX_FILES)
    return Dataset(name, train, test, classes, defaults)


def read_idx_split(images_path: Path, labels_path: Path, classes: int) -> ArraySplit:
    """Read the images and labels of one split.

    Raises DataError with the name of the damaged file.
    """
    images = read_idx(images_path, dimensions=3)
    if images.shape[1:] != IDX_SHAPE:
        size = f"{images.shape[1]}x{images.shape[2]}"
        raise damaged_file_error(images_path, f"images of {size} pixels, expected 28x28")
    labels = read_idx(labels_path, dimensions=1)
    if len(labels) != len(images):
        reason = f"{len(labels)} labels for the {len(images)} images of {images_path.name}"
        raise damaged_file_error(labels_path, reason)
    if not len(labels):
        raise damaged_file_error(images_path, "it contains no images")
    if labels.max() >= classes:
        reason = f"label {labels.max()} at position {labels.argmax()}, expected 0 to {classes - 1}"
        raise damaged_file_error(labels_path, reason)
    return ArraySplit(images[:, None], labels.astype(np.int32))


def read_idx(path: "str | os.PathLike[str]", dimensions: int) -> "NDArray[np.uint8]":
    """Read the array in an IDX file of unsigned bytes.

    The format (http://yann.lecun.com/exdb/mnist/, archived):

    - two zero bytes
    - a byte for the type: 8 means unsigned bytes
    - a byte for the number of dimensions
    - a big-endian 32-bit size per dimension
    - the values

    Raises DataError with the name of the damaged file. Even if the header is wrong, this function
    reads and decompresses at most as many bytes as a file of this size can contain.
    """
    path = Path(path)
    with _open_plain_or_gzip(path) as (file, max_bytes):
        header = file.read(4 + 4 * dimensions)
        fault = _header_fault(header, dimensions)
        if fault:
            raise damaged_file_error(path, fault)
        shape = struct.unpack(f">{dimensions}I", header[4:])
        expected, promised_by = len(header) + math.prod(shape), f"its header {shape} announces"
        if expected > max_bytes:
            limit = f"more than the maximum decompressed size of {max_bytes}"
            raise damaged_file_error(path, f"{promised_by} {expected} bytes, {limit}")
        values = _read_bytes(file, expected - len(header))
        count = len(header) + len(values)
        if count < expected:
            raise damaged_file_error(path, f"truncated: {count} bytes, but {promised_by} {expected}")
        if file.read(1):
            raise damaged_file_error(path, f"too long: more than the {expected} bytes that {promised_by}")
    try:
        return np.frombuffer(values, np.uint8).reshape(shape)
    except ValueError:  # no values, in a shape that numpy cannot count
        raise damaged_file_error(path, f"its header announces the impossible shape {shape}") from None


def _header_fault(header: bytes, dimensions: int) -> str:
    """Return what is wrong with an IDX file's header, or "" if the header is valid."""
    if len(header) < 4 or header[:2] != b"\0\0":
        begin = header[:4].hex(" ") or "nothing"
        return f"not an IDX file (it starts with {begin}, expected 00 00 08 {dimensions:02x})"
    if header[2] != UNSIGNED_BYTE:
        return f"values of type {header[2]:#04x}, expected unsigned bytes (0x08)"
    if header[3] != dimensions:
        return f"{header[3]} dimensions, expected {dimensions}"
    if len(header) < 4 + 4 * dimensions:
        return f"truncated in its header: {len(header)} of {4 + 4 * dimensions} bytes"
    return ""


def _read_bytes(file: IO[bytes], size: int) -> bytearray:
    """Read ``size`` bytes, or fewer at the end of the file, in chunks."""
    # Memory is allocated as the content is read, because the header may promise far more bytes.
    values = bytearray()
    while len(values) < size:
        chunk = file.read(min(CHUNK_BYTES, size - len(values)))
        if not chunk:
            break
        values += chunk
    return values


@contextmanager
def _open_plain_or_gzip(path: Path) -> Iterator[Tuple[IO[bytes], float]]:
    """Open a plain or gzipped file. Yield the file and the maximum number of bytes to read."""
    with convert_read_errors(path), path.open("rb") as file:
        if path.suffix != ".gz":
            yield file, math.inf  # the size of the file is the limit
            return
        size = os.fstat(file.fileno()).st_size
        try:
            with gzip.GzipFile(fileobj=file) as content:
                yield cast(IO[bytes], content), min(DEFLATE_RATIO * size, MAX_INFLATED_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise damaged_file_error(path, f"damaged gzip file ({error})") from None


# --- CIFAR-10

CIFAR_RECORDS = 10_000  # in each file
CIFAR_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_DEFAULTS = Defaults(published_model="cifar_resnet20", epochs=10, optimizer="adam", lr=0.001)


def load_cifar10(root: Optional[str] = None, records: int = CIFAR_RECORDS) -> Dataset:
    """Load 50,000 training and 10,000 test images (3, 32, 32) from ``root``/cifar10 or ``root``.

    Reads the binary version, which needs no pickle: https://www.cs.toronto.edu/~kriz/cifar.html. A
    record has 3,073 bytes: the label, and then 32x32 red, green and blue values, row by row.
    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.

    If ``root`` is None, the default folder is used
    (`gluonlab.data.fetching.data_folders.data_root`). ``records``: the number of images that each
    file must have. Raises DataError for damaged or missing files. The message about missing files
    contains the command that downloads them.
    """
    source = SOURCES["cifar10"]
    *train, test = find_data_files(source, [batch.name for batch in source.known_files], root).values()
    train_split, test_split = read_cifar_split(train, records), read_cifar_split([test], records)
    return Dataset("cifar10", train_split, test_split, CIFAR_CLASSES, CIFAR_DEFAULTS)


def read_cifar_split(paths: Sequence[Path], records: int = CIFAR_RECORDS) -> ArraySplit:
    """Read the images in several files, ``records`` per file.

    Raises DataError with the name of the damaged file.
    """
    images = np.empty((len(paths), records, *CIFAR_SHAPE), np.uint8)
    labels = np.empty((len(paths), records), np.int32)
    for part, path in enumerate(paths):
        content = read_cifar_records(path, records)
        labels[part], images[part] = content[:, 0], content[:, 1:].reshape(records, *CIFAR_SHAPE)
    return ArraySplit(images.reshape(-1, *CIFAR_SHAPE), labels.reshape(-1))


def read_cifar_records(path: Path, records: int = CIFAR_RECORDS) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    """Read the records in one file as a byte array of shape (records, 3073).

    Raises DataError with the name of the damaged file.
    """
    expected, last_class = records * RECORD_BYTES, len(CIFAR_CLASSES) - 1
    with convert_read_errors(path), path.open("rb") as file:
        content = file.read(expected + 1)  # one byte more, to notice a file that is too long
    if len(content) != expected:
        is_too_long = len(content) > expected
        count = f"too long: more than {expected:,}" if is_too_long else f"truncated: {len(content):,}"
        raise damaged_file_error(path, f"{count} bytes, but {records:,} images need {expected:,}")
    values = np.frombuffer(content, np.uint8).reshape(records, RECORD_BYTES)
    invalid = np.flatnonzero(values[:, 0] > last_class)
    if len(invalid):
        label = values[invalid[0], 0]
        raise damaged_file_error(path, f"label {label} at position {invalid[0]}, expected 0 to {last_class}")
    return values
