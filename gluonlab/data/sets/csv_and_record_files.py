"""Loads data sets from CSV lists of image files and from MXNet's record files (.rec).

A CSV list has one line per image, with its path and its label. A record file, written by MXNet's
im2rec, contains many images. MXNet's reader (`mxnet.recordio`) reads the record file once from
start to end, so a .idx file is not needed. Only the position of each image in the file is stored.
Decoder processes later read the images at these positions.
"""

from __future__ import annotations

import csv
import ctypes
import os
import re
import struct
import unicodedata
from pathlib import Path
from typing import (
    TYPE_CHECKING,
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
    Tuple,
    Union,
)

import numpy as np
from tqdm import tqdm

from gluonlab.data.fetching.data_folders import convert_read_errors
from gluonlab.data.images.image_locations import (
    ByteRange,
    FileSegments,
    ImageLocation,
    is_image_name,
    record_name,
    select_locations,
)
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.image_file_dataset import HOLD_OUT_OPTION, TRAIN, VAL, make_image_dataset, select_held_out
from gluonlab.errors import DataError, warn
from gluonlab.plain_text import shorten_names, to_plain_name

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Labels

Label = Union[int, str]
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


class ImageList(NamedTuple):
    """The locations and labels of the images in a CSV list or a record file.

    ``keys``: a text for each image. These texts determine which images are held out.
    ``label_names``: the class name of each label, if known.
    """

    path: Path
    locations: Sequence[ImageLocation]
    labels: Sequence[Label]
    keys: Sequence[str]
    label_names: Mapping[Label, str] = {}


class ListedImages:
    """Training and validation images, with their classes.

    Attributes:
        train: Locations and labels of the training images.
        val: Locations and labels of the validation images.
        values: The labels in the training file, sorted; integers are sorted by value.
        classes: The names of the labels.
        name: Name of the training file, or name of its folder if the file's name is only "train".
        untested_classes: Classes without validation images.

    ``val_share``: the fraction of each class that is held out from ``train`` if ``val`` is None.
    Raises DataError for fewer than two classes, or for a validation class without training images.
    """

    def __init__(self, train: ImageList, val: Optional[ImageList], val_share: Optional[float]) -> None:
        path = train.path.absolute()
        self.name = path.stem if _name_before_train(path) != "" else path.parent.name
        train_labels = _to_numbers(train.labels)
        val_labels = [] if val is None else _to_numbers(val.labels)
        if val is not None and _are_numbers(train_labels) != _are_numbers(val_labels):
            train_labels, val_labels = list(map(str, train.labels)), list(map(str, val.labels))
        self.values = sorted(set(train_labels))  # type: ignore[type-var]
        self.classes = tuple(train.label_names.get(value, str(value)) for value in self.values)
        if len(self.classes) < 2:
            description = f"only one class, {self.classes[0]}" if self.classes else "no images"
            raise DataError(f"{train.path} contains {description}: use images of at least two classes")
        numbers: Dict[Label, int] = {value: number for number, value in enumerate(self.values)}
        train_classes = np.array([numbers[value] for value in train_labels], np.int32)
        self.untested_classes: List[str] = []
        if val is None:
            assert val_share is not None
            self._hold_out(train, train_classes, val_share)
            return
        _check_label_names(train, val)
        unknown = next((value for value in val_labels if value not in numbers), None)
        if unknown is not None:
            raise DataError(
                f"{val.path} contains the class {unknown}, but {train.path} does not: add training images of this class"
            )
        val_classes = np.array([numbers[value] for value in val_labels], np.int32)
        self.train, self.val = (train.locations, train_classes), (val.locations, val_classes)
        self._note_untested(val_classes)

    def warnings(self) -> List[str]:
        """Return warnings about classes without validation images, and about renumbered labels."""
        messages = []
        if self.untested_classes:
            messages.append(f"there are no validation images of the classes {shorten_names(self.untested_classes)}")
        if _are_numbers(self.values) and self.values != [*range(len(self.values))]:
            messages.append(
                f"the {len(self.values)} different labels from {self.values[0]} to {self.values[-1]} become classes "
                f"0 to {len(self.values) - 1} of the model, and the labels become the class names"
            )
        return messages

    def _hold_out(self, images: ImageList, labels: "Labels", share: float) -> None:
        """Put the fraction ``share`` of each class into ``val``, and the rest into ``train``."""
        order = np.argsort(labels, kind="stable")
        bounds = np.searchsorted(labels[order], np.arange(len(self.classes) + 1))
        is_held_out = np.zeros(len(labels), bool)
        for number, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            positions, label = order[begin:end], self.values[number]
            is_held_out[positions] = select_held_out(
                [f"{label}/{images.keys[position]}" for position in positions], share
            )
        if not is_held_out.any():
            raise DataError(
                f"every class in {images.path} has a single image, but --val-split {share:g} requires a class "
                "with at least two images: add images"
            )
        self.train, self.val = (
            (select_locations(images.locations, np.flatnonzero(mask).tolist()), labels[mask])
            for mask in (~is_held_out, is_held_out)
        )
        self._note_untested(labels[is_held_out])

    def _note_untested(self, labels: "Labels") -> None:
        missing = np.setdiff1d(np.arange(len(self.classes)), labels)
        self.untested_classes = [self.classes[number] for number in missing]


def find_train_and_val_files(
    value: str, ending: str, prefix: str, val_share: Optional[float]
) -> Tuple[Path, Optional[Path]]:
    """Return the paths of the training file and of the validation file (or None).

    ``value`` is ``train.csv`` or ``train.csv,val.csv``. If only one name is given and it ends with
    train, the validation file may be in the same folder, with a name that ends with val or test
    instead.

    ``ending``: the suffix of both files, such as .csv. ``prefix``: the prefix of the data set's
    name, such as list. Raises DataError for a missing file, or if both a validation file and
    ``val_share`` are given.
    """
    parts = [value] if os.path.exists(value) else [part.strip() for part in value.split(",")]
    if len(parts) > 2 or not all(parts):
        raise DataError(
            f"{prefix}:{value} does not name one or two files: use a value such as {prefix}:train{ending} or "
            f"{prefix}:train{ending},val{ending}"
        )
    paths = [_check_user_file(part, ending, prefix) for part in parts]
    train, val = paths[0], paths[1] if len(paths) > 1 else _find_validation_file(paths[0])
    if val is None and val_share is None:
        stem = _name_before_train(train)
        example = f"val{ending}" if stem is None else f"{stem}{VAL[0]}{train.suffix}"
        raise DataError(
            f"there is no validation file, such as {example}, in the folder of {train}: hold out images with "
            f"{HOLD_OUT_OPTION}, or name a validation file, as in {prefix}:{train},FILE"
        )
    if val is not None and val_share is not None:
        raise DataError(
            f"--val-split {val_share:g} would hold out images of {train}, but the validation file {val} "
            "exists: omit --val-split, or rename the validation file"
        )
    return train, val


def _check_user_file(name: str, ending: str, prefix: str) -> Path:
    """Return the path of a file named by the user. Raise DataError if the file cannot be used."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise DataError(f"{name} names an unknown home directory: use the full path") from None
    if not os.path.exists(path):
        raise DataError(f"{path} does not exist: use an existing {ending} file")
    if path.is_dir():
        raise DataError(f"{path} is a folder: use a {ending} file, or folder:{path}")
    if path.suffix.lower() != ending:
        sibling = path.with_suffix(ending)
        hint = f", such as {prefix}:{sibling}" if os.path.isfile(sibling) else ""
        raise DataError(f"{path} is not a {ending} file: use a {ending} file{hint}")
    with convert_read_errors(path, "file"):
        path.stat()
    if not path.is_file():
        raise DataError(f"{path} is not a regular file: use a {ending} file")
    return path


def _find_validation_file(train: Path) -> Optional[Path]:
    """Return the validation file that belongs to a training file; None if there is no such file."""
    prefix = _name_before_train(train)
    if prefix is None:
        return None
    names = [spelling for name in VAL for spelling in (name, name.capitalize(), name.upper())]
    candidates = (train.with_name(f"{prefix}{name}{train.suffix}") for name in names)
    return next((path for path in candidates if os.path.isfile(path)), None)


def _name_before_train(train: Path) -> Optional[str]:
    """Remove a word in TRAIN from the end of a file's name; return None without such a word."""
    for name in TRAIN:
        if train.stem.lower().endswith(name):
            return train.stem[: -len(name)]
    return None


def _are_numbers(labels: Sequence[Label]) -> bool:
    return all(isinstance(label, int) for label in labels)


def _to_numbers(labels: Sequence[Label]) -> List[Label]:
    """Convert labels to int if each label is a whole number, else return the labels unchanged."""
    if all(isinstance(label, int) or _NUMBER.fullmatch(label) for label in labels):
        return [int(label) for label in labels]
    return list(labels)


def _check_label_names(train: ImageList, val: ImageList) -> None:
    """Raise DataError if a label has different names in the training and validation files."""
    for label, name in val.label_names.items():
        if train.label_names.get(label, name) != name:
            raise DataError(
                f"label {label} is {train.label_names[label]} in {train.path}, but {name} in {val.path}: "
                "use the same class numbers in both files"
            )


def to_class_number(value: float, position: str) -> int:
    """Convert a label to a class number. ``position``: the label's position, for error messages.

    Raises DataError if the label is not an integer of at least 0.
    """
    if not 0 <= value < 2**31 or value != int(value):
        raise DataError(f"{position} has the label {value:g}: use whole numbers starting at 0 as labels")
    return int(value)


# --- CSV lists

LIST_KIND, LIST_ENDING = "list", ".csv"
# possible names of the columns in the header, in lower case
IMAGE_COLUMNS = ("image", "path", "file", "filename", "filepath", "image_path", "image_file", "img")
LABEL_COLUMNS = ("label", "class", "target", "category", "class_name", "y")
OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
FORM_HINT = "write image,label in each line"
QUOTE_HINT = 'put names that contain a comma in quotes, such as "a, b.jpg"'


class ListColumns(NamedTuple):
    """The number of columns in a list, and the indices of the image and label columns."""

    column_count: int
    image: int
    label: int


def load_list(path: str, root: Optional[str] = None, val_share: Optional[float] = None, **options: Any) -> Dataset:
    """Load the images named in a CSV list. Raise DataError if the list or an image is invalid.

    Args:
        path: ``train.csv,val.csv``, or only ``train.csv`` if val.csv is in the same folder or if
            ``val_share`` is given.
        root: The folder that contains the images; by default, the folder of each list.
        val_share: The fraction of each class that is held out if there is no validation list.
        options: See `make_image_dataset`.
    """
    images = find_listed_images(path, root, val_share)
    return make_image_dataset(images, to_plain_name(images.name, LIST_KIND), **options)


def find_listed_images(path: str, root: Optional[str] = None, val_share: Optional[float] = None) -> ListedImages:
    """Read the CSV lists, and check that the listed images exist. For arguments, see `load_list`.

    Raises DataError for invalid lists. Warns about images listed for both training and validation.
    """
    train_file, val_file = find_train_and_val_files(path, LIST_ENDING, LIST_KIND, val_share)
    if root is not None and not os.path.isdir(root):
        raise DataError(f"--data-dir {root} is not a folder: use the folder that contains the listed images")
    train = read_image_list(train_file, Path(root or train_file.parent))
    if val_file is None:
        return ListedImages(train, None, val_share)
    val = read_image_list(val_file, Path(root or val_file.parent))
    common = {*train.locations} & {*val.locations}
    if common:
        warn(
            f"{len(common)} image{'s are' if len(common) > 1 else ' is'} listed for training and for "
            f"validation, such as {min(map(str, common))}: the validation accuracy will be too high"
        )
    return ListedImages(train, val, val_share)


def read_image_list(path: Path, folder: Path) -> ImageList:
    """Read a CSV file that lists images in ``folder`` and their labels.

    Raises a DataError that names the invalid line.
    """
    image_root = _ImageRoot(folder)
    lines: Dict[str, int] = {}  # line number of each image
    labels: List[str] = []
    missing: List[Tuple[int, str]] = []
    bar = tqdm(desc=path.name, unit=" lines", disable=None, leave=False, dynamic_ncols=True)
    with bar:
        for line, image, label in _read_entries(path, folder):
            image_path = image_root.resolve_path(image, f"{path}, line {line}")
            if image_path in lines:
                raise DataError(
                    f"{path}, line {line} lists {image}, which line {lines[image_path]} already lists: list each "
                    "image once"
                )
            lines[image_path] = line
            labels.append(label)
            if not os.path.isfile(image_path):
                missing.append((line, image))
            bar.update()
    if missing:
        line, image = missing[0]
        slashes = "; write / between folders, not \\" if "\\" in image else ""
        raise DataError(
            f"{path} lists images that are missing or are not regular files ({len(missing):,} of "
            f"{len(lines):,}), such as {image} in line {line}: use paths relative to {folder}, or set another folder "
            f"with --data-dir{slashes}"
        )
    if not lines:
        raise DataError(f"{path} lists no images: {FORM_HINT}")
    keys = [os.path.relpath(image_path, image_root.folder) for image_path in lines]
    return ImageList(path, list(lines), labels, keys)


def _read_entries(path: Path, folder: Path) -> Iterator[Tuple[int, str, str]]:
    """Yield (line number, image, label) for each line except the header."""
    columns: Optional[ListColumns] = None
    for line, cells in _read_rows(path):
        where = f"{path}, line {line}"
        if columns is None:
            columns, is_header = _detect_columns(cells, where, folder)
            if is_header:
                continue
        if len(cells) != columns.column_count:
            raise DataError(
                f"{where} has {_count_columns(cells)}, but the first line has {columns.column_count}: {QUOTE_HINT}"
            )
        image, label = cells[columns.image], cells[columns.label]
        if not image or "\0" in image:
            raise DataError(f"{where} does not name an image: {FORM_HINT}")
        if not label or not label.isprintable():
            raise DataError(f"{where} has no label for {image}: {FORM_HINT}, or remove the line")
        yield line, image, unicodedata.normalize("NFC", label)


def _read_rows(path: Path) -> Iterator[Tuple[int, List[str]]]:
    """Yield (line number from 1, cells) for each non-empty line in a CSV file."""
    try:
        with convert_read_errors(path, "file"), path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            for cells in rows:
                cells = [cell.strip() for cell in cells]
                if any(cells):
                    yield rows.line_num, cells
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text: save it as a CSV file in UTF-8") from None
    except csv.Error as error:
        raise DataError(
            f"{path}, line {rows.line_num} is not valid CSV ({error}): close each quote, and "
            'double the quotes inside a name, as in "a ""b"".jpg"'
        ) from None


def _detect_columns(cells: List[str], where: str, folder: Path) -> Tuple[ListColumns, bool]:
    """Detect the columns from the first line. Also return whether that line is a header."""
    if len(cells) == 1:
        separator = next((sign for sign in OTHER_SEPARATORS if sign in cells[0]), None)
        other = OTHER_SEPARATORS.get(separator or "")
        advice = f", because it contains {other} instead of commas: use commas" if other else f": {FORM_HINT}"
        raise DataError(f"{where} has only 1 column{advice}")
    is_header = not any(is_image_name(cell) for cell in cells)
    if is_header and cells[0] and "\0" not in cells[0]:
        is_header = not os.path.isfile(os.path.join(folder, cells[0]))
    if is_header:
        names = [cell.lower() for cell in cells]
        images = [column for column, name in enumerate(names) if name in IMAGE_COLUMNS]
        labels = [column for column, name in enumerate(names) if name in LABEL_COLUMNS]
        if len(images) == len(labels) == 1:
            return ListColumns(len(cells), images[0], labels[0]), True
        if len(labels) > 1:
            several = ", ".join(cells[column] for column in labels)
            raise DataError(f"{where} has {len(labels)} possible label columns ({several}): keep only one label column")
    if len(cells) != 2:
        raise DataError(
            f"{where} has {_count_columns(cells)}: {FORM_HINT}, or add a header with one column "
            "named image and one column named label"
        )
    if not is_header and is_image_name(cells[1]) and not is_image_name(cells[0]):
        raise DataError(
            f"{where} has the image {cells[1]} in its second column: {FORM_HINT}, or add the header label,image"
        )
    return ListColumns(2, 0, 1), is_header


class _ImageRoot:
    """Folder that contains all listed images."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(Path(folder).absolute())
        self._prefixes = {os.path.join(path, "") for path in (self.folder, os.path.realpath(folder))}

    def resolve_path(self, image: str, where: str) -> str:
        """Return the path of an image. Raise DataError if the path is outside the folder."""
        path = os.path.normpath(os.path.join(self.folder, image))
        if not any(path.startswith(start) for start in self._prefixes):
            raise DataError(
                f"{where} lists {image}, which is outside {self.folder}: use --data-dir to set the "
                "folder that contains all listed images"
            )
        return path


def _count_columns(cells: Sequence[str]) -> str:
    return f"{len(cells)} column{'s' * (len(cells) != 1)}"


# --- record files

RECORD_KIND, RECORD_ENDING, LABEL_NAMES_ENDING = "record", ".rec", ".lst"
FRAME = struct.Struct("<II")  # the magic number, and the length of the data
LENGTH_MASK = 2**29 - 1  # bits of the length; higher bits mark the first, middle and last frame
MAGIC_BYTES = 4
REMAKE_HINT = "create the file again with im2rec"


def load_records(path: str, val_share: Optional[float] = None, **options: Any) -> Dataset:
    """Load images from record files. Raises DataError if a file is invalid.

    ``path``: ``train.rec,val.rec``, or only ``train.rec`` if val.rec is in the same folder or if
    ``val_share`` is given. ``val_share``: see `load_list`. ``options``: see `make_image_dataset`.
    """
    images = find_record_images(path, val_share)
    return make_image_dataset(images, to_plain_name(images.name, RECORD_KIND), **options)


def find_record_images(path: str, val_share: Optional[float] = None) -> ListedImages:
    """Find the byte positions and labels of all records. For arguments, see `load_records`.

    Raises DataError for invalid files.
    """
    train, val = find_train_and_val_files(path, RECORD_ENDING, RECORD_KIND, val_share)
    records = read_records(train)
    return ListedImages(records, None if val is None else read_records(val), val_share)


def read_records(path: Path) -> ImageList:
    """Read the positions and labels of the images in a record file.

    Raises a DataError that names the record if it is damaged or does not have exactly one label.
    """
    ranges: List[List[ByteRange]] = []
    labels: List[int] = []
    ids: List[int] = []
    with convert_read_errors(path, "file"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, record in enumerate(_iterate_records(path, size)):
            name = record_name(str(path), number)
            header = _unpack_header(record.content, name)
            labels.append(header.label)
            ids.append(header.id)
            ranges.append(_content_ranges(file, record, header.size))
    if not labels:
        raise DataError(f"{path} contains no records: {REMAKE_HINT}")
    keys = ids if len(set(ids)) == len(ids) else range(len(ids))
    return ImageList(
        path, FileSegments(str(path), ranges), labels, list(map(str, keys)), _read_label_names(path, labels)
    )


class _Record(NamedTuple):
    """A record as MXNet reads it, with its start and end in the file."""

    content: bytes
    begin: int
    end: int


class _Header(NamedTuple):
    label: int
    id: int
    size: int  # bytes before the image


def _iterate_records(path: Path, size: int) -> Iterator[_Record]:
    """Yield the records in a file of ``size`` bytes in order, and show a progress bar."""
    from mxnet.base import MXNetError
    from mxnet.recordio import MXRecordIO

    bar = tqdm(desc=path.name, total=size, unit="B", unit_scale=True, disable=None, leave=False, dynamic_ncols=True)
    begin = count = 0
    with bar:
        try:
            reader = MXRecordIO(str(path.absolute()), "r")
            try:
                while True:
                    content = reader.read()
                    if content is None:
                        break
                    end = _reader_position(reader)
                    yield _Record(content, begin, end)
                    bar.update(end - begin)
                    begin, count = end, count + 1
            finally:
                reader.close()
        except (MXNetError, UnicodeError):
            raise _damaged_records_error(path, count, begin, size) from None


def _damaged_records_error(path: Path, count: int, begin: int, size: int) -> DataError:
    """Return the error for a record file of ``size`` bytes that is damaged after ``count`` records.

    ``begin``: the byte at which the damaged record starts.
    """
    where = f"after {count:,} record{'s' * (count != 1)}" if count else "at its beginning"
    return DataError(
        f"{path} is truncated, damaged or not a record file {where}, at byte {begin:,} of {size:,}: {REMAKE_HINT}"
    )


def _reader_position(reader: Any) -> int:
    """Return the byte at which the next record starts.

    MXNet's Python reader has no method for this position, so the C function is called.
    """
    from mxnet.base import _LIB, check_call

    position = ctypes.c_size_t()
    check_call(_LIB.MXRecordIOReaderTell(reader.handle, ctypes.byref(position)))
    return int(position.value)


def _unpack_header(content: bytes, name: str) -> _Header:
    """Unpack a record's label and id. Raise DataError unless there is exactly one label."""
    from mxnet.recordio import unpack

    try:
        header, image = unpack(content)
    except (struct.error, ValueError):
        raise DataError(f"{name} does not contain an image with a label: {REMAKE_HINT}") from None
    values = [header.label] if header.flag == 0 else list(map(float, header.label))
    if len(values) != 1:
        raise DataError(
            f"{name} has a label of {len(values)} numbers, such as boxes or several classes: create the file "
            "with one class number for each image"
        )
    return _Header(to_class_number(values[0], name), int(header.id), len(content) - len(image))


def _content_ranges(file: BinaryIO, record: _Record, skipped: int) -> List[ByteRange]:
    """Return the byte ranges of a record's content, without the first ``skipped`` bytes.

    A record whose content contains the magic number is stored in several frames. The content is cut
    at each magic number, which is left out. Each frame starts with a magic number, so the start of
    the next frame replaces the omitted magic number.
    """
    size, remaining, position = len(record.content), len(record.content), record.begin
    if record.end - position == FRAME.size + size + -size % 4:  # a single frame, the usual case
        return [(position + FRAME.size + skipped, size - skipped)]
    ranges = []
    while remaining > 0:
        file.seek(position)
        begin, length = position + FRAME.size, FRAME.unpack(file.read(FRAME.size))[1] & LENGTH_MASK
        position = begin + length
        if length < remaining:
            length += MAGIC_BYTES
        skipped_here = min(skipped, length)
        if length > skipped_here:
            ranges.append((begin + skipped_here, length - skipped_here))
        skipped, remaining = skipped - skipped_here, remaining - length
    return ranges


def _read_label_names(path: Path, labels: Sequence[int]) -> Mapping[Label, str]:
    """Return the class name of each label, from the .lst file next to a record file.

    A class has the name of the folder that contains its images. Returns {} if there is no .lst
    file, or if the images of a label do not have a separate folder.
    """
    folders: Dict[int, Set[str]] = {}
    try:
        with path.with_suffix(LABEL_NAMES_ENDING).open(encoding="utf-8") as lines:
            for line in lines:
                _, *middle, image = line.rstrip("\n").split("\t")
                label = float(middle[0])
                folders.setdefault(int(label), set()).add(image.rpartition("/")[0])
    except (OSError, ValueError, IndexError, OverflowError):  # missing or another format
        return {}
    label_names: Dict[Label, str] = {
        label: unicodedata.normalize("NFC", min(names)) for label, names in folders.items() if len(names) == 1
    }
    is_complete = len(label_names) == len(folders) and set(labels) <= set(folders)
    are_distinct = len(set(label_names.values())) == len(label_names)
    are_distinct = are_distinct and all(name and name.isprintable() for name in label_names.values())
    return label_names if is_complete and are_distinct else {}
