"""Which student handed a notebook in, by its path, as Canvas, nbgrader and Gradescope write it.

==========  ======================================================================================
Canvas      ``lovelaceada_LATE_12345_678901_lab02.ipynb``: a name, LATE, the user's number, the
            file's number, and the name that the file had
nbgrader    ``submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb``, ``autograded/..`` and so on
Gradescope  ``submission_123/..``
otherwise   the notebook's folder, below those that were given; else its own name
==========  ======================================================================================
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_CANVAS = re.compile(r"(?P<name>.+?)(_LATE)?_(?P<user>\d+)_(?P<file>\d+)_.+")
_NBGRADER = ("submitted", "autograded", "feedback")
_GRADESCOPE = re.compile(r"submission_\d+")


class Student(NamedTuple):
    """``name``: what tells them from others; ``canvas_id`` and ``login`` if they are known."""

    name: str
    canvas_id: str = ""
    login: str = ""


def student_of(path: Path) -> Student:
    """The student who handed in the notebook of this path."""
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
    return Student(path.parent.name or path.stem)
