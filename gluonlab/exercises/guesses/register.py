"""The guesses that the labs ask for: their questions in both languages, found by id."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from typing import Dict, List, NamedTuple

from gluonlab.errors import ExerciseError, unknown
from gluonlab.exercises.exercise import labs, of_its_lab
from gluonlab.exercises.guesses.forms import Form
from gluonlab.exercises.languages import Texts, say

ID = re.compile(r"(?P<lab>\d\d)-[a-z]")


class Guess(NamedTuple):
    """A guess: an ``id`` such as ``"01-a"``, the form of its answer, its question."""

    id: str
    form: Form
    question: Texts


GUESSES: Dict[str, Guess] = {}  # filled as the labs' modules are imported


def guess(id: str, form: Form, *, en: str, ja: str) -> None:
    """Register a guess; ``en`` and ``ja``: its question, in one short sentence.

    Raises ExerciseError for an id of another form, or one that is taken.
    """
    if not ID.fullmatch(id) or id in GUESSES:
        raise ExerciseError(
            f"{id!r} cannot name a guess, or is taken: write the two digits of the lab, a dash, "
            "and the next letter"
        )
    GUESSES[id] = Guess(id, form, {"en": en, "ja": ja})


def all_guesses() -> List[Guess]:
    """Every guess of every lab, in order."""
    for lab in labs():
        _import(lab)
    return [GUESSES[id] for id in sorted(GUESSES)]


def find(id: object) -> Guess:
    """The guess of this id. Raises ExerciseError, with the choices."""
    if isinstance(id, str) and id[:2] in labs():
        _import(id[:2])
    if not isinstance(id, str) or id not in GUESSES:
        text = unknown("guess", id, of_its_lab(id, [one.id for one in all_guesses()]))
        raise ExerciseError(say(en=text, ja=f"予想 {id!r} はありません ({text})"))
    return GUESSES[id]


def _import(lab: str) -> None:
    name = f"gluonlab.exercises.lab{lab}.guesses"
    if find_spec(name):
        importlib.import_module(name)
