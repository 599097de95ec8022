"""Moments, compared with those that are counted one by one."""

from hypothesis import given
from hypothesis import strategies as st

from gluonlab.timeline.timeline import common, length, merged

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def moments(intervals):
    return {moment for begin, end in intervals for moment in range(begin, end)}


@given(INTERVALS, INTERVALS)
def test_they_are_the_same_moments(one, other):
    ours, theirs = merged(one), merged(other)
    assert moments(ours) == moments(one)
    assert moments(common(ours, theirs)) == moments(one) & moments(other)
    assert length(ours) == len(moments(one))
    ends = [edge for each in ours for edge in each]
    assert ends == sorted(set(ends))
