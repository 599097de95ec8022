"""Operations on intervals, compared with sets of moments."""

from hypothesis import given
from hypothesis import strategies as st

from gluonlab.timeline.timeline import intersect_intervals, merge_intervals, total_length

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def moments(intervals):
    return {moment for begin, end in intervals for moment in range(begin, end)}


@given(INTERVALS, INTERVALS)
def test_interval_operations_equal_sets_of_moments(one, other):
    merged = merge_intervals(one)
    assert moments(merged) == moments(one)
    assert moments(intersect_intervals(merged, merge_intervals(other))) == moments(one) & moments(other)
    assert total_length(merged) == len(moments(one))
    edges = [edge for interval in merged for edge in interval]
    assert edges == sorted(set(edges))
