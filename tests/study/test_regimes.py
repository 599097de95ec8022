"""The rule of the three regimes, on curves whose regimes are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from gluonlab.study.batch_size import (
    DIMINISHING,
    PERFECT,
    REGIMES,
    STAGNATION,
    find_regimes,
    isotonic_decreasing,
    largest_perfect_size,
    scaling_exponents,
    smallest_stagnant_size,
)

SIZES = [2**power for power in range(15)]
VALUES = st.lists(st.tuples(st.floats(-2, 3), st.floats(0.1, 5)), min_size=1, max_size=12)
STEPS = st.lists(st.floats(1, 1e6), min_size=2, max_size=12)


def test_a_noise_scale_of_128_images_has_its_regimes_around_it():
    """McCandlish et al., 2018: steps = least * (1 + scale / size); the exponent at a size is
    scale / (size + scale): 3/4 at a third of the scale, 1/4 at three times it.
    """
    steps = [50 * (1 + 128 / size) for size in SIZES]
    assert [part.regime for part in find_regimes(SIZES, steps)] == list(REGIMES)
    assert largest_perfect_size(SIZES, steps) == pytest.approx(128 / 3, rel=math.sqrt(2))
    assert smallest_stagnant_size(SIZES, steps) == pytest.approx(128 * 3, rel=math.sqrt(2))


@pytest.mark.parametrize(
    ("power", "regime"), [(1.0, PERFECT), (0.5, DIMINISHING), (0.0, STAGNATION), (-1.0, STAGNATION)]
)
def test_a_power_law_is_one_regime(power, regime):
    steps = [1e6 / size**power for size in SIZES]
    assert scaling_exponents(SIZES, steps) == pytest.approx([power] * 14)
    assert find_regimes(SIZES, steps) == [(regime, 1, SIZES[-1])]
    assert smallest_stagnant_size(SIZES, steps) == (1 if regime == STAGNATION else None)


def test_a_single_bump_does_not_make_a_regime_come_twice():
    steps = [1024, 512, 300, 128, 64, 60, 62, 58]
    regimes = find_regimes(SIZES[:8], steps)
    assert [part.regime for part in regimes] == [PERFECT, STAGNATION]
    assert regimes[0].right == regimes[1].left == 16


@given(VALUES)
def test_falling_is_isotonic_regression(pairs):
    values, weights = zip(*pairs)
    expected = IsotonicRegression(increasing=False).fit_transform(np.arange(len(values)), values, sample_weight=weights)
    assert isotonic_decreasing(values, weights) == pytest.approx(list(expected), abs=1e-9)


@given(STEPS, st.floats(0.1, 10))
def test_regimes_follow_each_other_and_do_not_depend_on_units(steps, factor):
    sizes = SIZES[: len(steps)]
    regimes = find_regimes(sizes, steps)
    assert (regimes[0].left, regimes[-1].right) == (sizes[0], sizes[-1])
    assert all(before.right == after.left for before, after in zip(regimes, regimes[1:]))
    order = [REGIMES.index(part.regime) for part in regimes]
    assert order == sorted(set(order))
    assert regimes[0].left <= largest_perfect_size(sizes, steps) <= (smallest_stagnant_size(sizes, steps) or math.inf)
    assert find_regimes(sizes, [2 * each for each in steps]) == regimes


def test_a_single_size_has_no_regime():
    with pytest.raises(ValueError, match="at least two batch sizes"):
        find_regimes([1], [10])
