"""Writes and reads packed folders, which contain decoded pixels in one file per split.

A packed folder replaces the original folder: ``--dataset folder:PACKED``. A packed folder contains
pack.json and, for each split, uint8 images (N, 3, size, size) and int32 labels (N,) as .npy files
(numpy.lib.format, version 1.0). The images are memory-mapped.

The table compares packed folders with other ways to read images. The numbers are images per second
on two cores, in batches of 64, measured with ``python tools/benchmarks images``:

==============================================  ===========  ==================
way                                             64x64 JPEGs  320x240 -> 224x224
==============================================  ===========  ==================
packed                                          34,095       8,234
mx.io.ImageRecordIter, a .rec of JPEGs          7,864        494
gluonlab.data.images.decoder_pool, 2 processes  4,281        570
PyTorch's DataLoader, 2 processes               3,686        551
gluon's DataLoader, 2 processes                 4,542        527
==============================================  ===========  ==================

gluonlab does not use ImageRecordIter, because ImageRecordIter cannot return given images in a given
order, and repeats images to fill the last batch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

import numpy as np
from tqdm import tqdm

from gluonlab.data.fetching.data_folders import convert_read_errors
from gluonlab.data.images.decode_image import CHANNELS
from gluonlab.data.sets.dataset import ArraySplit, Dataset, PixelSplit, Split
from gluonlab.errors import DataError, OutputError
from gluonlab.files.atomic_files import atomic_folder, check_path_name, raise_output_errors, read_bounded
from gluonlab.plain_text import is_plain_name, to_plain_name

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Indices, Labels, Targets

INDEX = "pack.json"
FORMAT = 1
MAX_INDEX_BYTES = 2**24  # of pack.json: enough for several hundred thousand class names
CHUNK_IMAGES = 256  # images that are decoded at a time


def is_packed(path: Path) -> bool:
    """Return whether the folder was written by `pack_dataset`."""
    return os.path.isfile(path / INDEX)


def pack_dataset(dataset: Dataset, out: "str | os.PathLike[str]") -> int:
    """Write a data set to the new folder ``out``, either completely or not at all.

    Returns the size of the folder in bytes. Raises OutputError if ``out`` exists or cannot be
    written. Raises DataError if an image cannot be decoded, or has float pixels.
    """
    target = check_new_folder(out)
    with raise_output_errors(target), atomic_folder(target) as temporary:
        for kind, split in (("train", dataset.train), ("test", dataset.test)):
            _write_split(temporary, kind, split)
        name = to_plain_name(dataset.name, "folder")
        index = dict(format=FORMAT, name=name, classes=dataset.classes)
        index["image_shape"] = dataset.image_shape
        (temporary / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        return sum(path.stat().st_size for path in temporary.iterdir())


def check_new_folder(out: "str | os.PathLike[str]") -> Path:
    """Return ``out`` as a path. Raise OutputError if the path exists or is invalid."""
    target = Path(out)
    check_path_name("--out", target)
    if target.is_symlink() or target.exists():
        raise OutputError(f"--out {target} exists: use a new folder, so that no files are overwritten")
    return target


def _write_split(folder: Path, kind: str, split: Split) -> None:
    # numpy.lib.format, version 1.0
    """Decode a split, and write its images and labels as .npy files."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(split), *split.image_shape)}
    labels = np.empty(len(split), np.int32)
    bar = tqdm(unit=" images", disable=None, leave=False, dynamic_ncols=True, total=len(split))
    # Written as a file, because writing to a memory map would kill the process on a full disk.
    with open(folder / f"{kind}-images.npy", "wb") as file, bar:
        bar.set_description(kind)
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
        for begin in range(0, len(split), CHUNK_IMAGES):
            indices = np.arange(begin, min(begin + CHUNK_IMAGES, len(split)))
            images, labels[indices] = split.batch(indices)
            if images.dtype != np.uint8:
                raise DataError(f"images of type {images.dtype} cannot be packed: convert the images to uint8")
            file.write(images.tobytes())
            bar.update(len(images))
    np.save(folder / f"{kind}-labels.npy", labels, allow_pickle=False)


def read_packed(path: Path, image_size: Optional[int], memory: int) -> Tuple[str, Split, Split, Tuple[str, ...]]:
    """Return the name, training split, test split and classes of a packed folder.

    Splits of at most ``memory`` bytes are read into memory. Raises DataError for damaged files, or
    if ``image_size`` is not the size of the packed images.
    """
    index = _read_index(path)
    splits = [_read_split(path, kind, index) for kind in ("train", "test")]
    size = splits[0].image_shape[1]
    if image_size is not None and image_size != size:
        raise DataError(
            f"{path} was packed with images of {size}x{size} pixels: omit --image-size, or pack the folder again"
        )
    train, test = (
        ArraySplit(np.array(split.images), np.array(split.labels))
        if split.images.nbytes + split.labels.nbytes <= memory
        else split
        for split in splits
    )
    return index["name"], train, test, tuple(index["classes"])


def _read_index(path: Path) -> Dict[str, Any]:
    """Read and check pack.json."""
    try:
        index = json.loads(read_bounded(path / INDEX, MAX_INDEX_BYTES))
        name, classes, shape = index["name"], index["classes"], index["image_shape"]
        is_valid = index["format"] == FORMAT and len(shape) == 3 and len(classes) >= 2
        is_valid = is_valid and all(isinstance(text, str) for text in (name, *classes))
        is_valid = is_valid and all(type(size) is int for size in shape) and is_plain_name(name)
    except OSError as error:
        raise _packed_error(path / INDEX, f"cannot be read ({error.strerror})") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise _packed_error(path / INDEX, "was not written by gluonlab data pack")
    if shape[0] != CHANNELS or shape[1] != shape[2]:
        description = f"has images of {'x'.join(map(str, shape))}"
        raise _packed_error(path / INDEX, f"{description}, expected squares with {CHANNELS} channels")
    return dict(index)


class PackedSplit(PixelSplit):
    """A split whose pixels are memory-mapped from a file.

    Before and after each batch, the file's size and modification time are checked, because
    accessing the mapped memory of a truncated file would kill the process.
    """

    def __init__(self, path: Path, images: "Images", labels: "Labels") -> None:
        super().__init__(images, labels)
        self.path = path
        with convert_read_errors(path):
            self._file = path.open("rb")  # stays the mapped file if the path is replaced
        self._initial_status = self._read_status()

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """Return the images and labels at ``indices``.

        Raise DataError if the file has changed.
        """
        self._check_unchanged()
        images, labels = super().batch(indices)
        self._check_unchanged()
        return images, labels

    def _check_unchanged(self) -> None:
        if self._read_status() != self._initial_status:
            raise _packed_error(self.path, "was changed during use")

    def _read_status(self) -> Tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


def _read_split(path: Path, kind: str, index: Dict[str, Any]) -> PixelSplit:
    """Map a split's images into memory, and check them against the labels and pack.json."""
    images = _map_array(path / f"{kind}-images.npy", np.uint8)
    labels = _map_array(path / f"{kind}-labels.npy", np.int32)
    # image_shape has 3 numbers
    is_consistent = images.shape[1:] == tuple(index["image_shape"]) and labels.shape == images.shape[:1]
    if not is_consistent or not len(labels):
        shapes = f"images of shape {images.shape} and labels of shape {labels.shape}"
        raise _packed_error(path, f"{kind} has {shapes}")
    lowest, highest, classes = labels.min(), labels.max(), len(index["classes"])
    if not 0 <= lowest <= highest < classes:
        description = f"labels from {lowest} to {highest} for {classes} classes"
        raise _packed_error(path / f"{kind}-labels.npy", description)
    return PackedSplit(path / f"{kind}-images.npy", images, np.array(labels))


def _map_array(path: Path, dtype: type) -> "np.ndarray[Any, Any]":
    """Map an .npy file into memory. Raise DataError if it is damaged or has a different dtype."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise _packed_error(path, f"cannot be read ({error.strerror or 'truncated'})") from None
    except Exception as error:  # numpy raises many exceptions for a damaged header
        raise _packed_error(path, f"damaged ({' '.join(str(error).split())})") from None
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise _packed_error(path, "contains other values than gluonlab data pack writes")
    return array


def _packed_error(path: Path, description: str) -> DataError:
    return DataError(f"{path}: {description}: pack the folder again")
