"""A grade as the results.json that Gradescope reads from an autograder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Sequence

from gluonlab.errors import ExerciseError
from gluonlab.exercises.exercise import find, in_order
from gluonlab.exercises.grade import Grade
from gluonlab.exercises.verdict import PASSED
from gluonlab.files.whole import write_text
from gluonlab.plain import plain_name

SUFFIX = ".json"


def as_gradescope(grade: Grade) -> Dict[str, Any]:
    """An exercise is a test of one point; what its checker says is the test's output."""
    tests = [_test(grade, id) for id in sorted(grade.statuses, key=in_order)]
    return dict(
        score=grade.passed,
        output=grade.note or f"{grade.passed} of {len(tests)} exercises are right.",
        output_format="text",
        visibility="visible",
        stdout_visibility="hidden",  # what the grader itself prints
        tests=tests,
    )


def _test(grade: Grade, id: str) -> Dict[str, Any]:
    status = grade.statuses[id]
    return dict(
        name=f"{id} {find(id).summary}",
        number=id,
        score=int(status == PASSED),
        max_score=1,
        status="passed" if status == PASSED else "failed",
        output=": ".join(filter(None, [status, grade.sentences.get(id, "")])),
        output_format="text",
        visibility="visible",
    )


def check_place(place: Path, notebooks: Sequence[Path]) -> None:
    """Raise ExerciseError where several notebooks are to go into one file."""
    if place.suffix == SUFFIX and len(notebooks) > 1:
        raise ExerciseError(
            f"--gradescope {place}: a file holds the results of one notebook, {len(notebooks)} are "
            f"given: name a new folder, such as {place.stem}"
        )


def write_results(place: Path, grades: Sequence[Grade]) -> None:
    """Write ``place`` itself if it ends in .json, or a file for each notebook into that folder."""
    if place.suffix == SUFFIX:
        paths = [place] * len(grades)
    else:
        place.mkdir(exist_ok=True)
        paths = [place / f"{number}-{_name(one)}{SUFFIX}" for number, one in enumerate(grades, 1)]
    for path, one in zip(paths, grades):
        write_text(path, json.dumps(as_gradescope(one), ensure_ascii=False, indent=1) + "\n")


def _name(grade: Grade) -> str:
    path = grade.notebook
    return plain_name(f"{path.parent.name}-{path.stem}".strip("-"), "notebook")
