"""Counterexamples: the first fault that is there is said, in both languages, once."""

import numpy as np
import pytest
from mxnet import nd

from gluonlab.exercises import Wrong
from gluonlab.exercises.explain_wrong_answers import (
    NO_TEXT,
    CaseText,
    counterexample,
    is_close_number,
    pick_explanation,
)


def test_what_it_looks_like_is_said_last_in_each_language():
    assert counterexample("got 1", "1 です", ("one less", "1 少ない")).texts == {
        "en": "got 1: one less",
        "ja": "1 です。1 少ない",
    }
    assert counterexample("got 1", "1 です", NO_TEXT).texts == {"en": "got 1", "ja": "1 です"}


def test_the_first_fault_that_is_there_is_said_of_its_case():
    case = CaseText("2 images", "2 枚")
    with pytest.raises(Wrong) as raised:
        case.check_faults((False, "a", "あ"), (1, "b", "い"), (True, "c", "う"))
    assert raised.value.texts == {"en": "2 images: b", "ja": "2 枚: い"}
    case.check_faults((0, "a", "あ"), ([], "b", "い"))


def test_nothing_is_said_where_nothing_is_so():
    assert pick_explanation() is NO_TEXT
    assert pick_explanation((False, "a", "あ")) is NO_TEXT


@pytest.mark.parametrize("got", [2, 2.0, np.float32(2), np.int64(2), 2 + 1e-9])
def test_a_number_but_for_rounding_is_near(got):
    assert is_close_number(got, 2)
    assert not is_close_number(got, 2.001)


@pytest.mark.parametrize("got", [None, "2", [2], ..., nd.array([2])])
def test_what_is_no_number_is_near_none(got):
    assert not is_close_number(got, 2)
