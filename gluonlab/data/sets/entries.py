"""What lies in a folder: folders of classes, image files, and what is neither."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import List, NamedTuple, Sequence

from gluonlab.data.fetching.location import readable
from gluonlab.data.images.formats import ENDINGS, is_image_name
from gluonlab.errors import DataError

# what file managers, archives and disks put beside a user's files
NOBODYS = ("__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found")
# images that are not read here, which somebody may miss
CONVERTIBLE = (
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw",
)  # fmt: skip
MOST_KINDS = 4  # endings that are named; the others are counted


class Contents(NamedTuple):
    """The files of a class: the paths of images, and of what is left out, each sorted by name.

    Those of folders end with a slash.
    """

    images: List[str]
    others: List[str]


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


def contents(folder: Path) -> Contents:
    """The files of the class of this folder.

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
    return Contents(images, others)


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
