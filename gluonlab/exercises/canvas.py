"""Grades as the file that Canvas's gradebook imports: a row per student, a column per lab."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Sequence

from gluonlab.exercises.grade import Grade
from gluonlab.exercises.students import Student, student_of
from gluonlab.exercises.table import in_csv

# As its export begins. It finds a student by ID, else by SIS Login ID, else by name.
COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS = "    Points Possible"  # the export indents it


def as_canvas(
    grades: Sequence[Grade], assignments: Dict[str, str], roots: Sequence[Path] = ()
) -> str:
    """Of several notebooks of a student for one lab, the one with most points counts.

    A cell stays empty where no notebook could be read as one of that lab. ``assignments``: the
    names that labs have in Canvas; one that it does not know is ``Lab 02``. ``roots``: the folders
    that hold students.
    """
    labs = sorted({one.lab for one in grades if one.lab})
    most = {one.lab: len(one.statuses) for one in grades if one.lab}
    points: Dict[Student, Dict[str, int]] = {}
    for one in grades:
        own = points.setdefault(student_of(one.notebook, roots), {})
        if one.lab:
            own[one.lab] = max(one.passed, own.get(one.lab, 0))
    names = [assignments.get(lab, f"Lab {lab}") for lab in labs]
    lines: List[Sequence[str]] = [[*COLUMNS, *names]]
    lines.append([POINTS, "", "", "", "", *(str(most[lab]) for lab in labs)])
    for student, own in points.items():
        known = [student.name, student.canvas_id, "", student.login, ""]
        lines.append([*known, *(str(own.get(lab, "")) for lab in labs)])
    return in_csv(lines)
