"""An exercise and its checker, which is found by the exercise's id in the package of its lab.

A checker gets the student's answer. It raises Wrong with the first counterexample, or returns if
the answer is right; a Score where right answers differ in what they cost::

    @exercise("02-1")
    def allreduce(answer):
        \"\"\"The arrays of all devices end with their sum, in place.\"\"\"
        ...
        raise Wrong(en="allreduce of [1] and [2] left [1] on the second device, expected [3]: ...",
        ja="...")
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, TypeVar

from gluonlab.errors import ExerciseError, unknown
from gluonlab.exercises.languages import say

SECONDS = 20.0  # for one check: ten times what a right answer may take

Checker = Callable[[Any], Any]
C = TypeVar("C", bound=Checker)


class Wrong(Exception):
    """The first counterexample: the input, the result, the expected one, and the likely fault."""

    def __init__(self, *, en: str, ja: str) -> None:
        super().__init__(en)
        self.texts = {"en": en, "ja": ja}


class Score:
    """What a right answer costs, in microseconds, and that in words.

    ``micros``: None for one that is in no leaderboard.
    """

    def __init__(self, micros: Optional[float], *, en: str, ja: str) -> None:
        self.micros, self.texts = micros, {"en": en, "ja": ja}


class Exercise(NamedTuple):
    """An exercise: an ``id`` such as ``"02-1"``, one line about it, its checker, its time limit."""

    id: str
    summary: str
    checker: Checker
    seconds: float


EXERCISES: Dict[str, Exercise] = {}  # filled as the labs' modules are imported


def exercise(id: str, seconds: float = SECONDS) -> Callable[[C], C]:
    """``@exercise("02-1")`` makes a function the checker of that exercise.

    Its docstring, of one line, is the exercise's summary.
    """

    def register(checker: C) -> C:
        own = getattr(checker, "__module__", "")
        foreign = own.startswith(f"{__package__}.lab") and own.split(".")[2] != f"lab{id[:2]}"
        if foreign or not re.fullmatch(r"\d\d-[1-9]\d*", id):
            raise ExerciseError(
                f"{id!r} names no exercise of {own}: write the two digits of the lab, "
                "a dash and a number"
            )
        EXERCISES[id] = Exercise(id, (checker.__doc__ or "").strip(), checker, seconds)
        return checker

    return register


def labs() -> List[str]:
    """The numbers of the labs that have checkers: ``["01", "02", ...]``."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name[3:] for module in modules if re.fullmatch(r"lab\d\d", module.name))


def all_exercises() -> List[Exercise]:
    """Every exercise of every lab, in order."""
    for lab in labs():
        importlib.import_module(f"gluonlab.exercises.lab{lab}")
    return [EXERCISES[id] for id in sorted(EXERCISES, key=in_order)]


def find(id: object) -> Exercise:
    """The exercise of this id. Raises ExerciseError, with the choices."""
    if isinstance(id, str) and id[:2] in labs():
        importlib.import_module(f"gluonlab.exercises.lab{id[:2]}")
    if not isinstance(id, str) or id not in EXERCISES:
        text = unknown("exercise", id, of_its_lab(id, [one.id for one in all_exercises()]))
        raise ExerciseError(say(en=text, ja=f"演習 {id!r} はありません ({text})"))
    return EXERCISES[id]


def of_its_lab(id: object, choices: List[str]) -> List[str]:
    """Those of the lab that an unknown id begins with; all, where there is no such lab."""
    return [one for one in choices if one[:2] == str(id)[:2]] or choices


def in_order(id: str) -> "tuple[int, ...]":
    """``"02-10"`` comes after ``"02-9"``."""
    return tuple(map(int, id.split("-")))
