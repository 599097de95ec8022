"""Pairwise testing: all pairs of values in `make test`, all combinations in `make test-all`."""

from itertools import combinations, product

import pytest


def pairwise(where=lambda **case: True, **values):
    """Parametrize a test so that each pair of values of two arguments occurs in `make test`.

    The other combinations are marked long. The choice depends on the order of the values only.

    Args:
        where: called with each combination by name; False excludes the combination.
        values: the values of each argument, by its name.
    """
    names = list(values)
    cases = [case for case in product(*values.values()) if where(**dict(zip(names, case)))]
    chosen = choose_covering_cases(cases)
    return pytest.mark.parametrize(
        ",".join(names),
        [pytest.param(*case, marks=() if number in chosen else pytest.mark.long) for number, case in enumerate(cases)],
    )


def choose_covering_cases(cases):
    """Return positions of cases which together contain every pair of values that any case has."""
    case_pairs = [_argument_pairs(case) for case in cases]
    missing, chosen = set().union(*case_pairs), set()
    while missing:
        best = max(range(len(cases)), key=lambda number: (len(case_pairs[number] & missing), -number))
        chosen.add(best)
        missing -= case_pairs[best]
    return chosen


def _argument_pairs(case):
    """Return the pairs of a case, or its one value, by repr: values need not be hashable."""
    values = [(position, repr(value)) for position, value in enumerate(case)]
    return set(combinations(values, 2)) or set(values)


def long_cases(*values):
    """Return the same values as parameters that only `make test-all` runs."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def product_cases(*choices, keep):
    """Return every combination as a pytest.param, marked ``long`` unless ``keep`` has it."""
    cases = list(product(*choices))
    assert set(keep) <= set(cases)
    return [pytest.param(*case, marks=[] if case in keep else pytest.mark.long) for case in cases]
