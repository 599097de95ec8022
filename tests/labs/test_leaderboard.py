"""The costs of right answers to 04-6, from the notebook through the table to the leaderboard."""

import csv
import io
import json

import pytest
from support.lab_answers import load_answers
from test_grade import grade_one, hand_in
from the_labs import PLACE

from gluonlab.errors import ExerciseError
from gluonlab.exercises.__main__ import main
from gluonlab.exercises.exercise_registry import PASSED, WRONG, find_exercise, judge_answer
from gluonlab.exercises.grading import Grade, as_csv, read_leaderboard
from gluonlab.exercises.notebook_runners import sanitize_result
from gluonlab_labs.exercises import solution_path

ANSWERS = load_answers("04")
SIX, SINGLE_PAIR = 1598.333, 1831.667  # microseconds: six rings, and five
SOLUTION = solution_path(PLACE.solutions, "04-6").read_text(encoding="utf-8")


def graded(name, micros, status=PASSED):
    costs = {} if micros is None else {"04-6": micros}
    return Grade(name, {"04-5": PASSED, "04-6": status}, lab="04", micros=costs)


@pytest.fixture
def table(tmp_path):
    def write(*grades):
        path = tmp_path / "grades.csv"
        path.write_text(as_csv(grades), encoding="utf-8")
        return path

    return write


def test_a_notebooks_price_is_in_its_row(tmp_path):
    begin = "import gluonlab\nfrom gluonlab.exercises import check"
    path = hand_in(tmp_path / "ada.ipynb", begin, SOLUTION, 'check("04-6", beat_the_eight)', lab="04")
    result = grade_one(path)
    assert result.statuses["04-6"] == PASSED
    assert result.micros == {"04-6": SIX}
    [line] = csv.DictReader(io.StringIO(as_csv([result])))
    assert line["04-6 us"] == "1598.333"


def test_prices_of_other_schedules_are_their_own_and_those_of_our_solver_have_none():
    micros = [judge_answer(find_exercise("04-6"), answer).micros for answer in ANSWERS.RIGHT["04-6"]]
    assert micros == [None, SIX, SIX, None, SINGLE_PAIR, SIX, SIX]


def test_a_table_without_prices_is_as_it_was():
    header = as_csv([Grade("a", {"01-1": PASSED})]).splitlines()[0]
    assert header == "notebook,01-1,passed,note,sentences"


FORGED = [True, "1", None, -1, 0, float("nan"), float("inf"), 1e15, []]


@pytest.mark.parametrize(
    ("status", "micros", "kept"), [*((PASSED, forged, None) for forged in FORGED), (WRONG, 5.0, None), (PASSED, 5, 5.0)]
)
def test_only_a_right_answer_with_a_plausible_cost_has_a_price(status, micros, kept):
    result = sanitize_result("04", "", [("04-6", {"status": status, "micros": micros})])
    assert result.verdicts["04-6"].micros == kept


def test_the_cheapest_comes_first_and_equal_ones_share_a_place(table):
    path = table(
        graded("c", 1700.0), graded("b", SIX), graded("x", None, WRONG), graded("a", SIX),
        graded("ours", None),
    )  # fmt: skip
    assert read_leaderboard(path) == [(1, SIX, "a"), (1, SIX, "b"), (3, 1700.0, "c")]


def test_the_command_compares_with_the_eight_and_the_floor(table, capsys):
    path = table(graded("in/ada/04.ipynb", SIX), graded("in/bob/04.ipynb", 2000.0))
    with pytest.raises(SystemExit) as end:
        main(["leaderboard", str(path)])
    assert end.value.code in (0, None)
    heading, *rows = capsys.readouterr().out.splitlines()
    assert "lower bound of 1,479.2" in heading
    assert [row.split()[:4] for row in rows] == [
        ["2,181.7", "1.475x", "the", "best"],
        ["1.", "1,598.3", "1.081x", "in/ada/04.ipynb"],
        ["2.", "2,000.0", "1.352x", "in/bob/04.ipynb"],
    ]


def test_json_has_the_places_and_nothing_else(table, capsys):
    path = table(graded("ada", SIX))
    with pytest.raises(SystemExit):
        main(["leaderboard", str(path), "--json"])
    assert json.loads(capsys.readouterr().out) == [{"place": 1, "micros": SIX, "notebook": "ada"}]


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (None, "cannot be read (No such file or directory): pass the table"),
        (b"notebook,passed\na,1\n", "does not contain the column '04-6 us'"),
        (b"", "does not contain the column '04-6 us'"),
        (b"\xff\xfe\x00", "is not a table of grades"),
        (b"notebook,04-6 us\na,fast\n", "line 2: 'fast' is not a time"),
        (b"notebook,04-6 us\na,nan\n", "line 2: 'nan' is not a time"),
    ],
)
def test_what_is_no_such_table_is_one_line(tmp_path, content, output):
    path = tmp_path / "grades.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExerciseError) as error:
        read_leaderboard(path)
    assert output in str(error.value) and "\n" not in str(error.value)
