"""Moments, compared with those that are counted one by one."""

from hypothesis import given
from hypothesis import strategies as st

from gluonlab.timeline.timeline import intersect_intervals, merge_intervals, total_length

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def moments(intervals):
    return {moment for begin, end in intervals for moment in range(begin, end)}


@given(INTERVALS, INTERVALS)
def test_interval_operations_equal_sets_of_moments(one, other):
    ours, theirs = merge_intervals(one), merge_intervals(other)
    assert moments(ours) == moments(one)
    assert moments(intersect_intervals(ours, theirs)) == moments(one) & moments(other)
    assert total_length(ours) == len(moments(one))
    ends = [edge for each in ours for edge in each]
    assert ends == sorted(set(ends))
