"""Data sets of folders of images: one for each class, below train/ and below val/ (or test/).

docs/own-images.md describes how folders may look. What is in them is checked as it is listed. A
folder that was packed (`gluonlab.data.sets.packed_folder`) is read as it lies on the disk.
Imagenette is such a folder, too.
"""

from __future__ import annotations

import dataclasses
import os
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from gluonlab.data.fetching.data_folders import data_root, download_command, readable
from gluonlab.data.fetching.download_sources import SOURCES
from gluonlab.data.images.image_locations import ENDINGS, is_image_name
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.image_files import (
    DEFAULTS,
    HOLD_OUT,
    PHOTOGRAPHS,
    TRAIN,
    VAL,
    decoded,
    held_out,
)
from gluonlab.data.sets.packed_folder import is_packed, read
from gluonlab.errors import DataError
from gluonlab.plain_text import shorten_names, to_plain_name

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Labels

ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
LAYOUT = "folders train and val (or test), each with a folder of images for every class"
# what file managers, archives and disks put beside a user's files
NOBODYS = ("__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found")
# images that are not read here, which somebody may miss
CONVERTIBLE = (
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw",
)  # fmt: skip
MOST_KINDS = 4  # endings that are named; the others are counted


def load(
    path: "str | os.PathLike[str]",
    val_share: Optional[float] = None,
    name: Optional[str] = None,
    **options: Any,
) -> Dataset:
    """The folder ``path``, or what `gluonlab.data.sets.packed_folder` made of one, as a data set.

    ``val_share``: of a folder without val, so much of each class is held out for it (`held_out`).
    ``options``: see `decoded`. What is no image is left out with one warning. Raises DataError.
    """
    if is_packed(Path(path)):
        return _load_packed(path, val_share, name, **options)
    folder = ImageFolder(path, val_share)
    return decoded(folder, name or to_plain_name(folder.root.resolve().name, "folder"), **options)


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
    if random_resized_crop:
        raise DataError(
            f"--random-resized-crop cuts image files, and {path} is packed: "
            "give the folder that it was made of"
        )
    if decoders or skip_bad or resizer:
        option = "--decoders" if decoders else "--skip-bad" if skip_bad else "--resizer"
        raise DataError(f"{path} is packed, so nothing is left to decode: leave {option} out")
    if val_share is not None:
        raise DataError(
            f"--val-share {val_share:g} is for folders without val, and {path} is packed with "
            "its validation images: leave --val-share out"
        )
    packed_name, train, test, classes = read(Path(path), image_size, memory)
    return Dataset(name or packed_name, train, test, classes, DEFAULTS, PHOTOGRAPHS)


# --- the classes and files of a folder


class ImageFolder:
    """The classes and files below a folder: ``train`` and ``val`` are (paths, labels).

    ``root``: the folder that has them, which may be one inside. ``val_share``: so much of each
    class is held out of train where there is no val. ``classes``: the names of train's folders,
    sorted, their letters composed (NFC). ``others``: what is no image; ``outside``: images that are
    in no class's folder; ``untested``: classes whose only image is for training. Raises DataError,
    naming the place, for a folder or file that does not belong there.
    """

    def __init__(self, root: "str | os.PathLike[str]", val_share: Optional[float] = None) -> None:
        self.root, train, val = find_parts(Path(root), val_share)
        ours = _class_folders(train)
        self.classes = tuple(ours)
        if len(self.classes) < 2:
            raise DataError(f"{train} {_too_few(train, self.classes)}")
        self.others: List[str] = []
        self.untested: List[str] = []
        self.outside = loose_images(train)
        if val is None:
            assert val_share is not None
            self.train, self.val = self._divided(ours, val_share)
            return
        theirs = _class_folders(val)
        _check_same(ours, train, theirs, val)
        self.outside += loose_images(val)
        self.train, self.val = self._files(ours), self._files(theirs)

    def remarks(self) -> List[str]:
        """What is left out, and which classes nothing tests: a line each."""
        said = []
        if self.others:
            converted = to_convert(self.others)
            cure = f"; convert {converted} to JPEG or PNG to use them" if converted else ""
            said.append(
                f"left out {counted(self.others, 'file')} in formats that are not read "
                f"({kinds(self.others)}), such as {self.others[0]}{cure}"
            )
        if self.outside:
            said.append(
                f"left out {counted(self.outside, 'image')} in no class's folder, "
                f"such as {self.outside[0]}"
            )
        if self.untested:
            said.append(
                "no image is held out for validation of classes with a single one: "
                f"{shorten_names(self.untested)}"
            )
        return said

    def _files(self, classes: Dict[str, Path]) -> "Tuple[List[str], Labels]":
        """The images of a part, whose folders are in the order of the classes."""
        of_each = [self._images(classes[name]) for name in self.classes]
        return _labelled(of_each)

    def _divided(
        self, classes: Dict[str, Path], share: float
    ) -> "Tuple[Tuple[List[str], Labels], Tuple[List[str], Labels]]":
        train, val = [], []
        for name, folder in classes.items():
            paths = self._images(folder)
            held = held_out([f"{name}/{Path(path).name}" for path in paths], share)
            train.append([path for path, out in zip(paths, held) if not out])
            val.append([path for path, out in zip(paths, held) if out])
            if not val[-1]:
                self.untested.append(name)
        if len(self.untested) == len(classes):
            raise DataError(
                f"every class of {self.root} has a single image: "
                f"--val-share {share:g} needs two of a class at least"
            )
        return _labelled(train), _labelled(val)

    def _images(self, folder: Path) -> List[str]:
        images, others = class_files(folder)
        self.others += others
        return images


def _labelled(of_each: Sequence[List[str]]) -> "Tuple[List[str], Labels]":
    numbers = np.arange(len(of_each), dtype=np.int32)
    labels = np.repeat(numbers, [len(paths) for paths in of_each])
    return [path for paths in of_each for path in paths], labels


def _class_folders(part: Path) -> Dict[str, Path]:
    """Class -> folder, sorted. Raises DataError for names that are no text, or the same."""
    found: Dict[str, Path] = {}
    for entry in folders(part):
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{part} has a folder whose name is not UTF-8, {os.fsencode(entry.name)!r}: "
                "rename it"
            ) from None
        name = unicodedata.normalize("NFC", entry.name)
        if name in found:
            raise DataError(
                f"{part} has two folders named {name}, whose letters are composed differently "
                "(Unicode's NFC and NFD): put the images of both into one"
            )
        found[name] = Path(entry.path)
    return dict(sorted(found.items()))


def _too_few(part: Path, classes: Sequence[str]) -> str:
    cure = "give at least two, each with the images of one class"
    if classes:
        return f"has folders for one class, {classes[0]}: {cure}"
    loose = loose_images(part)
    if loose:
        return f"has folders for no class, and {counted(loose, 'image')} directly in it: {cure}"
    return f"has folders for no class: {cure}"


def _check_same(ours: Dict[str, Path], train: Path, theirs: Dict[str, Path], val: Path) -> None:
    both = ((ours, theirs, train, val), (theirs, ours, val, train))
    for these, those, has, lacks in both:
        only = min(set(these) - set(those), default=None)
        if only is None:
            continue
        alike = [name for name in those if _folded(name) == _folded(only)]
        but = f" (it has {alike[0]!r})" if alike else ""
        raise DataError(
            f"{has} has the class {only}, which {lacks} lacks{but}: "
            "give both the same class folders"
        )


def _folded(name: str) -> str:
    """A name without what is easily mistyped."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


# --- where a folder has its training and its validation images


SplitFolders = Tuple[Path, Path, Optional[Path]]


def find_parts(root: Path, val_share: Optional[float]) -> SplitFolders:
    """Find the folder with train, train itself, and val, if any: ``root``, or a folder in it.

    With ``val_share``, folders of images that are in no train are training images. Raises DataError
    where there is no such place, or where ``val_share`` has nothing to divide.
    """
    with readable(root, "folder"):
        if not root.is_dir():
            raise DataError(f"{root} {_what_else(root)}")
    place = _place(root)
    if place is None:
        return _without_train(root, val_share)
    train, val = _part(place, TRAIN), _part(place, VAL)
    assert train is not None
    if val_share is None and val is None:
        raise DataError(
            f"{place} has no folder val or test: "
            f"hold images out of train with {HOLD_OUT}, or give one with {LAYOUT}"
        )
    if val_share is not None and val is not None:
        raise DataError(
            f"--val-share {val_share:g} holds images out of train, and {val} is there: "
            "leave --val-share out, or take that folder away"
        )
    return place, train, val


def _place(root: Path) -> Optional[Path]:
    """The folder with train: ``root``, or one in it."""
    if _part(root, TRAIN) is not None:
        return root
    inside = [Path(each.path) for each in folders(root)]
    found = [folder for folder in inside if _part(folder, TRAIN) is not None]
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found[:3])
        raise DataError(
            f"{root} has no folder train, but {len(found)} of its folders do ({names}): "
            f"give one of them, such as folder:{found[0]}"
        )
    return found[0] if found else None


def _part(folder: Path, names: Sequence[str]) -> Optional[Path]:
    spelt = [each for name in names for each in (name, name.capitalize(), name.upper())]
    # not Path's, which raises for a folder that may not be looked into
    found = (folder / name for name in spelt if os.path.isdir(folder / name))
    return next(found, None)


def _without_train(root: Path, val_share: Optional[float]) -> SplitFolders:
    """Folders of images that are in no train, as training images with ``val_share``."""
    place = root if _of_classes(root) else None
    inside = [Path(each.path) for each in folders(root)]
    if len(inside) == 1 and inside[0] != _part(root, VAL) and _of_classes(inside[0]):
        place = inside[0]
    if place is not None and val_share is not None:
        return place, place, None
    raise DataError(f"{root} {_what_instead(root, place)}")


def _of_classes(folder: "str | os.PathLike[str]") -> List[str]:
    """The names of folders with images in a folder."""
    return [entry.name for entry in folders(folder) if loose_images(entry.path)]


def _what_instead(root: Path, place: Optional[Path]) -> str:
    """What a folder without train has, and what to do."""
    for part in (root, root.parent):
        if part.name.lower() in (*TRAIN, *VAL):
            return f"has no folder train, and is a part of a data set: give folder:{part.parent}"
    val = _part(root, VAL)
    if val is not None:
        return f"has {val.name}, and no folder train: give one with {LAYOUT}"
    if place is not None:
        return (
            f"has no folder train, but folders of images ({', '.join(_of_classes(place)[:3])}): "
            f"{HOLD_OUT} takes them for classes, and holds images out for validation"
        )
    loose = loose_images(root)
    if loose:
        return (
            f"has no folder train, but {counted(loose, 'image')} of no class: put those of each "
            f"class into a folder of its own, {root}/CLASS, and train with {HOLD_OUT}"
        )
    for inside in folders(root):
        for deeper in (Path(each.path) for each in folders(inside.path)):
            if _part(deeper, TRAIN) or len(_of_classes(deeper)) > 1:
                return f"has no folder train, but images further down: give folder:{deeper}"
    return f"has no folder train: give one with {LAYOUT}, or folders of classes and {HOLD_OUT}"


def _what_else(root: Path) -> str:
    if not root.exists():
        return f"does not exist: give a folder with {LAYOUT}"
    if root.name.lower().endswith(ARCHIVES):
        return f"is a file: unpack it, and give the folder; it needs {LAYOUT}"
    return f"is a file: give a folder with {LAYOUT}"


# --- what lies in a folder: folders of classes, image files, and what is neither


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is nobody's image."""
    return name.startswith(".") or name.lower() in NOBODYS


def entries(folder: "str | os.PathLike[str]") -> "List[os.DirEntry[str]]":
    """What is in a folder, sorted by name, without what is hidden. Raises DataError."""
    with readable(Path(folder), "folder"), os.scandir(folder) as found:
        return sorted((each for each in found if not is_hidden(each.name)), key=lambda e: e.name)


def folders(folder: "str | os.PathLike[str]") -> "List[os.DirEntry[str]]":
    """The folders in a folder, as `entries`."""
    return [entry for entry in entries(folder) if is_folder(entry)]


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether this is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def loose_images(folder: "str | os.PathLike[str]") -> List[str]:
    """The paths of images directly in a folder."""
    found = entries(folder)
    return [each.path for each in found if is_image_name(each.name) and not is_folder(each)]


def class_files(folder: Path) -> Tuple[List[str], List[str]]:
    """The paths of a class's images, and of what is left out, each sorted by name.

    Those of folders end with a slash.

    Raises DataError for a folder without images, for an image that would be waited for, and for a
    folder of images in it.
    """
    images, others = [], []
    for entry in entries(folder):
        if is_folder(entry):
            if _holds_images(entry.path):
                raise DataError(
                    f"{entry.path} is a folder with images in the folder of a class: "
                    "put them directly into the class's folder"
                )
            others.append(entry.path + os.sep)
        elif is_image_name(entry.name):
            _check_regular(entry)
            images.append(entry.path)
        else:
            others.append(entry.path)
    if not images:
        only = f", only {kinds(others)}" if others else ""
        raise DataError(
            f"{folder} holds no images{only}: give each class images ({ENDINGS}), "
            "or remove its folder"
        )
    return images, others


def kinds(paths: Sequence[str]) -> str:
    """How many of these paths have which ending.

    >>> kinds(["a/Thumbs.db", "a/x.txt", "b/y.TXT", "b/README"])
    '2 .txt, 1 .db, 1 without ending'
    """
    most = Counter(map(_kind, paths)).most_common(MOST_KINDS)
    named = [f"{count:,} {kind}" for kind, count in most]
    rest = len(paths) - sum(count for _, count in most)
    return ", ".join([*named, *([f"{rest:,} others"] if rest else [])])


def _kind(path: str) -> str:
    if path.endswith(os.sep):
        return "folder without images"
    return Path(path).suffix.lower() or "without ending"


def counted(paths: Sequence[str], noun: str) -> str:
    """``1 file``, ``1,200 files``."""
    return f"{len(paths):,} {noun}{'' if len(paths) == 1 else 's'}"


def to_convert(paths: Sequence[str]) -> str:
    """The endings of images among these paths that other programs must convert first."""
    found = {Path(path).suffix.lower() for path in paths} & set(CONVERTIBLE)
    return " and ".join(sorted(found))


def _check_regular(entry: "os.DirEntry[str]") -> None:
    try:
        regular = entry.is_file()
    except OSError:
        regular = False
    if not regular:  # a pipe would be waited for
        raise DataError(
            f"{entry.path} is not a regular file, or is a broken link: replace or remove it"
        )


def _holds_images(folder: str) -> bool:
    return any(
        is_image_name(name) and not is_hidden(name)
        for _, _, names in os.walk(folder)
        for name in names
    )


# --- Imagenette

# Ten easy classes of ImageNet: https://github.com/fastai/imagenette. Version 1 (imagenette) and
# version 2 (imagenette2) are split differently; -320 and -160 are the length of the short side.
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
    """One line about this one of IMAGENETTE_NAMES.

    >>> imagenette_summary("imagenette2-320")
    'JPEGs of ten classes of ImageNet, version 2, short side 320: in colour, 10 classes'
    """
    version, _, size = name.partition("-")
    number, side = version[-1:] if version[-1].isdigit() else 1, f"short side {size}"
    images = f"JPEGs of ten classes of ImageNet, version {number}, {side if size else 'full size'}"
    return f"{images}: in colour, 10 classes"


def load_imagenette(
    name: str, root: Optional[str] = None, val_share: Optional[float] = None, **options: Any
) -> Dataset:
    """This one of IMAGENETTE_NAMES, as its archive unpacks; options as for `load`."""
    dataset = load(find_imagenette(name, root), val_share, name, **options)
    if set(dataset.classes) == set(IMAGENETTE_CLASSES.values()):  # it was packed under these names
        return dataset
    if dataset.classes != tuple(IMAGENETTE_CLASSES):
        classes, wanted = ", ".join(dataset.classes), ", ".join(IMAGENETTE_CLASSES)
        raise DataError(
            f"{dataset.name} has the classes {classes}, expected {wanted}: fetch it again"
        )
    return dataclasses.replace(dataset, classes=tuple(IMAGENETTE_CLASSES.values()))


def find_imagenette(name: str, root: Optional[str]) -> Path:
    """The folder with train and val: ``root``/``name``, its own folder of that name, or ``root``.

    ``root`` None is the usual folder, see `gluonlab.data.fetching.data_folders`. Raises DataError
    that says what is missing.
    """
    if root is not None and not os.path.isdir(root):
        raise DataError(
            f"--data-dir {root} is not a folder: "
            f"give the one that holds {name}/train and {name}/val"
        )
    folder_of_all = data_root(root)
    folders = [folder_of_all / name, folder_of_all / name / name, folder_of_all]
    found = next(
        (place for place in folders if os.path.isdir(place / "train") or is_packed(place)), None
    )
    if found is None:
        fetch = download_command(name, root) if name in SOURCES else f"unpack {name}.tgz there"
        raise DataError(
            f"{name} lacks its folder train, in {folders[0]} and {folder_of_all}: "
            f"{fetch}, or give another --data-dir"
        )
    return found
