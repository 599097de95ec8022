"""What an optimizer's update reads and writes, as far as a prediction prices it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

from mxnet import nd

from gluonlab.optimizers.registry import make_optimizer, optimizer_kind

# MXNet has one kernel for each of these; the others take several operators.
ONE_KERNEL = ("sgd", "nag", "signum", "adam", "rmsprop")
SHAPE = (2, 3)  # of the weight that is asked about


@lru_cache(maxsize=None)
def states(name: str, momentum: bool) -> int:
    """How many arrays as large as the weights it keeps. Raises ConfigError for an unknown one."""
    options = {"momentum": 0.9 if momentum else 0.0} if optimizer_kind(name).momentum else {}
    return _arrays(make_optimizer(name, options).create_state(0, nd.ones(SHAPE)))


def by_bucket(name: str) -> bool:
    """Whether a whole bucket is updated at once, and not parameter by parameter."""
    return optimizer_kind(name).element_wise


def caution_about(name: str) -> Optional[str]:
    """What of its update is not priced, if anything is not."""
    if name.lower() in ONE_KERNEL:
        return None
    return (
        f"--optimizer {name.lower()} is priced as one kernel that moves weights, gradients and "
        "state once; it takes several, so its update is slower"
    )


def _arrays(state: Any) -> int:
    """State comes alone, in a tuple, or as None."""
    if isinstance(state, (tuple, list)):
        return sum(map(_arrays, state))
    return int(state is not None and state.shape == SHAPE)
