"""What is a number that training can go on with, and what is not."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Sequence

import numpy as np
from mxnet import gluon, nd

from gluonlab.engine.fast_invoke import Attributes, OperatorCall
from gluonlab.errors import DivergedError, warn
from gluonlab.plain_text import named

MOST_ARRAYS = 200  # that multi_all_finite takes
# A mean loss of so much means scores that lie further apart than float32 tells from their
# neighbours: it has 24 digits, and from here on none of them for the differences of 1 that softmax
# is made of. A network that guesses has log(classes), 2.3 to 10; steps that are too large, and
# recovered from, take it to some thousands.
LARGEST_LOSS = 2.0**24


def is_healthy(loss: float) -> bool:
    """Whether a mean loss is one that training can recover from: a number, below LARGEST_LOSS."""
    return math.isfinite(loss) and loss < LARGEST_LOSS


def diverged(what: str, loss: float, when: str) -> str:
    """``the loss became 5e+17 at step 3: use a smaller learning rate (--lr)``."""
    return f"{what} became {loss:.3g}{when and ' '}{when}: use a smaller learning rate (--lr)"


def never_healthy(loss: float) -> str:
    """The message for the loss of a run's first step: no update, and so no rate, has made it."""
    return (
        f"the loss is {loss:.3g} at step 1, before any update: look for numbers that are not "
        "finite, or very large, in the initial parameters, and for log(0) or a division by 0 in "
        "the network or the loss"
    )


def check_loss(what: str, loss: float, when: str = "") -> None:
    """Raise DivergedError for a mean loss that is not healthy."""
    if not is_healthy(loss):
        raise DivergedError(diverged(what, loss, when))


def may_be_early(loss: float, has_statistics: bool) -> bool:
    """whether BatchNorm's running statistics can be why a test loss is not healthy.

    After a few steps they hold much of what they began with, and every layer multiplies that error:
    a ResNet-50 whose training loss falls had 3e12 after 6 steps. Batches, and so the training loss,
    bring statistics of their own.
    """
    return has_statistics and math.isfinite(loss) and not is_healthy(loss)


def check_validation_loss(loss: float, when: str, has_statistics: bool) -> None:
    """Raise DivergedError for one that is not healthy, and warn where it `may_be_early`.

    Training losses are healthy here.
    """
    if not may_be_early(loss, has_statistics):
        check_loss("the test loss", loss, when)
        return
    message = (
        f"the test loss is {loss:.3g} {when}: "
        "BatchNorm's running statistics are not yet those of the images; "
        "if it stays so, train longer, or in larger batches"
    )
    warn(message)


class AllFinite:
    """Whether some arrays of one device, all of one floating type, hold nothing but numbers."""

    def __init__(self, arrays: Sequence[nd.NDArray]) -> None:
        self._flag = nd.ones((1,), ctx=arrays[0].context)
        self._calls = []
        for begin in range(0, len(arrays), MOST_ARRAYS):
            some = arrays[begin : begin + MOST_ARRAYS]
            attributes = Attributes({"num_arrays": len(some), "init_output": begin == 0})
            self._calls.append((OperatorCall("multi_all_finite", some, self._flag), attributes))

    def look(self) -> None:
        """Queue it; nothing waits."""
        for call, attributes in self._calls:
            call(attributes)

    def found(self) -> bool:
        """Wait for what `look` has queued."""
        return bool(self._flag.asscalar())


def broken_parameters(net: gluon.Block) -> List[str]:
    """The names of the first replica's parameters and running statistics with NaN or infinity.

    The first is what is saved. No loss tells: the CPU's ReLU makes 0 of NaN. Of healthy parameters
    one number for each floating type and device is read; broken ones are fetched to be named.
    """
    by_kind: Dict[Any, Dict[str, nd.NDArray]] = {}
    for name, param in net.collect_params().items():
        kind, first = np.dtype(param.dtype), param.list_data()[0].as_nd_ndarray()
        if np.issubdtype(kind, np.floating):
            by_kind.setdefault((kind, first.context), {})[name] = first
    checks = [(AllFinite(list(arrays.values())), arrays) for arrays in by_kind.values()]
    for check, _ in checks:
        check.look()
    broken = [arrays for check, arrays in checks if not check.found()]
    suspects = {name: array for arrays in broken for name, array in arrays.items()}
    return [
        name
        for name in net.collect_params()
        if name in suspects and not np.isfinite(suspects[name].asnumpy()).all()
    ]


def check_parameters(net: gluon.Block, when: str) -> None:
    """Raise DivergedError, which names them, when there are `broken_parameters`.

    ``when``: as in ``after step 12``.
    """
    broken = broken_parameters(net)
    if broken:
        verb = "are" if len(broken) > 1 else "is"
        raise DivergedError(
            f"{named(broken)} of the network {verb} no longer finite {when}: "
            "use a smaller learning rate (--lr), or another --optimizer"
        )
