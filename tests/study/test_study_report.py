"""Rounds of bench's measurements, put together: the numbers of each, in order."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from gluonlab.bench.harness.measurement_record import Series
from gluonlab.study.study_report import merge_rounds, series_to_json

ROUNDS = st.lists(st.lists(st.floats(1e-9, 1e9), max_size=2), min_size=1, max_size=5)


@given(ROUNDS)
def test_values_follow_each_other_by_round(rounds):
    parts = [series_to_json([Series("a", "A", "s", tuple(values))]) for values in rounds]
    assert merge_rounds(parts) == [Series("a", "A", "s", tuple(chain(*rounds)))]


def test_what_failed_in_a_round_has_its_reason_and_no_values():
    whole, broken = Series("a", "A", "s", (1.0,)), Series("a", "A", "s", (), "it died")
    for order in ([whole, broken, whole], [broken, whole]):
        assert merge_rounds([series_to_json([one]) for one in order]) == [broken]


def test_a_series_of_one_round_alone_is_kept():
    first, second = Series("a", "A", "s", (1.0,)), Series("b", "B", "B", (2.0,))
    assert merge_rounds([series_to_json([first]), series_to_json([first, second])]) == [
        Series("a", "A", "s", (1.0, 1.0)),
        second,
    ]
