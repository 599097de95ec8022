"""Every exercise: its solution passes, its stub is kindly called unwritten, and mistakes that
students make are named.
"""

import pytest
from support.lab_answers import (
    JAPANESE,
    alternative_answers,
    define_cell_names,
    find_verdict_fault,
    judge_lab_answer,
    lab_mistakes,
    verdict_texts,
)
from the_labs import LABS, PLACE

from gluonlab.exercises.exercise_registry import PASSED, UNWRITTEN, WRONG, all_exercises, lab_modules
from gluonlab_labs.exercises import FAULTY, find_stubs, last_defined_name, solution_path

CELLS = {id: cell for lab in LABS.values() for id, cell in find_stubs(lab).items()}
STUBS = {id: cell.source for id, cell in CELLS.items()}
MISTAKEN, OTHERS = lab_mistakes(), alternative_answers()
RIGHT = [(id, number) for id, answers in OTHERS.items() for number in range(len(answers))]
MISTAKES = [(id, number) for id, wrong in MISTAKEN.items() for number in range(len(wrong))]
CODE = {lab: tuple(cell.source for cell in LABS[lab].code_cells()) for lab in LABS}


def answer_of(id, source):
    """The function or value that a stub or a solution defines."""
    return define_cell_names(source, id[:2], CODE[id[:2]])[last_defined_name(STUBS[id])]


def solution(id):
    return answer_of(id, solution_path(PLACE.solutions, id).read_text(encoding="utf-8"))


def test_every_exercise_has_a_stub_a_checker_a_solution_and_three_wrong_answers():
    assert sorted(STUBS) == sorted(exercise.id for exercise in all_exercises())
    assert all(exercise.summary and "\n" not in exercise.summary for exercise in all_exercises())
    assert set(lab_modules()) == set(LABS)
    assert sorted(path.stem for path in PLACE.solutions.glob("*.py")) == sorted(STUBS)
    assert sorted(MISTAKEN) == sorted(STUBS)
    assert {id: len(wrong) for id, wrong in MISTAKEN.items() if len(wrong) < 3} == {}


@pytest.mark.parametrize("id", STUBS)
def test_the_solution_passes(id):
    verdict = judge_lab_answer(id, solution(id))
    assert verdict.status == PASSED, verdict_texts(verdict)["en"]
    cost = {language: verdict.micros and f"\n{text}" for language, text in verdict.texts.items()}
    assert verdict_texts(verdict) == {
        "en": f"Exercise {id}: correct{cost['en'] or ''}",
        "ja": f"演習 {id}: 正解です{cost['ja'] or ''}",
    }


@pytest.mark.parametrize(("id", "number"), RIGHT)
def test_a_right_answer_of_another_kind_passes(id, number):
    verdict = judge_lab_answer(id, OTHERS[id][number])
    assert verdict.status == PASSED, verdict_texts(verdict)["en"]


@pytest.mark.parametrize("id", STUBS)
def test_the_stub_as_it_stands_is_kindly_called_unwritten_or_wrong(id):
    verdict = judge_lab_answer(id, answer_of(id, STUBS[id]))
    faulty = FAULTY in CELLS[id].tags
    assert verdict.status == (WRONG if faulty else UNWRITTEN), verdict_texts(verdict)["en"]
    # followed by its symptom
    symptom = ("the bug is still there: ", "a bug is left: ")
    assert verdict.texts["en"].startswith(symptom) == faulty
    assert JAPANESE.search(verdict.texts["ja"])


@pytest.mark.parametrize(("id", "number"), MISTAKES)
def test_a_mistake_is_named_in_both_languages(id, number):
    assert find_verdict_fault(id, number) == ""
