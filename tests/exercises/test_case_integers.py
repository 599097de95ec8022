"""The integers of cases are those of NumPy's legacy generator."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.exercises.case_integers import CaseIntegers

SEEDS = st.integers(0, 2**32 - 1)
RANGES = st.tuples(st.integers(-(10**6), 10**6), st.integers(1, 2**31)).map(lambda pair: (pair[0], sum(pair)))


@given(SEEDS | st.lists(SEEDS, min_size=1, max_size=3), st.lists(RANGES, min_size=1, max_size=5), st.integers(0, 9))
def test_integers_are_those_of_numpy(seed, ranges, size):
    ours, numpys = CaseIntegers(seed), np.random.RandomState(seed)
    for low, high in ranges:
        assert ours.randint(low, high) == numpys.randint(low, high)
        assert ours.randint(low, high, size) == numpys.randint(low, high, size).tolist()
        assert ours.randint(high - low) == numpys.randint(high - low)


def test_more_numbers_than_the_state_holds_are_those_of_numpy():
    assert CaseIntegers(54).randint(0, 100, 2000) == np.random.RandomState(54).randint(0, 100, 2000).tolist()


def test_an_empty_range_is_refused():
    with pytest.raises(ValueError, match=r"randint\(3, 3\): use a range"):
        CaseIntegers(0).randint(3, 3)
