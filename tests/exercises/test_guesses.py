"""Guesses: what may be written, what is held back until then, and the table of surprises."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd

from gluonlab.errors import ExerciseError
from gluonlab.exercises import because, guesses, observe, predict, surprises
from gluonlab.exercises.guesses import (
    GUESSES,
    HANDOUT_VARIABLE,
    ChoiceForm,
    DictForm,
    ListForm,
    NumberForm,
    YesNoForm,
    all_guesses,
    register_guess,
    wrap_text,
)
from gluonlab.exercises.languages import LANGUAGE_VARIABLE

JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
FRACTION = NumberForm(0, 1, example=0.5, within=0.1)


def count_columns(line):
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)


def remove_spaces(text):
    return "".join(text.split())


@pytest.fixture(params=["en", "ja"])
def language(request, monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, request.param)
    return request.param


@pytest.fixture
def ask(monkeypatch):
    """``ask(form)`` registers the guess 01-z; nothing has been guessed before."""
    monkeypatch.setattr(guesses, "_records", {})
    monkeypatch.setenv(LANGUAGE_VARIABLE, "en")
    monkeypatch.delenv(HANDOUT_VARIABLE, raising=False)
    asked = dict(GUESSES)

    def register(form, id="01-z"):
        register_guess(id, form, "how much is it?", "どれくらいか")

    yield register
    GUESSES.clear()
    GUESSES.update(asked)


WORD, SIZE, BIT = ChoiceForm("sum", "mean"), ChoiceForm(16, 64), ChoiceForm(0, 1)
YES_NO, PAIR = YesNoForm(), ListForm(FRACTION, 2)
BY_SIZE = DictForm(YES_NO, 16, 256)
ACCEPTED = [
    (FRACTION, 0.25, 0.25),
    (FRACTION, 1, 1),
    (FRACTION, np.float32(0.5), 0.5),
    (FRACTION, nd.array([0.5]), 0.5),
    (WORD, "mean", "mean"),
    (SIZE, np.int64(64), 64),
    (BIT, 1, 1),
    (YES_NO, np.bool_(True), True),
    (PAIR, (0, 1), [0, 1]),
    (PAIR, np.array([0.5, 1.0]), [0.5, 1.0]),
    (BY_SIZE, {256: False, 16: True}, {16: True, 256: False}),
]
REFUSED = [
    *((FRACTION, given) for given in ("0.5", 1.5, -0.1, float("nan"), True, None, [0.5])),
    *((WORD, given) for given in ("Sum", 0)),
    (BIT, True),
    *((YES_NO, given) for given in (1, "yes")),
    *((PAIR, given) for given in ([0.5], "01", 0.5)),
    *((BY_SIZE, given) for given in ({16: True}, {"16": True, "256": True}, True)),
]


@pytest.mark.parametrize(("form", "given", "read"), ACCEPTED)
def test_a_guess_is_read_as_the_form_says(form, given, read):
    value = form.read(given)
    assert value == read and type(value) is type(read)


@pytest.mark.parametrize(("form", "given"), REFUSED)
def test_a_guess_of_another_form_is_one_remark_and_no_guess(form, given, ask, language, capsys):
    ask(form)
    predict("01-z", given)
    text = capsys.readouterr().out
    assert remove_spaces(form.describe()[language == "ja"]) in remove_spaces(text)
    assert max(map(count_columns, text.splitlines())) <= 80
    with observe("01-z", _some_answer(form)):
        print("the result")
    assert "the result" not in capsys.readouterr().out


EXACT, DOUBLE, HUNDREDFOLD = NumberForm(example=1), NumberForm(example=1, factor=2), NumberForm(example=1, factor=100)
EXPECTED = [
    (FRACTION, 0.3, 0.39),
    (EXACT, 3, 3.0),
    (DOUBLE, 4, 7.9),
    (DOUBLE, 4, 2.1),
    (HUNDREDFOLD, 0, 0),
    (DOUBLE, -4, -4),
    (PAIR, [0, 1], [0, 0.95]),
]
SURPRISING = [
    (FRACTION, 0.3, 0.41),
    (EXACT, 3, 3.01),
    (DOUBLE, 4, 8.1),
    (HUNDREDFOLD, 0, 1e-9),
    (DOUBLE, -4, -5),
    (ChoiceForm("a", "b"), "a", "b"),
    (PAIR, [0, 1], [0.2, 1]),
    (DictForm(YesNoForm(), 1, 2), {1: True, 2: True}, {1: True, 2: False}),
]


@pytest.mark.parametrize(
    ("form", "guessed", "measured", "agree"),
    [(*case, True) for case in EXPECTED] + [(*case, False) for case in SURPRISING],
)
def test_a_guess_within_its_tolerance_is_expected_and_others_are_surprises(form, guessed, measured, agree, ask, capsys):
    ask(form)
    predict("01-z", guessed)
    with observe("01-z", measured):
        print("the result")
    text = capsys.readouterr().out
    assert "the result" in text
    assert (("a surprise" in text), ("as you expected" in text)) == (not agree, agree)
    surprises()
    assert ("01-z" in capsys.readouterr().out) != agree


@pytest.mark.parametrize(
    ("form", "unwritten"), [(FRACTION, ...), (PAIR, [..., ...]), (PAIR, [0.5, ...]), (BY_SIZE, {16: True, 256: ...})]
)
def test_an_unwritten_guess_is_asked_for_and_its_result_held_back(form, unwritten, ask, language, capsys):
    ask(form)
    predict("01-z", unwritten)
    text = capsys.readouterr().out
    assert {"en": "how much is it?", "ja": "どれくらいか"}[language] in text
    assert remove_spaces(form.describe()[language == "ja"]) in remove_spaces(text)
    ran = []
    with observe("01-z", {FRACTION: 0.123}.get(form, form.read(_some_answer(form)))):
        print("the result")
        ran.append(True)
    held = capsys.readouterr().out
    assert ran  # what later cells need is there
    assert len(held.splitlines()) == 1 and "01-z" in held and count_columns(held.rstrip()) <= 80
    assert "the result" not in held and "0.123" not in held
    assert bool(JAPANESE.search(text + held)) == (language == "ja")
    surprises()
    assert "01-z" not in capsys.readouterr().out


def _some_answer(form):
    return next(given for accepted, given, _ in ACCEPTED if accepted is form)


def test_a_guess_may_be_changed_until_the_result_is_known(ask, capsys):
    ask(FRACTION)
    predict("01-z", 0.9)
    predict("01-z", 0.2)
    with observe("01-z", 0.75):
        pass
    assert "your guess 0.2, measured 0.75" in capsys.readouterr().out
    predict("01-z", 0.75)
    assert "your first guess counts: 0.2" in capsys.readouterr().out
    predict("01-z", 0.2)  # the cell is run once more
    assert "stays" not in capsys.readouterr().out


def test_the_first_measurement_stays_though_the_program_has_been_mended(ask, capsys):
    ask(ChoiceForm("equal", "apart"))
    predict("01-z", "equal")
    for measured in ("apart", "equal"):
        with observe("01-z", measured):
            pass
    assert "equal this time, apart at first" in capsys.readouterr().out
    surprises()
    assert re.search(r"equal +apart", capsys.readouterr().out)


@pytest.mark.parametrize("guessed", [..., 0.5])
def test_an_error_in_the_block_is_not_swallowed(guessed, ask):
    ask(FRACTION)
    predict("01-z", guessed)
    with pytest.raises(ZeroDivisionError), observe("01-z", 0.5):
        raise ZeroDivisionError


def test_an_explanation_is_asked_for_checked_and_kept(ask, language, capsys):
    ask(FRACTION)
    because("01-z", ...)
    because("01-z", "it waits for the other one")
    predict("01-z", 0)
    with observe("01-z", 1):
        pass
    for little in ("", "yes", 5, None):
        because("01-z", little)
    surprises()
    assert "waits" not in capsys.readouterr().out
    because("01-z", "it waits for the other one")
    surprises()
    assert "it waits for the other one" in capsys.readouterr().out


def test_the_table_has_80_columns_and_nothing_is_lost(ask, language, capsys):
    for letter, measured in zip("xyz", (0, 0.5, 1)):
        ask(ListForm(NumberForm(example=1, within=0.1), 6), f"01-{letter}")
        predict(f"01-{letter}", [0.5] * 6)
        with observe(f"01-{letter}", [measured] * 6):
            pass
        because(f"01-{letter}", "both wait for one another, 互いに待つからです。" * 5)
    capsys.readouterr()
    surprises()
    text = capsys.readouterr().out
    assert max(map(count_columns, text.splitlines())) <= 80
    assert "01-x" in text and "01-z" in text and "01-y" not in text
    assert remove_spaces(text).count("互いに待つからです。") == 10
    assert {"en": "your guess", "ja": "予想"}[language] in text


def test_in_a_handout_results_are_shown_and_nothing_is_compared(ask, language, monkeypatch, capsys):
    monkeypatch.setenv(HANDOUT_VARIABLE, "1")
    ask(FRACTION)
    predict("01-z", ...)
    because("01-z", ...)
    capsys.readouterr()
    with observe("01-z", 0.75):
        print("the result")
    assert capsys.readouterr().out == "the result\n"


def test_an_author_s_mistake_is_one_line(ask):
    ask(FRACTION)
    for call in (predict, because):
        with pytest.raises(ExerciseError, match=r"unknown guess '01-q': choose 01-a, "):
            call("01-q", ...)
    with pytest.raises(ExerciseError, match=r"unknown guess 3: "):
        observe(3, 0.5)
    with pytest.raises(ExerciseError, match=r"guess 01-z: the measured value, 7, is not a number"):
        observe("01-z", 7)
    with pytest.raises(ExerciseError, match=r"'01-z' is not a valid id for a guess, or is already used"):
        ask(FRACTION)
    with pytest.raises(ExerciseError, match=r"'1-a' is not a valid id for a guess"):
        ask(FRACTION, "1-a")


@pytest.mark.parametrize("asked", all_guesses(), ids=lambda one: one.id)
def test_questions_are_short_and_in_their_language(asked):
    assert asked.question["en"].endswith("?") and not JAPANESE.search(asked.question["en"])
    assert len(JAPANESE.findall(asked.question["ja"])) > 4
    # four lines of the table's column
    assert all(len(wrap_text(text, 36)) <= 4 for text in asked.question.values())


@given(st.text(st.sampled_from("ab日本、。 "), max_size=60), st.integers(4, 20))
def test_wrapping_keeps_the_text_and_the_width(text, most):
    lines = wrap_text(text, most)
    assert all(count_columns(line) <= most for line in lines)
    assert remove_spaces("".join(lines)) == remove_spaces(text)
