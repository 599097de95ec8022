"""CSV lists of images: one line per image, with its path and its label."""

from __future__ import annotations

import csv
import os
import unicodedata
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from tqdm import tqdm

from gluonlab.data.fetching.location import readable
from gluonlab.data.images.formats import is_image_name
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.folder import decoded
from gluonlab.data.sets.listed import Listed, ListedImages, find_files
from gluonlab.errors import DataError, warn
from gluonlab.plain import plain_name

KIND, ENDING = "list", ".csv"
# names that a header may use
IMAGE = ("image", "path", "file", "filename", "filepath", "image_path", "image_file", "img")
LABEL = ("label", "class", "target", "category", "class_name", "y")
OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
FORM = "write image,label in each line"
QUOTED = 'put a name with a comma into quotes, as "a, b.jpg"'


class Columns(NamedTuple):
    """The number of columns of a list, and the indices of the image and label columns."""

    many: int
    image: int
    label: int


class Row(NamedTuple):
    """A line of a list, with its number from 1."""

    line: int
    cells: List[str]


def load(
    path: str,
    root: Optional[str] = None,
    image_size: Optional[int] = None,
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    memory: int = 0,
    random_resized_crop: bool = False,
    val_share: Optional[float] = None,
    resizer: Optional[str] = None,
) -> Dataset:
    """Load the images that ``path`` lists; options as for `gluonlab.data.sets.folder.load`.

    ``path``: ``train.csv``, with val.csv in the same folder or with ``val_share``, or
    ``train.csv,val.csv``. ``root``: the folder of the images; by default the folder of each list.
    Raises DataError.
    """
    images = find_images(path, root, val_share)
    name = plain_name(images.name, KIND)
    options = (image_size, decoders, skip_bad, memory, random_resized_crop, resizer)
    return decoded(images, name, *options)


def find_images(
    path: str, root: Optional[str] = None, val_share: Optional[float] = None
) -> ListedImages:
    """Find the listed images for `load`. Raises DataError."""
    files = find_files(path, ENDING, KIND, val_share)
    if root is not None and not os.path.isdir(root):
        raise DataError(f"--data-dir {root} is not a folder: give the one with the listed images")
    train = read_list(files.train, Path(root or files.train.parent))
    if files.val is None:
        return ListedImages(train, None, val_share)
    val = read_list(files.val, Path(root or files.val.parent))
    common = {*train.places} & {*val.places}
    if common:
        warn(
            f"{len(common)} image{'s are' if len(common) > 1 else ' is'} listed for training and "
            f"for validation, such as {min(map(str, common))}: accuracies will be too high"
        )
    return ListedImages(train, val, val_share)


def read_list(path: Path, folder: Path) -> Listed:
    """Read a CSV file that lists images in ``folder`` and their labels.

    Raises DataError that names the invalid line.
    """
    inside = _Inside(folder)
    lines: Dict[str, int] = {}  # of each image
    labels: List[str] = []
    missing: List[Tuple[int, str]] = []
    bar = tqdm(desc=path.name, unit=" lines", disable=None, leave=False, dynamic_ncols=True)
    with bar:
        for line, image, label in _entries(path, folder):
            place = inside.place(image, f"{path}, line {line}")
            if place in lines:
                raise DataError(
                    f"{path}, line {line} lists {image}, as line {lines[place]} does: "
                    "list each image once"
                )
            lines[place] = line
            labels.append(label)
            if not os.path.isfile(place):
                missing.append((line, image))
            bar.update()
    if missing:
        line, image = missing[0]
        slashes = "; write / between folders, not \\" if "\\" in image else ""
        raise DataError(
            f"{path} lists {len(lines):,} images, and {len(missing):,} of them are missing or not "
            f"regular files, such as {image} in line {line}: paths are relative to {folder}, or to "
            f"the folder that --data-dir names{slashes}"
        )
    if not lines:
        raise DataError(f"{path} lists no images: {FORM}")
    keys = [os.path.relpath(place, inside.folder) for place in lines]
    return Listed(path, list(lines), labels, keys)


def _entries(path: Path, folder: Path) -> Iterator[Tuple[int, str, str]]:
    """Yield the number, image and label of each line; skip the header."""
    columns: Optional[Columns] = None
    for row in _rows(path):
        where = f"{path}, line {row.line}"
        if columns is None:
            columns, is_header = _columns(row, where, folder)
            if is_header:
                continue
        if len(row.cells) != columns.many:
            raise DataError(
                f"{where} has {_many(row.cells)}, but the first line has {columns.many}: {QUOTED}"
            )
        image, label = row.cells[columns.image], row.cells[columns.label]
        if not image or "\0" in image:
            raise DataError(f"{where} names no image: {FORM}")
        if not label or not label.isprintable():
            raise DataError(f"{where} has no label for {image}: {FORM}, or remove the line")
        yield row.line, image, unicodedata.normalize("NFC", label)


def _rows(path: Path) -> Iterator[Row]:
    """Yield the lines of a CSV file that are not empty."""
    try:
        with readable(path, "file"), path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            for cells in rows:
                cells = [cell.strip() for cell in cells]
                if any(cells):
                    yield Row(rows.line_num, cells)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8: save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(
            f"{path}, line {rows.line_num} is not CSV ({error}): close each quote, and write a "
            'quote in a name twice, as "a ""b"".jpg"'
        ) from None


def _columns(first: Row, where: str, folder: Path) -> Tuple[Columns, bool]:
    """Return the columns of the first line, and whether it is a header."""
    cells = first.cells
    if len(cells) == 1:
        found = next((sign for sign in OTHER_SEPARATORS if sign in cells[0]), None)
        why = f", separated by {OTHER_SEPARATORS[found]}: use commas" if found else f": {FORM}"
        raise DataError(f"{where} has 1 column{why}")
    is_header = not any(is_image_name(cell) for cell in cells)
    if is_header and cells[0] and "\0" not in cells[0]:
        is_header = not os.path.isfile(os.path.join(folder, cells[0]))
    if is_header:
        names = [cell.lower() for cell in cells]
        images = [place for place, name in enumerate(names) if name in IMAGE]
        labels = [place for place, name in enumerate(names) if name in LABEL]
        if len(images) == len(labels) == 1:
            return Columns(len(cells), images[0], labels[0]), True
        if len(labels) > 1:
            several = ", ".join(cells[place] for place in labels)
            raise DataError(
                f"{where} has {len(labels)} columns that may be the label, {several}: leave one"
            )
    if len(cells) != 2:
        raise DataError(
            f"{where} has {_many(cells)}: {FORM}, or a header that calls one column image and one "
            "label"
        )
    if not is_header and is_image_name(cells[1]) and not is_image_name(cells[0]):
        raise DataError(
            f"{where} has the image {cells[1]} in its second column: {FORM}, "
            "or begin with a header, label,image"
        )
    return Columns(2, 0, 1), is_header


class _Inside:
    """A folder that no listed path may leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(Path(folder).absolute())
        self._starts = {os.path.join(each, "") for each in (self.folder, os.path.realpath(folder))}

    def place(self, image: str, where: str) -> str:
        """Return the path of an image. Raises DataError if it is outside the folder."""
        place = os.path.normpath(os.path.join(self.folder, image))
        if not any(place.startswith(start) for start in self._starts):
            raise DataError(
                f"{where} lists {image}, which is outside {self.folder}: give the folder that "
                "holds all listed images with --data-dir"
            )
        return place


def _many(cells: Sequence[str]) -> str:
    return f"{len(cells)} column{'s' * (len(cells) != 1)}"
