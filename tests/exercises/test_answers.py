"""Every checker accepts right answers, also in cases that students are not shown, and names the
mistakes that students make. make check-labs tests the rest of the notebooks.
"""

import pytest
from support.lab_answers import alternative_answers, find_verdict_fault, judge_lab_answer, lab_mistakes, load_solution

from gluonlab.exercises.exercise_registry import all_exercises, reseeded_cases

pytestmark = pytest.mark.cpu_only(
    "checkers of exercises watch CPU devices: their waits, their threads, operators that mix them"
)

MISTAKES = lab_mistakes()
RIGHT = alternative_answers()
# Checks that train for a tenth of a second. make test takes their solutions and these of their
# mistakes, which reach nearly every line of the checker; make test-all and check-labs take all.
FEW = {"06-3": (6, 15), "07-1": (3, 10, 15, 17), "09-7": (2, 12, 17)}
SLOW = {*FEW, "04-6", "09-6"}


def all_of(id, slow):
    return pytest.param(id, id=id, marks=[pytest.mark.long] if id in slow else [])


def refusals(answers):
    """List the right answers that are refused in cases that no student is shown, and why."""
    with reseeded_cases(7):
        verdicts = [(id, judge_lab_answer(id, answer)) for id, answer in answers]
    return [f"{id}: {verdict.texts['en']}" for id, verdict in verdicts if not verdict]


def misnamed(id, numbers):
    """List the faults of the verdicts on these mistakes."""
    return [text for text in (find_verdict_fault(id, number) for number in numbers) if text]


def test_every_exercise_has_mistakes():
    assert sorted(MISTAKES) == sorted(one.id for one in all_exercises())


@pytest.mark.parametrize("id", [all_of(id, set(RIGHT) - SLOW) for id in MISTAKES])
def test_a_checker_accepts_the_solution(id):
    assert refusals([(id, load_solution(id))]) == []


@pytest.mark.parametrize("id", [all_of(id, SLOW) for id in RIGHT])
def test_a_checker_accepts_right_answers_of_other_kinds(id):
    assert refusals([(id, answer) for answer in RIGHT[id]]) == []


@pytest.mark.filterwarnings("ignore:(Mean of empty|invalid value):RuntimeWarning")  # of answers
@pytest.mark.parametrize("id", [all_of(id, FEW) for id in MISTAKES])
def test_a_checker_names_the_mistakes_that_students_make_in_both_languages(id):
    assert misnamed(id, range(len(MISTAKES[id]))) == []


@pytest.mark.parametrize(("id", "numbers"), FEW.items(), ids=list(FEW))
def test_a_slow_checker_names_some_mistakes_of_each_kind(id, numbers):
    assert misnamed(id, numbers) == []
