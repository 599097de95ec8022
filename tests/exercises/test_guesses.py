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


def columns(line):
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)


def squeezed(text):
    return "".join(text.split())


@pytest.fixture(params=["en", "ja"])
def spoken(request, monkeypatch):
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


def printed(capsys):
    return capsys.readouterr().out


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
    (FRACTION, "0.5"),
    (FRACTION, 1.5),
    (FRACTION, -0.1),
    (FRACTION, float("nan")),
    (FRACTION, True),
    (FRACTION, None),
    (FRACTION, [0.5]),
    (WORD, "Sum"),
    (WORD, 0),
    (BIT, True),
    (YES_NO, 1),
    (YES_NO, "yes"),
    (PAIR, [0.5]),
    (PAIR, "01"),
    (PAIR, 0.5),
    (BY_SIZE, {16: True}),
    (BY_SIZE, {"16": True, "256": True}),
    (BY_SIZE, True),
]


@pytest.mark.parametrize(("form", "given", "read"), ACCEPTED)
def test_a_guess_is_read_as_the_form_says(form, given, read):
    found = form.read(given)
    assert found == read and type(found) is type(read)


@pytest.mark.parametrize(("form", "given"), REFUSED)
def test_a_guess_of_another_form_is_one_remark_and_no_guess(form, given, ask, spoken, capsys):
    ask(form)
    predict("01-z", given)
    said = printed(capsys)
    assert squeezed(form.describe()[spoken == "ja"]) in squeezed(said)
    assert max(map(columns, said.splitlines())) <= 80
    with observe("01-z", _some_answer(form)):
        print("the result")
    assert "the result" not in printed(capsys)


AGREE = [
    (FRACTION, 0.3, 0.39, True),
    (FRACTION, 0.3, 0.41, False),
    (NumberForm(example=1), 3, 3.0, True),
    (NumberForm(example=1), 3, 3.01, False),
    (NumberForm(example=1, factor=2), 4, 7.9, True),
    (NumberForm(example=1, factor=2), 4, 2.1, True),
    (NumberForm(example=1, factor=2), 4, 8.1, False),
    (NumberForm(example=1, factor=100), 0, 1e-9, False),
    (NumberForm(example=1, factor=100), 0, 0, True),
    (NumberForm(example=1, factor=2), -4, -4, True),
    (NumberForm(example=1, factor=2), -4, -5, False),
    (ChoiceForm("a", "b"), "a", "b", False),
    (ListForm(FRACTION, 2), [0, 1], [0, 0.95], True),
    (ListForm(FRACTION, 2), [0, 1], [0.2, 1], False),
    (DictForm(YesNoForm(), 1, 2), {1: True, 2: True}, {1: True, 2: False}, False),
]


@pytest.mark.parametrize(("form", "guessed", "measured", "agree"), AGREE)
def test_what_counts_as_expected_and_what_as_a_surprise(form, guessed, measured, agree, ask, capsys):
    ask(form)
    predict("01-z", guessed)
    with observe("01-z", measured):
        print("the result")
    said = printed(capsys)
    assert "the result" in said
    assert ("a surprise" in said) != agree
    assert ("as you expected" in said) == agree
    surprises()
    assert ("01-z" in printed(capsys)) != agree


@pytest.mark.parametrize(
    ("form", "unwritten"), [(FRACTION, ...), (PAIR, [..., ...]), (PAIR, [0.5, ...]), (BY_SIZE, {16: True, 256: ...})]
)
def test_an_unwritten_guess_is_asked_for_and_its_result_held_back(form, unwritten, ask, spoken, capsys):
    ask(form)
    predict("01-z", unwritten)
    said = printed(capsys)
    assert {"en": "how much is it?", "ja": "どれくらいか"}[spoken] in said
    assert squeezed(form.describe()[spoken == "ja"]) in squeezed(said)
    ran = []
    with observe("01-z", {FRACTION: 0.123}.get(form, form.read(_some_answer(form)))):
        print("the result")
        ran.append(True)
    held = printed(capsys)
    assert ran  # what later cells need is there
    assert len(held.splitlines()) == 1 and "01-z" in held and columns(held.rstrip()) <= 80
    assert "the result" not in held and "0.123" not in held
    assert bool(JAPANESE.search(said + held)) == (spoken == "ja")
    surprises()
    assert "01-z" not in printed(capsys)


def _some_answer(form):
    return next(given for accepted, given, _ in ACCEPTED if accepted is form)


def test_a_guess_may_be_changed_until_the_result_is_known(ask, capsys):
    ask(FRACTION)
    predict("01-z", 0.9)
    predict("01-z", 0.2)
    with observe("01-z", 0.75):
        pass
    assert "your guess 0.2, measured 0.75" in printed(capsys)
    predict("01-z", 0.75)
    assert "your first guess stays: 0.2" in printed(capsys)
    predict("01-z", 0.2)  # the cell is run once more
    assert "stays" not in printed(capsys)


def test_the_first_measurement_stays_though_the_program_has_been_mended(ask, capsys):
    ask(ChoiceForm("equal", "apart"))
    predict("01-z", "equal")
    for measured in ("apart", "equal"):
        with observe("01-z", measured):
            pass
    assert "equal this time, apart at first" in printed(capsys)
    surprises()
    assert re.search(r"equal +apart", printed(capsys))


@pytest.mark.parametrize("guessed", [..., 0.5])
def test_an_error_in_the_block_is_not_swallowed(guessed, ask):
    ask(FRACTION)
    predict("01-z", guessed)
    with pytest.raises(ZeroDivisionError), observe("01-z", 0.5):
        raise ZeroDivisionError


def test_an_explanation_is_asked_for_checked_and_kept(ask, spoken, capsys):
    ask(FRACTION)
    because("01-z", ...)
    because("01-z", "it waits for the other one")
    predict("01-z", 0)
    with observe("01-z", 1):
        pass
    for little in ("", "yes", 5, None):
        because("01-z", little)
    surprises()
    assert "waits" not in printed(capsys)
    because("01-z", "it waits for the other one")
    surprises()
    assert "it waits for the other one" in printed(capsys)


def test_the_table_has_80_columns_and_nothing_is_lost(ask, spoken, capsys):
    for letter, measured in zip("xyz", (0, 0.5, 1)):
        ask(ListForm(NumberForm(example=1, within=0.1), 6), f"01-{letter}")
        predict(f"01-{letter}", [0.5] * 6)
        with observe(f"01-{letter}", [measured] * 6):
            pass
        because(f"01-{letter}", "both wait for one another, 互いに待つからです。" * 5)
    printed(capsys)
    surprises()
    said = printed(capsys)
    assert max(map(columns, said.splitlines())) <= 80
    assert "01-x" in said and "01-z" in said and "01-y" not in said
    assert squeezed(said).count("互いに待つからです。") == 10
    assert {"en": "your guess", "ja": "予想"}[spoken] in said


def test_in_a_handout_results_are_shown_and_nothing_is_compared(ask, spoken, monkeypatch, capsys):
    monkeypatch.setenv(HANDOUT_VARIABLE, "1")
    ask(FRACTION)
    predict("01-z", ...)
    because("01-z", ...)
    printed(capsys)
    with observe("01-z", 0.75):
        print("the result")
    assert printed(capsys) == "the result\n"


def test_an_author_s_mistake_is_one_line(ask):
    ask(FRACTION)
    for call in (predict, because):
        with pytest.raises(ExerciseError, match=r"unknown guess '01-q': choose 01-a, "):
            call("01-q", ...)
    with pytest.raises(ExerciseError, match=r"unknown guess 3: "):
        observe(3, 0.5)
    with pytest.raises(ExerciseError, match=r"guess 01-z: 7 was measured, which is not a number"):
        observe("01-z", 7)
    with pytest.raises(ExerciseError, match=r"'01-z' cannot name a guess, or is taken"):
        ask(FRACTION)
    with pytest.raises(ExerciseError, match=r"'1-a' cannot name a guess"):
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
    assert all(columns(line) <= most for line in lines)
    assert squeezed("".join(lines)) == squeezed(text)
