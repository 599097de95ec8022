"""A plugin of pytest, for a process on a simulated machine: a test begins without faults, and fails if the machine finds one."""

import pytest
from gpus import simulated


@pytest.fixture(autouse=True)
def faultless():
    """``faultless.expected()`` takes the faults that a test has planted."""
    simulated.forget_faults()
    yield
    left = simulated.faults()
    simulated.forget_faults()
    assert left == [], "the simulated GPUs found faults"


@pytest.fixture
def planted():
    """``planted()``: the faults so far, which are expected then, and forgotten."""

    def take():
        found = simulated.faults()
        simulated.forget_faults()
        return found

    return take
