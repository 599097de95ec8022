"""Counterexamples: the first fault that is present is described once, in both languages."""

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


def test_the_likely_mistake_comes_last_in_each_language():
    texts = counterexample("got 1", "1 です", ("one less", "1 少ない")).texts
    assert texts == {"en": "got 1: one less", "ja": "1 です。1 少ない"}
    assert counterexample("got 1", "1 です", NO_TEXT).texts == {"en": "got 1", "ja": "1 です"}


def test_the_first_fault_that_is_present_is_reported_with_its_case():
    case = CaseText("2 images", "2 枚")
    with pytest.raises(Wrong) as raised:
        case.check_faults((False, "a", "あ"), (1, "b", "い"), (True, "c", "う"))
    assert raised.value.texts == {"en": "2 images: b", "ja": "2 枚: い"}
    case.check_faults((0, "a", "あ"), ([], "b", "い"))
    assert pick_explanation((False, "a", "あ")) is NO_TEXT


@pytest.mark.parametrize("got", [2, 2.0, np.float32(2), np.int64(2), 2 + 1e-9])
def test_a_number_is_close_up_to_rounding(got):
    assert is_close_number(got, 2) and not is_close_number(got, 2.001)


@pytest.mark.parametrize("got", [None, "2", [2], ..., nd.array([2])])
def test_other_values_are_close_to_no_number(got):
    assert not is_close_number(got, 2)
