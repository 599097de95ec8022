"""Where a folder has its training and its validation images, and what to do if nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

from gluonlab.data.fetching.location import readable
from gluonlab.data.sets.entries import counted, folders, loose_images
from gluonlab.errors import DataError

TRAIN = ("train", "training")
VAL = ("val", "valid", "validation", "test", "testing")
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
LAYOUT = "folders train and val (or test), each with a folder of images for every class"
HOLD_OUT = "--val-share 0.2"


class Parts(NamedTuple):
    """The folder that holds all, that of the training images, and that of the others, if any."""

    root: Path
    train: Path
    val: Optional[Path]


def find_parts(root: Path, val_share: Optional[float]) -> Parts:
    """The parts of ``root``, or of the only folder in it, as archives unpack.

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
    return Parts(place, train, val)


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


def _without_train(root: Path, val_share: Optional[float]) -> Parts:
    """Folders of images that are in no train, as training images with ``val_share``."""
    place = root if _of_classes(root) else None
    inside = [Path(each.path) for each in folders(root)]
    if len(inside) == 1 and inside[0] != _part(root, VAL) and _of_classes(inside[0]):
        place = inside[0]
    if place is not None and val_share is not None:
        return Parts(place, place, None)
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
