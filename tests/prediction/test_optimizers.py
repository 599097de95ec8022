"""What a prediction knows about optimizers is what they do."""

import pytest

from gluonlab.errors import ConfigError
from gluonlab.optimizers.registry import OPTIMIZERS
from gluonlab.prediction.optimizers import states

# From the optimizers' papers: first and second moments, or one of them.
KEPT = {
    "sgd": 1, "nag": 1, "signum": 1, "lars": 1, "adam": 2, "adamax": 2, "nadam": 2, "adadelta": 2,
    "adagrad": 1, "rmsprop": 1, "ftml": 1, "lamb": 2,
}  # fmt: skip
WITHOUT_MOMENTUM = {"sgd": 0, "nag": 0, "lars": 0, "signum": 1}


def test_the_states_of_every_optimizer_are_counted():
    assert {name: states(name, True) for name in OPTIMIZERS} == KEPT
    assert {name: states(name, False) for name in OPTIMIZERS} == {**KEPT, **WITHOUT_MOMENTUM}
    with pytest.raises(ConfigError, match="sgdd"):
        states("sgdd", True)
