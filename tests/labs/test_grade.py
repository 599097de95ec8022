"""python -m gluonlab.exercises grade: notebooks that students hand in, run in processes of their
own, as a table.
"""

import ast
import csv
import io
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from clock_that_ends import SUBMISSION, end_the_time_of, install
from support.waiting import LIMIT_S, wait_until
from the_labs import LABS, PLACE, REPOSITORY

from gluonlab.errors import NotebookError
from gluonlab.exercises.__main__ import main
from gluonlab.exercises.exercise_registry import PASSED, UNWRITTEN, WRONG
from gluonlab.exercises.grading import UNCHECKED, as_csv, find_notebooks, grade
from gluonlab_labs.exercises import find_stubs, last_defined_name, solution_path
from gluonlab_labs.kernel import execute_notebook, start_kernel

IDS = sorted(find_stubs(LABS["01"]))
NAME = last_defined_name(find_stubs(LABS["01"])["01-1"].source)
SOLUTION = solution_path(PLACE.solutions, "01-1").read_text(encoding="utf-8")
BEGINNING = "import gluonlab\nfrom gluonlab.exercises import check"
CHECK = f'check("01-1", {NAME})'


@pytest.fixture(autouse=True)
def this_gluonlab(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def make_notebook(*cells, **metadata):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=metadata)


def hand_in(path, *cells, lab="01", language="en"):
    """Write a notebook of these code cells, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(make_notebook(*cells, gluonlab={"lab": lab, "language": language}), path)
    return path


def grade_one(path):
    [result] = grade([path], LIMIT_S)
    return result


def test_the_last_verdict_counts_and_what_is_not_asked_is_unchecked(tmp_path):
    path = hand_in(tmp_path / "ada.ipynb", BEGINNING, f"{NAME} = ...", CHECK, SOLUTION, CHECK)
    result = grade_one(path)
    expected = {**dict.fromkeys(IDS, UNCHECKED), "01-1": PASSED}
    assert (result.statuses, result.passed_count, result.note) == (expected, 1, "")


def test_a_cell_that_raises_is_noted_and_the_next_ones_count(tmp_path):
    path = hand_in(tmp_path / "bob.ipynb", BEGINNING, "1 / 0", "nothing", f"{NAME} = {{}}", CHECK)
    result = grade_one(path)
    assert result.statuses["01-1"] not in (PASSED, UNCHECKED)
    assert result.note == "cell 2 (1 / 0): ZeroDivisionError: division by zero"


def test_a_notebook_without_end_is_stopped_and_what_it_had_reached_counts(tmp_path, monkeypatch):
    install(tmp_path / "clock", monkeypatch)
    endless = end_the_time_of(SUBMISSION) + "while True: pass"
    path = hand_in(tmp_path / "eve.ipynb", BEGINNING, f"{NAME} = ...", CHECK, endless, SOLUTION, CHECK)
    result = grade_one(path)
    assert result.statuses["01-1"] == UNWRITTEN
    assert result.note == "cell 4 (import os): the cell did not finish in time"


def test_a_process_that_dies_is_a_row_like_any_other(tmp_path):
    result = grade_one(hand_in(tmp_path / "mallory.ipynb", BEGINNING, "import os; os._exit(3)", CHECK))
    assert result.statuses["01-1"] == UNCHECKED
    assert "the kernel died" in result.note


def test_what_is_no_notebook_of_a_lab_is_a_row_that_says_so(tmp_path):
    (tmp_path / "text.ipynb").write_text("hello")
    assert "cannot be read as a notebook" in grade_one(tmp_path / "text.ipynb").note
    assert "does not belong to a lab" in grade_one(hand_in(tmp_path / "other.ipynb", "1", lab="77")).note


def test_lines_that_a_student_forges_badly_count_for_nothing(tmp_path):
    lines = 'nonsense\\n[]\\n{"exercise": "77-1", "status": "passed"}\\n'
    forged = f"import os\nopen(os.environ['GLUONLAB_GRADES'], 'a').write('{lines}')"
    result = grade_one(hand_in(tmp_path / "oscar.ipynb", BEGINNING, forged))
    assert result.passed_count == 0
    assert set(result.statuses) == set(IDS)


def test_a_notebook_does_not_see_the_next_one(tmp_path):
    first = hand_in(tmp_path / "1.ipynb", "open('left', 'w').close()\nx = 1")
    second = hand_in(tmp_path / "2.ipynb", "import os\nassert not os.path.exists('left')\nassert 'x' not in globals()")
    assert [result.note for result in grade([first, second], LIMIT_S)] == ["", ""]


def test_the_command_writes_a_table_and_a_summary(tmp_path, ended, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path / "in" / "ada" / "01-devices.ipynb", BEGINNING, SOLUTION, CHECK)
    hand_in(tmp_path / "in" / "bob" / "01-devices.ipynb", BEGINNING, f"{NAME} = {{'a': 1}}", CHECK, language="ja")
    hand_in(tmp_path / "in" / "bob" / ".ipynb_checkpoints" / "01-devices.ipynb", "1")
    status, output, _ = ended(main, "grade", "in")
    assert status == 0
    assert "  1 of" in output
    assert "written to grades.csv" in output
    rows = list(csv.DictReader(io.StringIO((tmp_path / "grades.csv").read_text(encoding="utf-8"))))
    assert [(one["notebook"], one["01-1"], one["passed"]) for one in rows] == [
        ("in/ada/01-devices.ipynb", PASSED, "1"),
        ("in/bob/01-devices.ipynb", WRONG, "0"),
    ]


def test_mistakes_of_the_command_line_are_one_line(tmp_path, ended, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "old.csv").write_text("mine")
    path = hand_in(tmp_path / "a.ipynb", "1")
    assert "no notebooks were passed" in ended(main, "grade")[2]
    assert "cannot find nowhere" in ended(main, "grade", "nowhere")[2]
    assert "no notebook was found in empty" in ended(main, "grade", "empty")[2]
    assert "--out-file old.csv exists" in ended(main, "grade", str(path), "--out-file", "old.csv")[2]
    assert "--timeout" in ended(main, "grade", str(path), "--timeout", "soon")[2]
    assert (tmp_path / "old.csv").read_text() == "mine"


def test_the_list_names_every_exercise(ended):
    status, output, _ = ended(main, "list")
    ids = [line[:4] for line in output.splitlines()]
    assert (status, ids) == (0, sorted(id for lab in LABS.values() for id in find_stubs(lab)))


def test_help_says_that_it_runs_the_code_of_students(ended):
    output = " ".join(ended(main, "grade", "--help")[1].split())
    assert "a table of grades. This command executes the students' code." in output


def test_ctrl_c_keeps_the_rows_that_are_done(tmp_path):
    hand_in(tmp_path / "1.ipynb", BEGINNING, SOLUTION, CHECK)
    begun = tmp_path / "begun"
    sleeps = f"import time; open({str(begun)!r}, 'w').close(); time.sleep(600)"
    hand_in(tmp_path / "2.ipynb", sleeps)
    command = [sys.executable, "-m", "gluonlab.exercises", "grade", "1.ipynb", "2.ipynb"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    table = tmp_path / "grades.csv"
    try:
        wait_until(lambda: table.exists() and begun.exists())
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted: graded 1 of 2 notebooks, written to grades.csv" in output
    assert PASSED in table.read_text(encoding="utf-8")
    assert "Traceback" not in output


def test_the_table_of_nothing_has_a_heading_only():
    assert as_csv([]) == "notebook,passed,note,sentences\n"


def test_a_submission_named_twice_is_graded_once(tmp_path):
    path = tmp_path / "a.ipynb"
    path.touch()
    assert find_notebooks([path, tmp_path, path]) == [path]


# --- the process of a notebook


def test_a_kernel_is_this_python_in_its_folder_and_ends_with_its_block(tmp_path):
    notebook = make_notebook("import os, sys\n(sys.executable, os.getcwd(), os.getpid())")
    with start_kernel(notebook, tmp_path, LIMIT_S) as kernel:
        executable, folder, pid = ast.literal_eval(kernel.run(0).outputs[0].data["text/plain"])
        assert kernel.evaluate("print('apart')") == "apart\n"
        assert len(notebook.cells) == 1
    assert (executable, folder) == (sys.executable, str(tmp_path))
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_what_belongs_to_another_notebook_does_not_reach_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/ja/other.ipynb")
    monkeypatch.setenv("GLUONLAB_LANGUAGE", "ja")
    notebook = make_notebook("from gluonlab.exercises import language\nprint(language())")
    (tmp_path / "en").mkdir()
    execute_notebook(notebook, tmp_path / "en", LIMIT_S)
    assert notebook.cells[0].outputs[0].text == "en\n"


def test_a_failure_is_one_line_that_names_the_cell(tmp_path):
    with pytest.raises(NotebookError, match=r"^cell 1 \(import json\): JSONDecodeError: Expecting property") as raised:
        execute_notebook(make_notebook("\nimport json\njson.loads('{')"), tmp_path, LIMIT_S)
    assert "\n" not in str(raised.value)
