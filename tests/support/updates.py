"""One parameter, updated by an optimizer."""

import mxnet as mx
import numpy as np
from mxnet import nd


def updated(optimizer, weight, steps, dtype="float32"):
    """The weights after each (gradient, rate), as float64."""
    updater, array, found = mx.optimizer.get_updater(optimizer), nd.array(weight, dtype=dtype), []
    for grad, rate in steps:
        optimizer.set_learning_rate(rate)
        updater(0, nd.array(grad, dtype=dtype), array)
        found.append(array.asnumpy().astype("float64"))
    return found


def assert_close(found, expected, start, tolerance=1e-5):
    """Beside the largest number or step on the way, which later ones may be the difference of.

    Two digits more than float32's own are what MXNet's kernels lose: 1 - beta2 is 0.00100005 there.
    """
    assert len(found) == len(expected)
    size, former = np.abs(start).max(), start
    for one, other in zip(found, expected):
        size, former = max(size, np.abs(other).max(), np.abs(other - former).max()), other
        assert np.isfinite(one).all()
        assert np.abs(one - other).max() <= tolerance * size
