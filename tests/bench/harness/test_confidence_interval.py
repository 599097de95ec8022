"""Bootstrap intervals: as wide as the statistics says, the same each time, and honest about gaps.

Those of ratios are tested with the comparisons that print them.
"""

import math
import random
from statistics import mean, median

import pytest

from gluonlab.bench.harness.confidence_interval import bootstrap_interval


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    draw = random.Random(3)
    values = [draw.gauss(10, 2) for _ in range(200)]
    low, high = bootstrap_interval([values], lambda groups: mean(groups[0]))
    deviation = math.sqrt(sum((v - mean(values)) ** 2 for v in values)) / len(values)
    assert low == pytest.approx(mean(values) - 1.96 * deviation, abs=0.05)
    assert high == pytest.approx(mean(values) + 1.96 * deviation, abs=0.05)
    assert bootstrap_interval([values], lambda groups: mean(groups[0])) == (low, high)


def test_what_pairs_have_in_common_is_not_in_their_interval():
    draw = random.Random(4)
    shared = [draw.gauss(0, 100) for _ in range(30)]
    groups = [[each + 1 for each in shared], shared]
    difference = lambda drawn: mean(drawn[0]) - mean(drawn[1])  # noqa: E731
    assert bootstrap_interval(groups, difference, paired=True) == pytest.approx((1, 1))
    low, high = bootstrap_interval(groups, difference)
    assert high - low > 50


def test_draws_without_a_number_count_at_both_ends():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]

    def middle(groups):
        return None if len(set(groups[0])) == 1 else median(groups[0])  # 1 draw of 625

    def rarely(groups):
        return median(groups[0]) if len(set(groups[0])) == 5 else None

    # a draw in 625 that has no number reaches neither end
    assert bootstrap_interval([values], middle) == bootstrap_interval([values], lambda groups: median(groups[0]))
    assert bootstrap_interval([values], rarely) is None
    assert bootstrap_interval([[1.0]], lambda groups: groups[0][0]) is None
    assert bootstrap_interval([], lambda groups: 0.0) is None
