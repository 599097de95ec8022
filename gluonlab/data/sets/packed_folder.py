"""A folder of images decoded once: pixels in one file per split, from which batches are copied.

A packed folder is given where the folder itself would be: ``--dataset folder:PACKED``. It holds
pack.json and, for each split, images (N, 3, size, size) uint8 and labels (N,) int32 in NumPy's own
format (numpy.lib.format, version 1.0), which maps into memory.

Batches of 64 on two cores, measured beside each other by ``python tools/benchmarks images``, in
images per second:

=======================================  ===========  ====================
way                                      64x64 JPEGs  320x240 -> 224x224
=======================================  ===========  ====================
packed                                   34,095       8,234
mx.io.ImageRecordIter, a .rec of JPEGs   7,864        494
gluonlab.data.images.decoder_pool, 2 processes   4,281        570
PyTorch's DataLoader, 2 processes        3,686        551
gluon's DataLoader, 2 processes          4,542        527
=======================================  ===========  ====================

ImageRecordIter cannot give the batches that a seed asks for, and repeats images to fill the last
one; so it is not used.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

import numpy as np
from tqdm import tqdm

from gluonlab.data.fetching.data_folders import readable
from gluonlab.data.images.decode_image import CHANNELS
from gluonlab.data.sets.dataset import ArraySplit, Dataset, PixelSplit, Split
from gluonlab.errors import DataError, OutputError
from gluonlab.files.atomic_files import atomic_folder, check_name, on_disk, read_bounded
from gluonlab.plain_text import is_plain_name, to_plain_name

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Indices, Labels, Targets

INDEX = "pack.json"
FORMAT = 1
MOST_BYTES = 2**24  # of pack.json: some hundred thousand names of classes
AT_ONCE = 256  # images between the decoders and the file


def is_packed(path: Path) -> bool:
    """Whether this is a folder that `pack` has made."""
    return os.path.isfile(path / INDEX)


def pack(dataset: Dataset, out: "str | os.PathLike[str]") -> int:
    """Write a data set into the new folder ``out``, whole or not at all; return the bytes written.

    Raises OutputError for an ``out`` that exists or cannot be written, and DataError for an image
    that cannot be decoded, and for floats.
    """
    target = check_new_folder(out)
    with on_disk(target), atomic_folder(target) as temporary:
        for kind, split in (("train", dataset.train), ("test", dataset.test)):
            _write(temporary, kind, split)
        name = to_plain_name(dataset.name, "folder")
        index = dict(format=FORMAT, name=name, classes=dataset.classes)
        index["image_shape"] = dataset.image_shape
        (temporary / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        return sum(path.stat().st_size for path in temporary.iterdir())


def check_new_folder(out: "str | os.PathLike[str]") -> Path:
    """Raise OutputError for an ``out`` that `pack` would refuse, before anything is read."""
    target = Path(out)
    check_name("--out", target)
    if target.is_symlink() or target.exists():
        raise OutputError(f"--out {target} exists: give a new folder, so that nothing is lost")
    return target


def _write(folder: Path, kind: str, split: Split) -> None:
    # numpy.lib.format, version 1.0
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(split), *split.image_shape)}
    labels = np.empty(len(split), np.int32)
    bar = tqdm(unit=" images", disable=None, leave=False, dynamic_ncols=True, total=len(split))
    # not through a memory map, for which a full disk would be the end of the process
    with open(folder / f"{kind}-images.npy", "wb") as file, bar:
        bar.set_description(kind)
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
        for begin in range(0, len(split), AT_ONCE):
            indices = np.arange(begin, min(begin + AT_ONCE, len(split)))
            images, labels[indices] = split.batch(indices)
            if images.dtype != np.uint8:
                raise DataError(f"images of {images.dtype} cannot be packed: give bytes (uint8)")
            file.write(images.tobytes())
            bar.update(len(images))
    np.save(folder / f"{kind}-labels.npy", labels, allow_pickle=False)


def read(
    path: Path, image_size: Optional[int], memory: int
) -> Tuple[str, Split, Split, Tuple[str, ...]]:
    """Name, training split, test split and classes of what `pack` wrote.

    Splits of at most ``memory`` bytes are read now. Raises DataError for what is damaged, and for
    another ``image_size`` than the packed one.
    """
    index = _index(path)
    splits = [_read(path, kind, index) for kind in ("train", "test")]
    size = splits[0].image_shape[1]
    if image_size is not None and image_size != size:
        raise DataError(
            f"{path} was packed with images of {size}x{size} pixels: "
            "leave --image-size out, or pack the folder again"
        )
    train, test = (
        ArraySplit(np.array(split.images), np.array(split.labels))
        if split.images.nbytes + split.labels.nbytes <= memory
        else split
        for split in splits
    )
    return index["name"], train, test, tuple(index["classes"])


def _index(path: Path) -> Dict[str, Any]:
    try:
        index = json.loads(read_bounded(path / INDEX, MOST_BYTES))
        name, classes, shape = index["name"], index["classes"], index["image_shape"]
        good = index["format"] == FORMAT and len(shape) == 3 and len(classes) >= 2
        good = good and all(isinstance(text, str) for text in (name, *classes))
        good = good and all(type(size) is int for size in shape) and is_plain_name(name)
    except OSError as error:
        raise _wrong(path / INDEX, f"cannot be read ({error.strerror})") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        good = False
    if not good:
        raise _wrong(path / INDEX, "is not what gluonlab's pack writes")
    if shape[0] != CHANNELS or shape[1] != shape[2]:
        what = f"has images of {'x'.join(map(str, shape))}"
        raise _wrong(path / INDEX, f"{what}, expected squares with {CHANNELS} channels")
    return dict(index)


class PackedSplit(PixelSplit):
    """A split whose pixels are mapped from a file, which is watched: what is cut off would end the
    process.
    """

    def __init__(self, path: Path, images: "Images", labels: "Labels") -> None:
        super().__init__(images, labels)
        self.path = path
        with readable(path):
            self._file = path.open("rb")  # the same file still, when the path leads elsewhere
        self._was = self._now()

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """As PixelSplit's. Raises DataError for a file that was changed since it was opened."""
        self._check()
        images, labels = super().batch(indices)
        self._check()
        return images, labels

    def _check(self) -> None:
        if self._now() != self._was:
            raise _wrong(self.path, "was changed while it was in use")

    def _now(self) -> Tuple[int, int]:
        about = os.fstat(self._file.fileno())
        return about.st_size, about.st_mtime_ns


def _read(path: Path, kind: str, index: Dict[str, Any]) -> PixelSplit:
    images = _map(path / f"{kind}-images.npy", np.uint8)
    labels = _map(path / f"{kind}-labels.npy", np.int32)
    # image_shape has 3 numbers
    fits = images.shape[1:] == tuple(index["image_shape"]) and labels.shape == images.shape[:1]
    if not fits or not len(labels):
        shapes = f"images of shape {images.shape} and labels of shape {labels.shape}"
        raise _wrong(path, f"{kind} has {shapes}")
    least, most, classes = labels.min(), labels.max(), len(index["classes"])
    if not 0 <= least <= most < classes:
        what = f"labels from {least} to {most} for {classes} classes"
        raise _wrong(path / f"{kind}-labels.npy", what)
    return PackedSplit(path / f"{kind}-images.npy", images, np.array(labels))


def _map(path: Path, dtype: type) -> "np.ndarray[Any, Any]":
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise _wrong(path, f"cannot be read ({error.strerror or 'truncated'})") from None
    except Exception as error:  # numpy's reader of headers raises what the damage leads to
        raise _wrong(path, f"damaged ({' '.join(str(error).split())})") from None
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise _wrong(path, "holds other values than gluonlab's pack writes")
    return array


def _wrong(path: Path, what: str) -> DataError:
    return DataError(f"{path}: {what}: pack the folder again")
