"""Bootstrap intervals: as wide as expected, the same each time, and with draws without a number."""

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


def test_a_common_part_of_pairs_is_not_in_their_interval():
    draw = random.Random(4)
    shared = [draw.gauss(0, 100) for _ in range(30)]
    groups = [[value + 1 for value in shared], shared]
    difference = lambda sample: mean(sample[0]) - mean(sample[1])  # noqa: E731
    assert bootstrap_interval(groups, difference, paired=True) == pytest.approx((1, 1))
    low, high = bootstrap_interval(groups, difference)
    assert high - low > 50


def test_draws_without_a_number_count_at_both_ends():
    values = [[1.0, 2.0, 3.0, 4.0, 5.0]]

    def median_unless(condition):
        return lambda groups: None if condition(len(set(groups[0]))) else median(groups[0])

    usual = bootstrap_interval(values, median_unless(lambda different: False))
    assert bootstrap_interval(values, median_unless(lambda different: different == 1)) == usual  # 1 draw of 625
    assert bootstrap_interval(values, median_unless(lambda different: different < 5)) is None
    assert bootstrap_interval([[1.0]], lambda groups: groups[0][0]) is None
    assert bootstrap_interval([], lambda groups: 0.0) is None
