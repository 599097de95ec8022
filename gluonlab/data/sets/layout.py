"""The classes and files of a folder of images, each checked as it is listed."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np

from gluonlab.data.sets.entries import (
    contents,
    counted,
    folders,
    kinds,
    loose_images,
    to_convert,
)
from gluonlab.data.sets.holdout import held_out
from gluonlab.data.sets.parts import find_parts
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Labels

NAMED = 3  # classes that are named in a line; the others are counted


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
            named = ", ".join(self.untested[:NAMED])
            more = f" and {len(self.untested) - NAMED} more" if len(self.untested) > NAMED else ""
            said.append(
                f"no image is held out for validation of classes with a single one: {named}{more}"
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
        found = contents(folder)
        self.others += found.others
        return found.images


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
