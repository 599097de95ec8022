"""Sets of moments, as sorted lists of intervals (begin, end) that neither touch nor overlap."""

from __future__ import annotations

from typing import Iterable, List, Tuple

Interval = Tuple[float, float]


def merged(intervals: Iterable[Interval]) -> List[Interval]:
    """The moments that lie in any of them."""
    found: List[Interval] = []
    for begin, end in sorted(each for each in intervals if each[0] < each[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def common(one: List[Interval], other: List[Interval]) -> List[Interval]:
    """The moments that lie in both."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            found.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(moments: List[Interval]) -> float:
    """How long they last together."""
    return sum(end - begin for begin, end in moments)
