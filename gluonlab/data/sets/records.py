"""Image record files (.rec), as written by MXNet's im2rec: one file with many images.

MXNet's own reader (`mxnet.recordio`) reads the file once from start to end, so a .idx file is not
needed. Only the position of each image is kept. The processes that decode images read them there.
"""

from __future__ import annotations

import ctypes
import os
import struct
import unicodedata
from pathlib import Path
from typing import (
    Any,
    BinaryIO,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
)

from tqdm import tqdm

from gluonlab.data.fetching.location import readable
from gluonlab.data.images.places import Piece, Stretches, part_name
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.folder import decoded
from gluonlab.data.sets.listed import Label, Listed, ListedImages, checked_label, find_files
from gluonlab.errors import DataError
from gluonlab.plain import plain_name

KIND, ENDING, LIST = "record", ".rec", ".lst"
FRAME = struct.Struct("<II")  # the magic number, and the length of the data
LENGTH = 2**29 - 1  # bits of a frame's length; higher bits mark first, middle and last frames
MAGIC_BYTES = 4
AGAIN = "make it again with im2rec"


def load(
    path: str,
    image_size: Optional[int] = None,
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    memory: int = 0,
    random_resized_crop: bool = False,
    val_share: Optional[float] = None,
    resizer: Optional[str] = None,
) -> Dataset:
    """Load the records of ``path``; options as for `gluonlab.data.sets.folder.load`.

    ``path``: ``train.rec``, with val.rec in the same folder or with ``val_share``, or
    ``train.rec,val.rec``. Raises DataError.
    """
    images = find_images(path, val_share)
    name = plain_name(images.name, KIND)
    options = (image_size, decoders, skip_bad, memory, random_resized_crop, resizer)
    return decoded(images, name, *options)


def find_images(path: str, val_share: Optional[float] = None) -> ListedImages:
    """Find the images of the records for `load`. Raises DataError."""
    train, val = find_files(path, ENDING, KIND, val_share)
    records = read_records(train)
    return ListedImages(records, None if val is None else read_records(val), val_share)


def read_records(path: Path) -> Listed:
    """Find the positions and labels of the images in a record file.

    Raises DataError that names a record that is damaged or does not have exactly one label.
    """
    pieces: List[List[Piece]] = []
    labels: List[int] = []
    ids: List[int] = []
    with readable(path, "file"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, record in enumerate(_records(path, size)):
            name = part_name(str(path), number)
            header = _header(record.content, name)
            labels.append(header.label)
            ids.append(header.id)
            pieces.append(_pieces(file, record, header.size))
    if not labels:
        raise DataError(f"{path} has no records: {AGAIN}")
    keys = ids if len(set(ids)) == len(ids) else range(len(ids))
    return Listed(
        path, Stretches(str(path), pieces), labels, list(map(str, keys)), _names(path, labels)
    )


class _Record(NamedTuple):
    """A record as MXNet reads it, and its start and end in the file."""

    content: bytes
    begin: int
    end: int


class _Header(NamedTuple):
    label: int
    id: int
    size: int  # bytes before the image


def _records(path: Path, size: int) -> Iterator[_Record]:
    """Yield the records of a file of ``size`` bytes in order, and show a progress bar."""
    from mxnet.base import MXNetError
    from mxnet.recordio import MXRecordIO

    bar = tqdm(
        desc=path.name, total=size, unit="B", unit_scale=True, disable=None, leave=False,
        dynamic_ncols=True,
    )  # fmt: skip
    begin = count = 0
    with bar:
        try:
            reader = MXRecordIO(str(path.absolute()), "r")
            try:
                while True:
                    content = reader.read()
                    if content is None:
                        break
                    end = _place(reader)
                    yield _Record(content, begin, end)
                    bar.update(end - begin)
                    begin, count = end, count + 1
            finally:
                reader.close()
        except (MXNetError, UnicodeError):
            raise _damaged(path, count, begin, size) from None


def _damaged(path: Path, count: int, begin: int, size: int) -> DataError:
    after = f"after {count:,} record{'s' * (count != 1)}" if count else "from its beginning"
    return DataError(
        f"{path}: truncated, damaged or not a record file {after}, at byte {begin:,} of {size:,}: "
        f"{AGAIN}"
    )


def _place(reader: Any) -> int:
    """Return the position of the next record, which MXNet's Python reader does not expose."""
    from mxnet.base import _LIB, check_call

    place = ctypes.c_size_t()
    check_call(_LIB.MXRecordIOReaderTell(reader.handle, ctypes.byref(place)))
    return int(place.value)


def _header(content: bytes, name: str) -> _Header:
    from mxnet.recordio import unpack

    try:
        header, image = unpack(content)
    except (struct.error, ValueError):
        raise DataError(f"{name} is not an image with a label: {AGAIN}") from None
    values = [header.label] if header.flag == 0 else list(map(float, header.label))
    if len(values) != 1:
        raise DataError(
            f"{name} has {len(values)} numbers for a label, as for boxes or several classes: "
            "make the file with one label for each image"
        )
    return _Header(checked_label(values[0], name), int(header.id), len(content) - len(image))


def _pieces(file: BinaryIO, record: _Record, skipped: int) -> List[Piece]:
    """Find the positions of a record's bytes in its file, without the first ``skipped`` bytes.

    A record that contains the magic number is cut into frames there. The magic number at the start
    of the next frame replaces the one that was cut out.
    """
    size, left, place = len(record.content), len(record.content), record.begin
    if record.end - place == FRAME.size + size + -size % 4:  # a single frame, the usual case
        return [(place + FRAME.size + skipped, size - skipped)]
    pieces = []
    while left > 0:
        file.seek(place)
        begin, length = place + FRAME.size, FRAME.unpack(file.read(FRAME.size))[1] & LENGTH
        place = begin + length
        if length < left:
            length += MAGIC_BYTES
        cut = min(skipped, length)
        if length > cut:
            pieces.append((begin + cut, length - cut))
        skipped, left = skipped - cut, left - length
    return pieces


def _names(path: Path, labels: Sequence[int]) -> Mapping[Label, str]:
    """Return the folder of each label from the .lst file, if they match one to one."""
    folders: Dict[int, Set[str]] = {}
    try:
        with path.with_suffix(LIST).open(encoding="utf-8") as lines:
            for line in lines:
                _, *middle, image = line.rstrip("\n").split("\t")
                label = float(middle[0])
                folders.setdefault(int(label), set()).add(image.rpartition("/")[0])
    except (OSError, ValueError, IndexError, OverflowError):  # missing or another format
        return {}
    found: Dict[Label, str] = {
        label: unicodedata.normalize("NFC", min(names))
        for label, names in folders.items()
        if len(names) == 1
    }
    complete = len(found) == len(folders) and set(labels) <= set(folders)
    apart = len(set(found.values())) == len(found)
    apart = apart and all(name and name.isprintable() for name in found.values())
    return found if complete and apart else {}
