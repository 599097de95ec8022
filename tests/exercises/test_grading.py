"""Grades for Canvas and Gradescope: the formats, whose they are, and nothing that is executed.

Canvas's importer is the reference for its file: what it takes for a header, for points and for a
student is written down here as it does.
"""

import csv
import io
import json
from pathlib import Path

import pytest

from gluonlab.errors import ExerciseError
from gluonlab.exercises.exercise_registry import PASSED, WRONG
from gluonlab.exercises.grading import (
    HIDDEN_CASE_FAILED,
    UNCHECKED,
    Grade,
    as_canvas,
    as_csv,
    as_gradescope,
    check_results_path,
    find_shared_folders,
    identify_student,
    write_results,
)

STATUSES = {"03-1": PASSED, "03-2": WRONG, "03-3": UNCHECKED, "03-4": PASSED, "03-5": PASSED}


def make_grade(path, lab="03", statuses=STATUSES, **more):
    return Grade(Path(path), dict(statuses), lab=lab, **more)


def read_as_canvas(text):
    """Return {(ID, login or name): {assignment: points}} and the points possible, as Canvas's
    GradebookImporter reads them (lib/gradebook_importer.rb).
    """
    header, *rows = csv.reader(io.StringIO(text))
    assert len(header) > 3 and "Student" in header[0] and "ID" in header[1]
    assert header[2:5] == ["SIS User ID", "SIS Login ID", "Section"]
    possible, students = {}, {}
    for row in rows:
        cells = dict(zip(header[5:], row[5:]))
        assert len(row) == len(header)
        if "Points Possible" in row[0]:
            possible = cells
        else:
            students[row[1], row[3] or row[0]] = cells
    return students, possible


@pytest.mark.parametrize(
    ("path", "student"),
    [
        ("in/lovelaceada_12345_678901_03-trainer.ipynb", ("lovelaceada", "12345", "")),
        ("in/lovelaceada_LATE_12345_678901_03-trainer-1.ipynb", ("lovelaceada", "12345", "")),
        ("in/vonderleyen_eva_7_8_a_9_10.ipynb", ("vonderleyen_eva", "7", "")),
        ("submitted/al123/lab03/03-trainer.ipynb", ("al123", "", "al123")),
        ("course/autograded/al123/lab03/03-trainer.ipynb", ("al123", "", "al123")),
        ("export/submission_4711/03-trainer.ipynb", ("submission_4711", "", "")),
        ("elsewhere/ada/03-trainer.ipynb", ("ada", "", "")),
        ("in/ada/03-trainer.ipynb", ("ada", "", "")),
        ("in/monday/ada/03-trainer.ipynb", ("monday/ada", "", "")),
        ("in/ada.ipynb", ("ada", "", "")),
        ("ada.ipynb", ("ada", "", "")),
    ],
)
def test_the_student_is_read_off_the_path(path, student):
    assert identify_student(Path(path), [Path("in")]) == student


def test_a_folder_of_several_notebooks_that_are_named_holds_several_students(tmp_path):
    one, other, alone = (Path("in", name) for name in ("a/1.ipynb", "a/2.ipynb", "b/1.ipynb"))
    roots = find_shared_folders([one, other, alone, tmp_path])
    assert roots == [tmp_path, Path("in/a")]
    assert [identify_student(path, roots).name for path in (one, other, alone)] == ["1", "2", "b"]


def test_canvas_finds_every_student_and_the_best_notebook_of_each_lab_counts():
    better = {**STATUSES, "03-2": PASSED}
    text = as_canvas(
        [
            make_grade("in/lovelaceada_12345_1_03.ipynb"),
            make_grade("in/lovelaceada_LATE_12345_2_03.ipynb", statuses=better),
            make_grade("in/lovelaceada_12345_3_01.ipynb", "01", {"01-1": WRONG}),
            make_grade("submitted/bob/lab03/03.ipynb"),
            Grade(Path("in/carol_77_4_x.ipynb"), note="cannot be read as a notebook"),
        ],
        {"03": "Trainer (4711)"},
    )
    students, possible = read_as_canvas(text)
    assert possible == {"Lab 01": "1", "Trainer (4711)": "5"}
    assert students == {
        ("12345", "lovelaceada"): {"Lab 01": "0", "Trainer (4711)": "4"},
        ("", "bob"): {"Lab 01": "", "Trainer (4711)": "3"},
        ("77", "carol"): {"Lab 01": "", "Trainer (4711)": ""},  # which leaves a grade as it is
    }


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@a", "\t=a", "\r=1", " =1", "\uff1da", "a\x1b[2J"])
def test_nothing_in_the_tables_is_executed(name):
    grades = [make_grade(f"in/{name}_1_2_x.ipynb", sentences={"03-2": name}, note=name)]
    for text in (as_canvas(grades, {"03": name}), as_csv(grades)):
        for cell in [cell for row in csv.reader(io.StringIO(text)) for cell in row]:
            assert cell.isprintable()
            assert not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))


def test_gradescope_gets_a_test_for_each_exercise_with_the_checkers_sentence():
    results = as_gradescope(make_grade("a.ipynb", sentences={"03-2": HIDDEN_CASE_FAILED}, note="cell 4: stopped"))
    assert (results["score"], results["output"], results["visibility"]) == (3, "cell 4: stopped", "visible")
    assert results["tests"][0]["name"].startswith("03-1 Make an update")
    keys = ("number", "score", "max_score", "status", "output", "visibility")
    assert [tuple(test[key] for key in keys) for test in results["tests"]] == [
        (id, int(status == PASSED), 1, "passed" if status == PASSED else "failed", output, "visible")
        for (id, status), output in zip(
            STATUSES.items(), [PASSED, f"wrong: {HIDDEN_CASE_FAILED}", UNCHECKED, PASSED, PASSED]
        )
    ]


def test_results_go_into_one_file_or_into_a_folder_of_them(tmp_path):
    one, other = make_grade("ada/03.ipynb"), make_grade("../bob/03 =1.ipynb")
    write_results(tmp_path / "results.json", [one])
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["score"] == 3
    write_results(tmp_path / "all", [one, other, one])
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [
        "1-ada-03.json",
        "2-bob-03-1.json",
        "3-ada-03.json",
    ]
    check_results_path(tmp_path / "all", [Path("a"), Path("b")])
    with pytest.raises(ExerciseError, match="the results of only one notebook, but there are 2 notebooks"):
        check_results_path(tmp_path / "results.json", [Path("a"), Path("b")])
