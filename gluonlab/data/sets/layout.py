"""The classes and files of a folder of images, each checked as it is listed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, List, Tuple

import numpy as np

from gluonlab.data.fetching.location import readable
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Labels

SUFFIXES = (".jpg", ".jpeg", ".png")
LAYOUT = "folders train and val (or test), each with a folder of JPEG or PNG images for every class"


class ImageFolder:
    """The classes and files below a folder: ``train`` and ``val`` are (paths, labels).

    ``classes``: the names of train's folders, sorted. Raises DataError, naming the place, for a
    folder or file that does not belong there.
    """

    def __init__(self, root: "str | os.PathLike[str]") -> None:
        self.root = Path(root)
        with readable(self.root, "folder"):
            if not self.root.is_dir():
                wrong = "is a file" if self.root.exists() else "does not exist"
                raise DataError(f"{self.root} {wrong}: give a folder with {LAYOUT}")
            train, val = self._part("train"), self._part("val", "test")
        self.classes = _class_names(train)
        if len(self.classes) < 2:
            count = f"one class, {self.classes[0]}" if self.classes else "no class"
            raise DataError(
                f"{train} has folders for {count}: give at least two, "
                "each with the images of one class"
            )
        ours, theirs = set(self.classes), set(_class_names(val))
        for only, has, lacks in ((ours - theirs, train, val), (theirs - ours, val, train)):
            if only:
                raise DataError(
                    f"{has} has the class {min(only)}, which {lacks} lacks: "
                    "give both the same class folders"
                )
        self.train, self.val = self._files(train), self._files(val)

    def _part(self, *names: str) -> Path:
        folder = next((self.root / name for name in names if (self.root / name).is_dir()), None)
        if folder is None:
            raise DataError(
                f"{self.root} has no folder {' or '.join(names)}: give one with {LAYOUT}"
            )
        return folder

    def _files(self, part: Path) -> "Tuple[List[str], Labels]":
        files = [_images(part / name) for name in self.classes]
        labels = np.repeat(np.arange(len(files), dtype=np.int32), [len(paths) for paths in files])
        return [path for paths in files for path in paths], labels


def _entries(folder: Path) -> "List[os.DirEntry[str]]":
    """What is in a folder, sorted by name, without hidden files."""
    with readable(folder, "folder"):
        visible = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)


def _class_names(part: Path) -> Tuple[str, ...]:
    with readable(part, "folder"):
        return tuple(entry.name for entry in _entries(part) if entry.is_dir())


def _images(folder: Path) -> List[str]:
    """The image files of a class, sorted by name."""
    entries = _entries(folder)
    for entry in entries:
        if entry.is_dir():
            wrong = "is a folder: put the images directly into the folder of their class"
        elif not entry.name.lower().endswith(SUFFIXES):
            endings = ", ".join(SUFFIXES)
            wrong = f"is not an image: keep only files ending in {endings} in a class's folder"
        elif not entry.is_file():  # a pipe would be waited for
            wrong = "is not a regular file, or is a broken link: replace or remove it"
        else:
            continue
        raise DataError(f"{entry.path} {wrong}")
    if not entries:
        raise DataError(
            f"{folder} holds no images: give each class JPEG or PNG files, or remove its folder"
        )
    return [entry.path for entry in entries]
