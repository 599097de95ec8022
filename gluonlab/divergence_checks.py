"""Checks that losses and parameters are finite, that is, that training has not diverged."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Sequence

import numpy as np
from mxnet import gluon, nd

from gluonlab.engine.fast_invoke import Attributes, OperatorCall
from gluonlab.errors import DivergedError, warn
from gluonlab.plain_text import shorten_names

MAX_ARRAYS = 200  # multi_all_finite accepts at most this many arrays
# Training cannot recover from a mean loss of this size or more. The scores are then so far apart
# that float32, with 24 binary digits, cannot represent the differences of 1 on which softmax
# depends. For comparison, a network that guesses has a loss of log(classes), about 2.3 to 10. The
# loss of a training that recovers from too large steps reaches several thousand.
LARGEST_LOSS = 2.0**24


def is_healthy(loss: float) -> bool:
    """Return whether a mean loss is finite and below LARGEST_LOSS, so that training can recover."""
    return math.isfinite(loss) and loss < LARGEST_LOSS


def divergence_message(quantity: str, loss: float, when: str) -> str:
    """Return a message such as ``the loss became 5e+17 at step 3: use a smaller learning rate (--lr)``."""
    return f"{quantity} became {loss:.3g}{when and ' '}{when}: use a smaller learning rate (--lr)"


def first_loss_message(loss: float) -> str:
    """Return the message for an unhealthy loss in the first step, before any update."""
    return (
        f"the loss is {loss:.3g} at step 1, before any update: look for numbers that are not "
        "finite, or very large, in the initial parameters, and for log(0) or a division by 0 in "
        "the model or the loss"
    )


def check_loss(quantity: str, loss: float, when: str = "") -> None:
    """Raise DivergedError if a mean loss is not healthy (`is_healthy`).

    ``quantity``: the name of the loss in the message. ``when``: a text such as ``at step 3``.
    """
    if not is_healthy(loss):
        raise DivergedError(divergence_message(quantity, loss, when))


def may_be_unsettled_running_statistics(loss: float, has_statistics: bool) -> bool:
    """Return whether BatchNorm's running statistics alone may explain an unhealthy validation loss.

    After only a few steps, the running statistics are still close to their initial values. Every
    layer amplifies the resulting error: a ResNet-50 had a validation loss of 3e12 after 6 steps,
    although its training loss decreased. The training loss does not depend on the running
    statistics.

    ``has_statistics``: whether the network has BatchNorm layers.
    """
    return has_statistics and math.isfinite(loss) and not is_healthy(loss)


def check_validation_loss(loss: float, when: str, has_statistics: bool) -> None:
    """Raise DivergedError for an unhealthy validation loss, or warn if BatchNorm may be the cause.

    Call this only if the training losses are healthy.
    """
    if not may_be_unsettled_running_statistics(loss, has_statistics):
        check_loss("the validation loss", loss, when)
        return
    warn(
        f"the validation loss is {loss:.3g} {when}: the running statistics of BatchNorm do not "
        "fit the images yet; if the loss stays this high, train longer, or use larger batches"
    )


class FiniteCheck:
    """Checks that arrays contain only finite numbers.

    All arrays must be on the same device and have the same floating-point type.
    """

    def __init__(self, arrays: Sequence[nd.NDArray]) -> None:
        self._flag = nd.ones((1,), ctx=arrays[0].context)
        self._calls = []
        for start in range(0, len(arrays), MAX_ARRAYS):
            group = arrays[start : start + MAX_ARRAYS]
            attributes = Attributes({"num_arrays": len(group), "init_output": start == 0})
            self._calls.append((OperatorCall("multi_all_finite", group, self._flag), attributes))

    def start_check(self) -> None:
        """Queue the check without waiting for it."""
        for call, attributes in self._calls:
            call(attributes)

    def read_result(self) -> bool:
        """Wait for the queued check; return True if all numbers are finite."""
        return bool(self._flag.asscalar())


def nonfinite_parameters(net: gluon.Block) -> List[str]:
    """Return the names of the parameters and running statistics that contain NaN or infinity.

    Only the first replica is checked, because it is the replica that is saved. This check is needed
    in addition to the check of the loss. The loss may stay finite, because the CPU's ReLU turns NaN
    into 0. If all parameters are finite, only one number is read for each floating-point type and
    device.
    """
    by_kind: Dict[Any, Dict[str, nd.NDArray]] = {}
    for name, param in net.collect_params().items():
        kind, first = np.dtype(param.dtype), param.list_data()[0].as_nd_ndarray()
        if np.issubdtype(kind, np.floating):
            by_kind.setdefault((kind, first.context), {})[name] = first
    checks = [(FiniteCheck(list(arrays.values())), arrays) for arrays in by_kind.values()]
    for check, _ in checks:
        check.start_check()
    broken = [arrays for check, arrays in checks if not check.read_result()]
    suspects = {name: array for arrays in broken for name, array in arrays.items()}
    return [
        name for name in net.collect_params() if name in suspects and not np.isfinite(suspects[name].asnumpy()).all()
    ]


def check_parameters(net: gluon.Block, when: str) -> None:
    """Raise DivergedError if a parameter is not finite. ``when``: text like ``after step 12``."""
    broken = nonfinite_parameters(net)
    if broken:
        noun, verb = ("parameters", "are") if len(broken) > 1 else ("parameter", "is")
        raise DivergedError(
            f"the model's {noun} {shorten_names(broken)} {verb} no longer finite {when}: use a smaller "
            "learning rate (--lr), or another --optimizer"
        )
