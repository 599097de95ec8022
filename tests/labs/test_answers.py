"""Every exercise: its solution passes, its stub is kindly called unwritten, and mistakes that
students make are named.
"""

import ast
import dataclasses
import re
import warnings

import pytest
from made_up_clock import run_on_a_made_up_clock
from support.waiting import LIMIT_S
from the_labs import LABS, PLACE, module_of

from gluonlab.exercises.checking import judge
from gluonlab.exercises.exercise import all_exercises, find, labs
from gluonlab.exercises.verdict import PASSED, TOO_SLOW, UNWRITTEN, WRONG
from gluonlab_labs.exercises import FAULTY, name_of, solution_path, stubs

CELLS = {id: cell for lab in LABS.values() for id, cell in stubs(lab).items()}
STUBS = {id: cell.source for id, cell in CELLS.items()}
MISTAKEN = {lab: module_of("answers", lab).WRONG for lab in LABS}
RIGHT = [
    (id, number)
    for lab in LABS
    for id, answers in getattr(module_of("answers", lab), "RIGHT", {}).items()
    for number in range(len(answers))
]
MISTAKES = [
    (id, number)
    for lab in LABS
    for id, mistakes in MISTAKEN[lab].items()
    for number in range(len(mistakes))
]
JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


def names_for(lab, capsys):
    """What a solution may count on: the names that its lab imports, and ``here``."""
    names = {}
    for cell in LABS[lab].codes():
        body = ast.parse(cell.source).body
        kept = [
            node
            for node in body
            if isinstance(node, (ast.Import, ast.ImportFrom)) or "setup(" in ast.unparse(node)[:20]
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(ast.Module(kept, []), f"lab{lab}", "exec"), names)
    capsys.readouterr()
    return names


def answer_of(source, lab, capsys):
    names = names_for(lab, capsys)
    exec(compile(source, f"/tmp/answer-{lab}.py", "exec"), names)
    return names


def verdict_on(id, answer):
    """The verdict, however long this machine takes; 01-2 is about a clock, which the test makes."""
    exercise = find(id)._replace(seconds=LIMIT_S)
    if id == "01-2":
        with run_on_a_made_up_clock():
            return judge(exercise, answer)
    return judge(exercise, answer)


def said(verdict):
    """What a student reads in each language."""
    return {
        language: repr(dataclasses.replace(verdict, language=language)) for language in ("en", "ja")
    }


def test_every_exercise_has_a_stub_a_checker_a_solution_and_three_wrong_answers():
    checkers = {one.id for one in all_exercises()}
    assert sorted(STUBS) == sorted(checkers)
    assert set(labs()) == set(LABS)
    assert sorted(path.stem for path in PLACE.solutions.glob("*.py")) == sorted(STUBS)
    for lab in LABS:
        assert sorted(MISTAKEN[lab]) == sorted(id for id in STUBS if id[:2] == lab)
        assert {
            id: len(mistakes) for id, mistakes in MISTAKEN[lab].items() if len(mistakes) < 3
        } == {}


@pytest.mark.parametrize("id", STUBS)
def test_every_checker_has_one_line_about_it(id):
    assert find(id).summary
    assert "\n" not in find(id).summary


@pytest.mark.parametrize("id", STUBS)
def test_the_solution_passes(id, capsys):
    source = solution_path(PLACE.solutions, id).read_text(encoding="utf-8")
    answer = answer_of(source, id[:2], capsys)[name_of(STUBS[id])]
    verdict = verdict_on(id, answer)
    assert verdict.status == PASSED, said(verdict)["en"]
    cost = {language: verdict.micros and f"\n{text}" for language, text in verdict.texts.items()}
    assert said(verdict) == {
        "en": f"Exercise {id}: correct{cost['en'] or ''}",
        "ja": f"演習 {id}: 正解です{cost['ja'] or ''}",
    }


@pytest.mark.parametrize(("id", "number"), RIGHT)
def test_a_right_answer_of_another_kind_passes(id, number):
    verdict = verdict_on(id, module_of("answers", id[:2]).RIGHT[id][number])
    assert verdict.status == PASSED, said(verdict)["en"]


@pytest.mark.parametrize("id", STUBS)
def test_the_stub_as_it_stands_is_kindly_called_unwritten_or_wrong(id, capsys):
    answer = answer_of(STUBS[id], id[:2], capsys)[name_of(STUBS[id])]
    verdict = verdict_on(id, answer)
    faulty = FAULTY in CELLS[id].tags
    assert verdict.status == (WRONG if faulty else UNWRITTEN), said(verdict)["en"]
    # followed by its symptom
    symptom = ("the fault is still there: ", "a fault is left: ")
    assert verdict.texts["en"].startswith(symptom) == faulty
    assert JAPANESE.search(verdict.texts["ja"])


@pytest.mark.parametrize(("id", "number"), MISTAKES)
def test_a_mistake_is_named_in_both_languages(id, number):
    answer, english, japanese = MISTAKEN[id[:2]][id][number]
    verdict = verdict_on(id, answer)
    assert verdict.status not in (PASSED, TOO_SLOW, UNWRITTEN), said(verdict)["en"]
    assert re.search(english, verdict.texts["en"], re.M), verdict.texts["en"]
    assert re.search(japanese, verdict.texts["ja"], re.M), verdict.texts["ja"]
    assert JAPANESE.search(verdict.texts["ja"])
    assert not JAPANESE.search(verdict.texts["en"])
