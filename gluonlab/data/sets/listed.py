"""Labelled images that a file lists or contains, with their classes and validation split."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from gluonlab.data.fetching.location import readable
from gluonlab.data.images.places import Place, chosen
from gluonlab.data.sets.holdout import held_out
from gluonlab.data.sets.parts import HOLD_OUT, TRAIN, VAL
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Labels

Label = Union[int, str]
NAMED = 3  # classes that are named in a line; the others are counted
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


class Listed(NamedTuple):
    """The images of a file: their places, labels, and keys, by which some are held out.

    ``names``: the names of labels, if they are known.
    """

    path: Path
    places: Sequence[Place]
    labels: Sequence[Label]
    keys: Sequence[str]
    names: Mapping[Label, str] = {}


class Files(NamedTuple):
    """The file of the training images, and the file of the validation images, if any."""

    train: Path
    val: Optional[Path]


class ListedImages:
    """Listed images with their classes; ``train`` and ``val`` are (places, labels).

    The classes are the labels that occur in training, sorted; whole numbers are sorted by value.
    ``name``: the name of the training file, or of its folder if the file is called just train.
    ``val_share``: the share of each class that is held out of ``train`` if ``val`` is None. Raises
    DataError for fewer than two classes, and for a validation class that training lacks.
    """

    def __init__(self, train: Listed, val: Optional[Listed], val_share: Optional[float]) -> None:
        place = train.path.absolute()
        self.name = place.stem if _start(place) != "" else place.parent.name
        own = _as_numbers(train.labels)
        theirs = [] if val is None else _as_numbers(val.labels)
        if val is not None and _are_numbers(own) != _are_numbers(theirs):
            own, theirs = list(map(str, train.labels)), list(map(str, val.labels))
        self.values = sorted(set(own))  # type: ignore[type-var]
        self.classes = tuple(train.names.get(value, str(value)) for value in self.values)
        if len(self.classes) < 2:
            only = f"one class, {self.classes[0]}" if self.classes else "no images"
            raise DataError(f"{train.path} has {only}: give at least two classes")
        numbers: Dict[Label, int] = {value: place for place, value in enumerate(self.values)}
        labels = np.array([numbers[value] for value in own], np.int32)
        self.untested: List[str] = []
        if val is None:
            assert val_share is not None
            self._divide(train, labels, val_share)
            return
        _check_names(train, val)
        unknown = next((value for value in theirs if value not in numbers), None)
        if unknown is not None:
            raise DataError(
                f"{val.path} has the class {unknown}, which {train.path} lacks: "
                "give images of each class to training"
            )
        tests = np.array([numbers[value] for value in theirs], np.int32)
        self.train, self.val = (train.places, labels), (val.places, tests)
        self._note_untested(tests)

    def remarks(self) -> List[str]:
        """Return lines about classes without validation images, and about gaps in the labels."""
        said = []
        if self.untested:
            named = ", ".join(self.untested[:NAMED])
            more = f" and {len(self.untested) - NAMED} more" if len(self.untested) > NAMED else ""
            said.append(f"no validation image is of the classes {named}{more}")
        if _are_numbers(self.values) and self.values != [*range(len(self.values))]:
            said.append(
                f"labels from {self.values[0]} to {self.values[-1]} are {len(self.values)} "
                f"classes: a network numbers them from 0 to {len(self.values) - 1}, and their "
                "names are the labels"
            )
        return said

    def _divide(self, every: Listed, labels: "Labels", share: float) -> None:
        order = np.argsort(labels, kind="stable")
        bounds = np.searchsorted(labels[order], np.arange(len(self.classes) + 1))
        tested = np.zeros(len(labels), bool)
        for number, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            places, label = order[begin:end], self.values[number]
            tested[places] = held_out([f"{label}/{every.keys[place]}" for place in places], share)
        if not tested.any():
            raise DataError(
                f"every class of {every.path} has a single image: "
                f"--val-share {share:g} needs two of a class at least"
            )
        self.train, self.val = (
            (chosen(every.places, np.flatnonzero(mask).tolist()), labels[mask])
            for mask in (~tested, tested)
        )
        self._note_untested(labels[tested])

    def _note_untested(self, labels: "Labels") -> None:
        lacking = np.setdiff1d(np.arange(len(self.classes)), labels)
        self.untested = [self.classes[number] for number in lacking]


def find_files(given: str, ending: str, kind: str, val_share: Optional[float]) -> Files:
    """Find the files that ``given`` names: ``train.csv``, or ``train.csv,val.csv``.

    If only a file whose name ends with train is given, the validation file is in the same folder,
    and its name ends with val (or test) instead. ``ending``: the ending of both names. ``kind``:
    the prefix of the data set. Raises DataError for a missing file, and if there is both a
    validation file and a ``val_share``.
    """
    parts = [given] if os.path.exists(given) else [part.strip() for part in given.split(",")]
    if len(parts) > 2 or not all(parts):
        raise DataError(
            f"{kind}:{given} names {len(parts)} files: give one, or two as "
            f"{kind}:train{ending},val{ending}"
        )
    paths = [_file(part, ending, kind) for part in parts]
    train, val = paths[0], paths[1] if len(paths) > 1 else _find_validation(paths[0])
    if val is None and val_share is None:
        raise DataError(
            f"{train} has no validation file in its folder, such as {_other_name(train, ending)}: "
            f"hold images out with {HOLD_OUT}, or name a second file, {kind}:{train},FILE"
        )
    if val is not None and val_share is not None:
        raise DataError(
            f"--val-share {val_share:g} holds images out of {train}, but {val} exists: "
            "leave --val-share out, or rename that file"
        )
    return Files(train, val)


def _file(name: str, ending: str, kind: str) -> Path:
    """Return the path of a file that the user names. Raises DataError."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise DataError(f"{name} names an unknown home folder: write the full path") from None
    if not os.path.exists(path):
        raise DataError(f"{path} does not exist: give a {ending} file")
    if path.is_dir():
        raise DataError(f"{path} is a folder: give a {ending} file, or folder:{path}")
    if path.suffix.lower() != ending:
        instead = path.with_suffix(ending)
        hint = f", such as {kind}:{instead}" if os.path.isfile(instead) else ""
        raise DataError(f"{path} is not a {ending} file: give one{hint}")
    with readable(path, "file"):
        path.stat()
    if not path.is_file():
        raise DataError(f"{path} is not a regular file: give a {ending} file")
    return path


def _find_validation(train: Path) -> Optional[Path]:
    """Return the validation file that belongs to a training file by its name; None without one."""
    start = _start(train)
    if start is None:
        return None
    spelt = [each for name in VAL for each in (name, name.capitalize(), name.upper())]
    found = (train.with_name(f"{start}{name}{train.suffix}") for name in spelt)
    return next((path for path in found if os.path.isfile(path)), None)


def _other_name(train: Path, ending: str) -> str:
    start = _start(train)
    return f"val{ending}" if start is None else f"{start}{VAL[0]}{train.suffix}"


def _start(train: Path) -> Optional[str]:
    """Return the part of a file's name before ``train``; None if it does not end with that."""
    for name in TRAIN:
        if train.stem.lower().endswith(name):
            return train.stem[: -len(name)]
    return None


def _are_numbers(labels: Sequence[Label]) -> bool:
    return all(isinstance(label, int) for label in labels)


def _as_numbers(labels: Sequence[Label]) -> List[Label]:
    """Convert labels to whole numbers if all of them are; else return them unchanged."""
    if all(isinstance(label, int) or _NUMBER.fullmatch(label) for label in labels):
        return [int(label) for label in labels]
    return list(labels)


def _check_names(train: Listed, val: Listed) -> None:
    for label, name in val.names.items():
        if train.names.get(label, name) != name:
            raise DataError(
                f"label {label} is {train.names[label]} in {train.path}, and {name} in "
                f"{val.path}: give the classes the same numbers in both"
            )


def checked_label(value: float, where: str) -> int:
    """Convert a label to a class number. Raises DataError that names ``where`` the label is."""
    if not 0 <= value < 2**31 or value != int(value):
        raise DataError(f"{where} has the label {value:g}: give whole numbers from 0, the classes")
    return int(value)
