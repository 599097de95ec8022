"""Loads Imagenette, and folders of images: train/CLASS/* and val/CLASS/* (or test/CLASS/*).

For the possible layouts, see docs/data.md. This module finds, lists and checks the files, and
`gluonlab.data.sets.image_file_dataset` decodes them. `gluonlab.data.sets.packed_folder` reads
packed folders.
"""

from __future__ import annotations

import dataclasses
import os
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from gluonlab.data.fetching.data_folders import convert_read_errors, data_root, download_command
from gluonlab.data.fetching.download_sources import SOURCES
from gluonlab.data.images.image_locations import ENDINGS, is_image_name
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.image_file_dataset import (
    DEFAULTS,
    HOLD_OUT_OPTION,
    PHOTO_NORMALIZATION,
    TRAIN,
    VAL,
    make_image_dataset,
    select_held_out,
)
from gluonlab.data.sets.packed_folder import is_packed, read_packed
from gluonlab.errors import DataError
from gluonlab.plain_text import shorten_names, to_plain_name

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Labels

ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
LAYOUT = "train and val folders, each with one folder of images per class"
# folders that file managers, archives and disks create
SYSTEM_FOLDERS = ("__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found")
# suffixes of images in unsupported formats, for a warning
CONVERTIBLE = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw")
MAX_ENDINGS = 4  # file endings that a message names; the others are only counted


def load_folder(
    path: "str | os.PathLike[str]", val_share: Optional[float] = None, name: Optional[str] = None, **options: Any
) -> Dataset:
    """Load a folder of images, or a packed folder (`gluonlab.data.sets.packed_folder`).

    Files that are not images are left out, with a warning. Raises DataError for an invalid folder.

    ``val_share``: the fraction of each class that is held out for validation if there is no val
    folder (see `select_held_out`). ``options``: see `make_image_dataset`.
    """
    if is_packed(Path(path)):
        return _load_packed(path, val_share, name, **options)
    folder = ImageFolder(path, val_share)
    return make_image_dataset(folder, name or to_plain_name(folder.root.resolve().name, "folder"), **options)


def _load_packed(
    path: "str | os.PathLike[str]",
    val_share: Optional[float],
    name: Optional[str],
    image_size: Optional[int] = None,
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    memory: int = 0,
    random_resized_crop: bool = False,
    resizer: Optional[str] = None,
) -> Dataset:
    """Load a packed folder. Raise DataError for options that need image files."""
    if random_resized_crop:
        raise DataError(
            f"--random-resized-crop needs image files, but {path} is packed: use the original folder instead"
        )
    if decoders or skip_bad or resizer:
        option = "--workers" if decoders else "--skip-corrupt" if skip_bad else "--resizer"
        raise DataError(f"the images in {path} are already decoded: omit {option}")
    if val_share is not None:
        raise DataError(
            f"--val-split {val_share:g} cannot be used with {path}, because the packed folder already "
            "contains validation images: omit --val-split"
        )
    packed_name, train, test, classes = read_packed(Path(path), image_size, memory)
    return Dataset(name or packed_name, train, test, classes, DEFAULTS, PHOTO_NORMALIZATION)


# --- the classes and files of a folder


class ImageFolder:
    """The classes and image files in a folder.

    Attributes:
        root: The folder that contains train. This folder may be a subfolder of the given folder.
        train: Paths and labels of the training images.
        val: Paths and labels of the validation images.
        classes: Names of the folders in train, sorted, in Unicode form NFC.
        other_files: Files that are not images.
        loose_images: Images outside the class folders.
        untested_classes: Classes without validation images.

    ``val_share``: see `load_folder`. Raises a DataError that names the invalid folder or file.
    """

    def __init__(self, root: "str | os.PathLike[str]", val_share: Optional[float] = None) -> None:
        self.root, train, val = find_train_and_val(Path(root), val_share)
        train_folders = _class_folders(train)
        self.classes = tuple(train_folders)
        if len(self.classes) < 2:
            raise DataError(f"{train} {_explain_too_few_classes(train, self.classes)}")
        self.other_files: List[str] = []
        self.untested_classes: List[str] = []
        self.loose_images = list_loose_images(train)
        if val is None:
            assert val_share is not None
            self.train, self.val = self._hold_out(train_folders, val_share)
            return
        val_folders = _class_folders(val)
        _check_same_classes(train_folders, train, val_folders, val)
        self.loose_images += list_loose_images(val)
        self.train, self.val = self._label_files(train_folders), self._label_files(val_folders)

    def warnings(self) -> List[str]:
        """Return warnings about omitted files, and about classes without validation images."""
        messages = []
        if self.other_files:
            endings = convertible_endings(self.other_files)
            advice = f"; convert {endings} to JPEG or PNG to use them" if endings else ""
            messages.append(
                f"skipped {format_count(self.other_files, 'file')} in unsupported formats "
                f"({count_file_endings(self.other_files)}), such as {self.other_files[0]}{advice}"
            )
        if self.loose_images:
            messages.append(
                f"skipped {format_count(self.loose_images, 'image')} outside of the class folders, such "
                f"as {self.loose_images[0]}"
            )
        if self.untested_classes:
            messages.append(
                "no image is held out for validation of classes with a single image: "
                f"{shorten_names(self.untested_classes)}"
            )
        return messages

    def _label_files(self, classes: Dict[str, Path]) -> "Tuple[List[str], Labels]":
        """Return the paths and class numbers of all images in the class folders.

        ``classes``: the folder of each class, by the class's name.
        """
        paths_by_class = [self._list_images(classes[name]) for name in self.classes]
        return _label_paths(paths_by_class)

    def _hold_out(
        self, classes: Dict[str, Path], share: float
    ) -> "Tuple[Tuple[List[str], Labels], Tuple[List[str], Labels]]":
        """Divide the images into training and validation images.

        ``share``: the fraction of each class that is held out for validation.
        """
        train, val = [], []
        for name, folder in classes.items():
            paths = self._list_images(folder)
            held_out = select_held_out([f"{name}/{Path(path).name}" for path in paths], share)
            train.append([path for path, is_held_out in zip(paths, held_out) if not is_held_out])
            val.append([path for path, is_held_out in zip(paths, held_out) if is_held_out])
            if not val[-1]:
                self.untested_classes.append(name)
        if len(self.untested_classes) == len(classes):
            raise DataError(
                f"every class of {self.root} has only one image, but --val-split {share:g} needs a class with "
                "at least two: add images"
            )
        return _label_paths(train), _label_paths(val)

    def _list_images(self, folder: Path) -> List[str]:
        images, other_files = list_class_files(folder)
        self.other_files += other_files
        return images


def _label_paths(paths_by_class: Sequence[List[str]]) -> "Tuple[List[str], Labels]":
    """Return all paths, and the class index of each path as an int32 array (n,)."""
    numbers = np.arange(len(paths_by_class), dtype=np.int32)
    labels = np.repeat(numbers, [len(paths) for paths in paths_by_class])
    return [path for paths in paths_by_class for path in paths], labels


def _class_folders(part: Path) -> Dict[str, Path]:
    """Return {class name: folder}, sorted by name. ``part``: the train or val folder.

    Raises DataError for a name that is not UTF-8, or for two equal names.
    """
    class_folders: Dict[str, Path] = {}
    for entry in list_folders(part):
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{part} contains a folder whose name is not UTF-8, {os.fsencode(entry.name)!r}: rename this folder"
            ) from None
        name = unicodedata.normalize("NFC", entry.name)
        if name in class_folders:
            raise DataError(
                f"{part} contains two folders named {name}, which differ only in their Unicode normalization "
                "(NFC and NFD): move all images into one of the folders"
            )
        class_folders[name] = Path(entry.path)
    return dict(sorted(class_folders.items()))


def _explain_too_few_classes(part: Path, classes: Sequence[str]) -> str:
    """Return the error message for a folder with too few classes, including how to fix it."""
    advice = "add at least two folders, each with the images of one class"
    if classes:
        return f"has only one class folder, {classes[0]}: {advice}"
    images = list_loose_images(part)
    if images:
        advice = f"and {format_count(images, 'image')} outside of class folders: {advice}"
        return f"has no class folders, {advice}"
    return f"has no class folders: {advice}"


def _check_same_classes(train_folders: Dict[str, Path], train: Path, val_folders: Dict[str, Path], val: Path) -> None:
    """Raise DataError if the training and validation folders have different classes."""
    pairs = ((train_folders, val_folders, train, val), (val_folders, train_folders, val, train))
    for folders, other_folders, part, other_part in pairs:
        missing = min(set(folders) - set(other_folders), default=None)
        if missing is None:
            continue
        similar = [name for name in other_folders if _simplify_name(name) == _simplify_name(missing)]
        hint = f" (it has {similar[0]!r})" if similar else ""
        raise DataError(
            f"{part} has the class {missing}, which {other_part} does not have{hint}: use the same "
            "class folders in both"
        )


def _simplify_name(name: str) -> str:
    """Reduce a name to lower-case letters and digits, so that typos can be found."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


# --- the training and validation folders


SplitFolders = Tuple[Path, Path, Optional[Path]]  # the parent of train, train, and val


def find_train_and_val(root: Path, val_share: Optional[float]) -> SplitFolders:
    """Return the folder that contains train, the train folder, and the val folder (or None).

    The train folder is in ``root`` or in a subfolder of ``root``. With ``val_share``, the class
    folders may also be directly in ``root``. If they are in ``root``, ``root`` is returned as the
    train folder. Raises DataError if there is no train folder, or if there is a val folder and
    ``val_share`` is given.
    """
    with convert_read_errors(root, "folder"):
        if not root.is_dir():
            raise DataError(f"{root} {_explain_no_folder(root)}")
    parent = _find_folder_with_train(root)
    if parent is None:
        return _find_classes_without_train(root, val_share)
    train, val = _find_subfolder(parent, TRAIN), _find_subfolder(parent, VAL)
    assert train is not None
    if val_share is None and val is None:
        raise DataError(
            f"{parent} has no val folder: add {HOLD_OUT_OPTION} to hold out training images, or use a "
            f"folder with {LAYOUT}"
        )
    if val_share is not None and val is not None:
        raise DataError(
            f"--val-split {val_share:g} is only for data without a val folder, but {val} exists: omit "
            "--val-split, or remove this folder"
        )
    return parent, train, val


def _find_folder_with_train(root: Path) -> Optional[Path]:
    """Return ``root`` or its subfolder, whichever contains a train folder; None if neither does."""
    if _find_subfolder(root, TRAIN) is not None:
        return root
    subfolders = [Path(entry.path) for entry in list_folders(root)]
    parents = [folder for folder in subfolders if _find_subfolder(folder, TRAIN) is not None]
    if len(parents) > 1:
        names = ", ".join(folder.name for folder in parents[:3])
        raise DataError(
            f"{root} has no train folder, but {len(parents)} of its subfolders have one ({names}): use one "
            f"of these subfolders, such as folder:{parents[0]}"
        )
    return parents[0] if parents else None


def _find_subfolder(folder: Path, names: Sequence[str]) -> Optional[Path]:
    """Return the first subfolder with one of the ``names``, such as val, Val or VAL, or None."""
    spellings = [spelling for name in names for spelling in (name, name.capitalize(), name.upper())]
    # os.path.isdir, because Path.is_dir raises for an unreadable parent
    candidates = (folder / name for name in spellings if os.path.isdir(folder / name))
    return next(candidates, None)


def _find_classes_without_train(root: Path, val_share: Optional[float]) -> SplitFolders:
    """Return ``root``, or its only subfolder, as the training folder that contains the classes.

    Raises DataError if there are no class folders, or if ``val_share`` is None.
    """
    parent = root if _class_folder_names(root) else None
    subfolders = [Path(entry.path) for entry in list_folders(root)]
    if len(subfolders) == 1 and subfolders[0] != _find_subfolder(root, VAL) and _class_folder_names(subfolders[0]):
        parent = subfolders[0]
    if parent is not None and val_share is not None:
        return parent, parent, None
    raise DataError(f"{root} {_explain_missing_train(root, parent)}")


def _class_folder_names(folder: "str | os.PathLike[str]") -> List[str]:
    """Return the names of the subfolders that contain images."""
    return [entry.name for entry in list_folders(folder) if list_loose_images(entry.path)]


def _explain_missing_train(root: Path, class_parent: Optional[Path]) -> str:
    """Return the error message for a folder without a train folder, including how to fix it."""
    for part in (root, root.parent):
        if part.name.lower() in (*TRAIN, *VAL):
            return f"has no train folder, and is part of a data set: use folder:{part.parent}"
    val = _find_subfolder(root, VAL)
    if val is not None:
        return f"has a {val.name} folder, but no train folder: use a folder with {LAYOUT}"
    if class_parent is not None:
        names = ", ".join(_class_folder_names(class_parent)[:3])
        return (
            f"has no train folder, but folders of images ({names}): add {HOLD_OUT_OPTION} to use "
            "these folders as classes, and hold images out for validation"
        )
    images = list_loose_images(root)
    if images:
        return (
            f"has no train folder, but {format_count(images, 'image')} without a class: move the "
            f"images of each class into a separate folder, {root}/CLASS, and train with "
            f"{HOLD_OUT_OPTION}"
        )
    for entry in list_folders(root):
        for subfolder in (Path(subentry.path) for subentry in list_folders(entry.path)):
            if _find_subfolder(subfolder, TRAIN) or len(_class_folder_names(subfolder)) > 1:
                return f"has no train folder, but images in deeper folders: use folder:{subfolder}"
    return f"has no train folder: use a folder with {LAYOUT}, or one folder of images per class and {HOLD_OUT_OPTION}"


def _explain_no_folder(root: Path) -> str:
    """Return the error message for a path that is not a folder, including how to fix it."""
    if not root.exists():
        return f"does not exist: use a folder with {LAYOUT}"
    if root.name.lower().endswith(ARCHIVES):
        return f"is a file: unpack it, and use a folder with {LAYOUT}"
    return f"is a file: use a folder with {LAYOUT}"


# --- the content of a folder


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is ignored, because it is hidden or belongs to the system."""
    return name.startswith(".") or name.lower() in SYSTEM_FOLDERS


def list_entries(folder: "str | os.PathLike[str]") -> "List[os.DirEntry[str]]":
    """Return a folder's entries, sorted by name, without hidden entries.

    Raise DataError on failure.
    """
    with convert_read_errors(Path(folder), "folder"), os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not is_hidden(entry.name)), key=lambda e: e.name)


def list_folders(folder: "str | os.PathLike[str]") -> "List[os.DirEntry[str]]":
    """Return a folder's subfolders, sorted by name, without hidden folders.

    Raise DataError on failure.
    """
    return [entry for entry in list_entries(folder) if is_folder(entry)]


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Return whether an entry is a folder, or a link to a folder."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def list_loose_images(folder: "str | os.PathLike[str]") -> List[str]:
    """Return the paths of the images directly in a folder."""
    entries = list_entries(folder)
    return [entry.path for entry in entries if is_image_name(entry.name) and not is_folder(entry)]


def list_class_files(folder: Path) -> Tuple[List[str], List[str]]:
    """Return two sorted lists of paths in a class folder: images, and all other entries.

    Paths of subfolders end with a slash. Raises DataError if there are no images, if an image is
    not a regular file, or if a subfolder contains images.
    """
    images, other_files = [], []
    for entry in list_entries(folder):
        if is_folder(entry):
            if _holds_images(entry.path):
                raise DataError(
                    f"the images in {entry.path} are in a subfolder of a class folder: move them into the class "
                    "folder itself"
                )
            other_files.append(entry.path + os.sep)
        elif is_image_name(entry.name):
            _check_regular_file(entry)
            images.append(entry.path)
        else:
            other_files.append(entry.path)
    if not images:
        note = f", only {count_file_endings(other_files)}" if other_files else ""
        raise DataError(f"{folder} contains no images{note}: add images ({ENDINGS}) to this class folder, or remove it")
    return images, other_files


def count_file_endings(paths: Sequence[str]) -> str:
    """Return text with the number of paths for each file extension.

    >>> count_file_endings(["a/Thumbs.db", "a/x.txt", "b/y.TXT", "b/README"])
    '2 .txt, 1 .db, 1 without ending'
    """
    most_common = Counter(map(_ending_or_kind, paths)).most_common(MAX_ENDINGS)
    counts = [f"{count:,} {ending}" for ending, count in most_common]
    rest = len(paths) - sum(count for _, count in most_common)
    return ", ".join([*counts, *([f"{rest:,} others"] if rest else [])])


def _ending_or_kind(path: str) -> str:
    if path.endswith(os.sep):
        return "folder without images"
    return Path(path).suffix.lower() or "without ending"


def format_count(paths: Sequence[str], noun: str) -> str:
    """Return text with the number of paths, such as ``1 file`` or ``1,200 files``."""
    return f"{len(paths):,} {noun}{'' if len(paths) == 1 else 's'}"


def convertible_endings(paths: Sequence[str]) -> str:
    """Return text with the extensions of unsupported image formats among ``paths``."""
    endings = {Path(path).suffix.lower() for path in paths} & set(CONVERTIBLE)
    return " and ".join(sorted(endings))


def _check_regular_file(entry: "os.DirEntry[str]") -> None:
    """Raise DataError unless an entry is a regular file."""
    try:
        regular = entry.is_file()
    except OSError:
        regular = False
    if not regular:  # reading a pipe would wait
        raise DataError(f"{entry.path} is a broken link, or is not a regular file: replace or remove it")


def _holds_images(folder: str) -> bool:
    """Return whether a folder or one of its subfolders contains images."""
    return any(is_image_name(name) and not is_hidden(name) for _, _, names in os.walk(folder) for name in names)


# --- Imagenette

# Ten easy classes of ImageNet: https://github.com/fastai/imagenette. Version 1 (imagenette) and
# version 2 (imagenette2) have different splits. -320 and -160: the short side's length in pixels.
IMAGENETTE_NAMES = tuple(
    f"{version}{size}" for version in ("imagenette", "imagenette2") for size in ("", "-320", "-160")
)
IMAGENETTE_CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def imagenette_summary(name: str) -> str:
    """Describe one of IMAGENETTE_NAMES in one line.

    >>> imagenette_summary("imagenette2-320")
    'JPEGs of ten classes of ImageNet, version 2, short side 320: in color, 10 classes'
    """
    version, _, size = name.partition("-")
    number, side = version[-1:] if version[-1].isdigit() else 1, f"short side {size}"
    images = f"JPEGs of ten classes of ImageNet, version {number}, {side if size else 'full size'}"
    return f"{images}: in color, 10 classes"


def load_imagenette(
    name: str, root: Optional[str] = None, val_share: Optional[float] = None, **options: Any
) -> Dataset:
    """Load one of IMAGENETTE_NAMES from its unpacked folder. For options, see `load_folder`."""
    dataset = load_folder(find_imagenette(name, root), val_share, name, **options)
    if set(dataset.classes) == set(IMAGENETTE_CLASSES.values()):  # packed with these names
        return dataset
    if dataset.classes != tuple(IMAGENETTE_CLASSES):
        classes, expected = ", ".join(dataset.classes), ", ".join(IMAGENETTE_CLASSES)
        raise DataError(f"{dataset.name} has the classes {classes} instead of {expected}: download it again")
    return dataclasses.replace(dataset, classes=tuple(IMAGENETTE_CLASSES.values()))


def find_imagenette(name: str, root: Optional[str]) -> Path:
    """Return the folder of an Imagenette data set: a packed folder, or a folder with train and val.

    The folder is ``root``/``name``, ``root``/``name``/``name`` or ``root``. If ``root`` is None,
    the default folder is used (see `gluonlab.data.fetching.data_folders`). Raises DataError if the
    folder is missing.
    """
    if root is not None and not os.path.isdir(root):
        raise DataError(f"--data-dir {root} is not a folder: use the folder that contains {name}/train and {name}/val")
    parent = data_root(root)
    folders = [parent / name, parent / name / name, parent]
    dataset_folder = next((folder for folder in folders if os.path.isdir(folder / "train") or is_packed(folder)), None)
    if dataset_folder is None:
        advice = f"run {download_command(name, root)}" if name in SOURCES else f"unpack {name}.tgz in {parent}"
        raise DataError(
            f"{name} was not found, because neither {folders[0]} nor {parent} contains a train folder: {advice}, or "
            "use another --data-dir"
        )
    return dataset_folder
