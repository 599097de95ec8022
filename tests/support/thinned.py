"""Tables of cases of which `make test` takes some, `make test-all` all."""

from itertools import product

import pytest


def thinned(*choices, keep):
    """Every combination as one pytest.param; those that are not among ``keep`` are marked
    ``long``.
    """
    cases = list(product(*choices))
    assert set(keep) <= set(cases)
    return [pytest.param(*case, marks=[] if case in keep else pytest.mark.long) for case in cases]
