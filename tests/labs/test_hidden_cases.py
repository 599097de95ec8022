"""Cases that students are not shown: right answers pass them, those that were written for the cases
shown do not.
"""

import json

import mxnet as mx
import numpy as np
import pytest
from support.lab_answers import judge_lab_answer
from test_answers import MISTAKEN, MISTAKES, OTHERS, STUBS, solution

from gluonlab.exercises.exercise_registry import (
    PASSED,
    SEED_VARIABLE,
    VERDICTS_VARIABLE,
    WRONG,
    case_rng,
    check,
    extra_cases,
    find_exercise,
    judge_answer,
    reseeded_cases,
)

# and 7, with which tests/exercises/test_answers.py checks all right answers
SEEDS = (0, 1, 2, 3, 2**32 - 1)
# Whose check is of an answer to one question, or of what happens while it runs: a clock that waits,
# what passes through `send`, how many images go through the network at once.
ONE_QUESTION = {"01-1", "04-2", "04-6", *(id for id in STUBS if id.startswith("10-"))}
NUMBERS_OF = mx.nd.NDArray.asnumpy  # which a checker counts, when an answer calls it
BEHAVIOR = {"01-2", "02-5", "04-5", "05-6", "06-2", "06-3", "07-1", "08-2", "09-2", "09-5", "09-7"}


def status(id, answer, seed=None):
    if seed is None:
        return judge_lab_answer(id, answer).status
    with reseeded_cases(seed):
        return judge_lab_answer(id, answer).status


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("id", STUBS)
def test_right_answers_pass_the_cases_of_any_seed(id, seed):
    with reseeded_cases(seed):
        verdicts = [judge_lab_answer(id, answer) for answer in (solution(id), *OTHERS.get(id, ()))]
    assert [verdict.texts["en"] for verdict in verdicts if verdict.status != PASSED] == []


@pytest.mark.long
@pytest.mark.parametrize(("id", "number"), MISTAKES)
def test_a_mistake_does_not(id, number):
    assert status(id, MISTAKEN[id][number][0], 7) != PASSED


class Notes:
    """An answer that remembers: what the solution made of each input, its arrays included."""

    def __init__(self, answer):
        self.answer, self.known, self.writes = answer, {}, True

    def __call__(self, *arguments):
        key = written(arguments)
        if self.writes:
            returned = self.answer(*arguments)
            self.known[key] = ([array.copy() for array in arrays_in(arguments)], returned)
            return returned
        effects, returned = self.known.get(key, ([], list(self.known.values())[-1][1]))
        for array, effect in zip(arrays_in(arguments), effects):
            array[:] = effect
        return returned


def written(value):
    """An input as text: arrays and networks by the numbers in them, functions all alike."""
    if isinstance(value, (list, tuple)):
        return str([written(one) for one in value])
    if isinstance(value, mx.nd.NDArray):
        return f"{value.context} {NUMBERS_OF(value).tolist()}"
    if isinstance(value, np.ndarray):
        return str(value.tolist())
    if isinstance(value, mx.gluon.Block):
        return written(arrays_in([value]))
    if hasattr(value, "ring_order"):
        return value.name
    return "" if callable(value) or isinstance(value, mx.gluon.Trainer) else repr(value)


def arrays_in(values):
    """The arrays of the arguments that an answer may write to."""
    arrays = []
    for value in values:
        if isinstance(value, (list, tuple)):
            arrays += arrays_in(value)
        if isinstance(value, mx.nd.NDArray):
            arrays.append(value)
        if isinstance(value, mx.gluon.Block):
            arrays += [array for parameter in value.collect_params().values() for array in parameter.list_data()]
    return arrays


@pytest.mark.parametrize("id", [id for id in STUBS if id not in ONE_QUESTION | BEHAVIOR])
def test_an_answer_written_for_the_cases_that_are_shown_fails_others(id):
    notes = Notes(solution(id))
    assert status(id, notes) == PASSED
    notes.writes = False
    assert status(id, notes) == PASSED
    assert status(id, notes, 7) != PASSED


def test_a_seed_draws_other_cases_and_the_same_ones_again():
    def some():
        return case_rng(3).randint(0, 10**6, 5).tolist(), extra_cases(2, lambda random: random.randint(10**6))

    shown = some()
    with reseeded_cases(1):
        one, again = some(), some()
    with reseeded_cases(2):
        other = some()
    assert one == again and some() == shown and shown[1] == [] and len(one[1]) == 2
    assert len({str(cases) for cases in (shown, one, other)}) == 3
    assert shown[0] == np.random.RandomState(3).randint(0, 10**6, 5).tolist()


def test_a_check_shows_a_student_the_visible_cases_and_tells_the_grader(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(VERDICTS_VARIABLE, str(tmp_path / "verdicts"))
    monkeypatch.setenv(SEED_VARIABLE, "7")
    known, speedup = {}, solution("03-5")

    def by_heart(*case):
        return known.setdefault(case, speedup(*case))

    judge_answer(find_exercise("03-5"), by_heart)
    assert check("03-5", lambda *case: known.get(case, 1))
    assert not check("03-5", lambda *case: 1)
    assert check("03-5", speedup)
    hidden, shown, right = map(json.loads, (tmp_path / "verdicts").read_text().splitlines())
    assert (hidden["status"], hidden["hidden"]) == (WRONG, True) and "gave 1" in hidden["message"]
    assert (shown["status"], shown["hidden"]) == (WRONG, False)
    assert (right["status"], right["hidden"]) == (PASSED, False)
