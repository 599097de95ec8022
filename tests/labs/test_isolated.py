"""grade --container, and several notebooks at a time: the grades are those of one by one, here.

tests/support/stand_in_engine.py stands in for docker: it runs what a container does, as a process.
"""

import csv
import io
import json
import os
import signal
import subprocess
import sys

import pytest
from support.stand_in_engine import install_fake_engine, read_calls
from support.waiting import LIMIT_S, wait_until
from test_grade import BEGINNING, CHECK, NAME, SOLUTION, hand_in
from test_hostile_notebooks import list_sleeping
from the_labs import REPOSITORY

import gluonlab
from gluonlab.exercises.__main__ import main
from gluonlab.exercises.exercise_registry import PASSED
from gluonlab.exercises.grading import find_notebooks, grade, sort_by_notebooks
from gluonlab.exercises.notebook_runners import ContainerRunner


@pytest.fixture(autouse=True)
def this_gluonlab(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


@pytest.fixture
def folder(tmp_path):
    """Three notebooks: one that is right, one with an error, one that is none."""
    hand_in(tmp_path / "in" / "ada" / "1.ipynb", BEGINNING, SOLUTION, CHECK)
    hand_in(tmp_path / "in" / "bob" / "2.ipynb", BEGINNING, f"{NAME} = {{}}", CHECK, "1 / 0")
    (tmp_path / "in" / "eve.ipynb").write_text("[]")
    (tmp_path / "in" / "eve.ipynb").chmod(0o600)
    return tmp_path


@pytest.fixture
def engine(tmp_path, monkeypatch):
    return install_fake_engine(tmp_path / "engine", monkeypatch)


def graded(folder, **settings):
    found = find_notebooks([folder / "in"])
    return sort_by_notebooks(found, grade(found, LIMIT_S, **settings))


def test_grades_are_the_same_however_many_run_at_a_time_and_in_containers(folder, engine):
    one_by_one = graded(folder)
    assert [one.passed_count for one in one_by_one] == [1, 0, 0]
    assert [bool(one.note) for one in one_by_one] == [False, True, True]
    assert list(one_by_one[1].sentences) == ["01-1"]
    assert graded(folder, jobs=3) == one_by_one
    assert graded(folder, jobs=2, runner=ContainerRunner("docker", "as-here")) == one_by_one
    assert [words[0] for words in read_calls(engine)] == ["run"] * 3


def test_the_command_grades_in_containers_and_writes_what_canvas_and_gradescope_read(
    folder, engine, ended, monkeypatch
):
    monkeypatch.chdir(folder)
    status, output, _ = ended(
        main, "grade", "--container", "--jobs", "2", "in", "--canvas", "canvas.csv", "--gradescope", "results"
    )
    assert status == 0 and "written to grades.csv, canvas.csv, results" in output
    assert {words[-3] for words in read_calls(engine)} == {f"gluonlab-grading:{gluonlab.__version__}"}
    rows = list(csv.reader(io.StringIO((folder / "canvas.csv").read_text(encoding="utf-8"))))
    assert [row[0].strip() for row in rows] == ["Student", "Points Possible", "ada", "bob", "eve"]
    assert [row[5] for row in rows] == ["Lab 01", "4", "1", "0", ""]
    [ada, *_] = sorted((folder / "results").iterdir())
    assert json.loads(ada.read_text(encoding="utf-8"))["score"] == 1


def test_an_engine_that_starts_nothing_is_one_line(folder, engine, ended, monkeypatch):
    monkeypatch.chdir(folder)
    (engine / "images" / "none.py").write_text("raise SystemExit('no daemon')")
    status, _, output = ended(main, "grade", "--container", "--image", "none", "in")
    assert status == 1 and "no daemon" in output and "graded 0 of 3 notebooks" in output
    assert not (folder / "grades.csv").exists()


def test_mistakes_of_the_command_line_are_one_line(folder, ended, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "")
    for words, line in {
        "--container": "docker or podman was not found on PATH",
        "--container --engine lxc": "unknown engine 'lxc': choose docker or podman",
        "--engine docker": "--engine only applies to containers: add --container",
        "--image x": "--image only applies to containers",
        "--show-hidden-cases": "add --seed N",
        "--seed -1": "--seed",
        "--jobs 0": "--jobs",
        "--assignment 2=x": "--assignment '2=x': pass the number of a lab and the name of its Canvas assignment",
        "--assignment 02=x": "needs a Canvas file: add --canvas FILE",
        "--gradescope r.json": "the results of only one notebook, but there are 3",
        "--canvas in": "--canvas in exists",
        "--canvas no/c.csv": "the folder no does not exist",
    }.items():
        status, _, output = ended(main, "grade", "in", *words.split())
        assert status != 0 and line in output, words
        assert len(output.splitlines()) == 1
    assert not (folder / "grades.csv").exists()


def test_neither_nbformat_nor_nbclient_is_needed(folder, tmp_path, monkeypatch):
    for name in ("nbformat", "nbclient"):
        (tmp_path / "without" / name).mkdir(parents=True)
        (tmp_path / "without" / name / "__init__.py").write_text(f"raise ImportError({name!r})")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "without"), str(REPOSITORY)]))
    command = [sys.executable, "-m", "gluonlab.exercises", "grade", "in/ada"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "  1 of 4" in done.stdout, done.stderr


def test_a_missing_kernel_is_one_line_that_says_what_to_install(folder, ended, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    monkeypatch.chdir(folder)
    output = ended(main, "grade", "in")[2]
    why = "notebooks cannot run because ipykernel is missing: run pip install 'gluonlab[labs]'"
    assert output == f"error: {why}\n"


def test_cases_of_a_seed_fail_what_was_learned_by_heart_and_only_reveal_names_them(tmp_path):
    record = (
        "rows = {}\ndef speedup(host, compute, total, k):\n"
        "    alone = max(host, compute)\n"
        "    together = alone if k == 1 else max(k * host, compute + total)\n"
        "    return rows.setdefault((host, compute, total, k), k * alone / together)\n"
    )
    learn = (
        "from gluonlab.exercises.exercise_registry import find_exercise, judge_answer\n"
        "judge_answer(find_exercise('03-5'), speedup)"
    )
    by_heart = "def by_heart(*case):\n    return rows.get(case, 1)\n"
    check = 'from gluonlab.exercises import check\ncheck("03-5", by_heart)'
    hand_in(tmp_path / "in" / "03.ipynb", record, learn, by_heart, check, lab="03")
    [visible], [hidden], [revealed] = (
        graded(tmp_path, **settings) for settings in ({}, {"seed": 5}, {"seed": 5, "reveal": True})
    )
    assert visible.statuses["03-5"] == PASSED
    assert hidden.statuses["03-5"] == revealed.statuses["03-5"] == "wrong"
    assert hidden.sentences["03-5"].startswith("correct for the cases that its check shows")
    assert "gave 1, expected" in revealed.sentences["03-5"]


@pytest.mark.parametrize("isolated", [False, True])
def test_ctrl_c_ends_all_that_run_and_keeps_what_is_graded(tmp_path, monkeypatch, isolated):
    engine = install_fake_engine(tmp_path / "engine", monkeypatch)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.ipynb").write_text("[]")
    sleep = "import subprocess\nsubprocess.Popen(['/bin/sleep', '4321']).wait()"
    for number in (2, 3):
        hand_in(tmp_path / "in" / f"{number}.ipynb", sleep)
    words = [sys.executable, "-m", "gluonlab.exercises", "grade", "in", "--jobs", "2", *["--container"] * isolated]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "grades.csv").exists() and list_own_sleeping())
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 130 and "graded 1 of 3 notebooks, written to grades.csv" in output
    assert "Traceback" not in output
    wait_until(lambda: not list_own_sleeping())
    assert (engine / "calls").exists() == isolated


def list_own_sleeping():
    """Return the processes of these notebooks, which name their program by its path."""
    return list_sleeping(b"/bin/sleep\x004321\0")
