"""Which student handed a notebook in, by its path, as Canvas, nbgrader and Gradescope write it.

==========  ======================================================================================
Canvas      ``lovelaceada_LATE_12345_678901_lab02.ipynb``: a name, LATE, the user's number, the
            file's number, and the name that the file had
nbgrader    ``submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb``, ``autograded/..`` and so on
Gradescope  ``submission_123/..``
otherwise   the notebook's folder below the one that was given; in that one itself, its own name
==========  ======================================================================================
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import List, NamedTuple, Sequence

_CANVAS = re.compile(r"(?P<name>.+?)(_LATE)?_(?P<user>\d+)_(?P<file>\d+)_.+")
_NBGRADER = ("submitted", "autograded", "feedback")
_GRADESCOPE = re.compile(r"submission_\d+")


class Student(NamedTuple):
    """``name``: what tells them from others; ``canvas_id`` and ``login`` if they are known."""

    name: str
    canvas_id: str = ""
    login: str = ""


def roots_of(given: Sequence[Path]) -> List[Path]:
    """The folders that hold several students: those given, or that of several files given."""
    folders = [path.parent for path in given if not path.is_dir()]
    shared = [folder for folder in dict.fromkeys(folders) if folders.count(folder) > 1]
    return [path for path in given if path.is_dir()] + shared


def student_of(path: Path, roots: Sequence[Path] = ()) -> Student:
    """The student who handed in the notebook of this path; ``roots``: of `roots_of`."""
    canvas = _CANVAS.fullmatch(path.name)
    if canvas:
        return Student(canvas["name"], canvas["user"])
    folders = path.parts[:-1]
    for folder, below in zip(folders, folders[1:]):
        if folder in _NBGRADER:
            return Student(below, login=below)
    for folder in folders:
        if _GRADESCOPE.fullmatch(folder):
            return Student(folder)
    for root in roots:
        if root in path.parents:
            inside = path.parent.relative_to(root)
            return Student(inside.as_posix() if inside.parts else path.stem)
    return Student(path.parent.name or path.stem)
