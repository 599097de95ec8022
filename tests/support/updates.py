"""One parameter, updated by an optimizer."""

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.optimizers.optimizer_registry import make_optimizer


def run_updates(optimizer, weight, steps, dtype="float32"):
    """The weights after each (gradient, rate), as float64."""
    updater, array, found = mx.optimizer.get_updater(optimizer), nd.array(weight, dtype=dtype), []
    for grad, rate in steps:
        optimizer.set_learning_rate(rate)
        updater(0, nd.array(grad, dtype=dtype), array)
        found.append(array.asnumpy().astype("float64"))
    return found


def assert_close(found, expected, start, tolerance=1e-5, blurs=None):
    """Beside the largest number or step on the way, which later ones may be the difference of.

    Two digits more than float32's own are what MXNet's kernels lose: 1 - beta2 is 0.00099999 there,
    which lengthens each of Adam's steps by 6e-6 of itself. ``blurs``: `estimate_rounding_errors`.
    """
    sizes = running_sizes(expected, start)
    assert len(found) == len(expected)
    for one, other, size, blur in zip(found, expected, sizes, blurs or [0.0] * len(sizes)):
        assert np.isfinite(one).all()
        assert np.abs(one - other).max() <= tolerance * size + blur


def running_sizes(expected, start):
    """The largest number or step so far, after each step."""
    sizes, size, former = [], np.abs(start).max(), start
    for weight in expected:
        size, former = max(size, np.abs(weight).max(), np.abs(weight - former).max()), weight
        sizes.append(size)
    return sizes


def estimate_rounding_errors(reference, weight, steps, wd, tolerance, tries=8):
    """How far the definition's own answers, after each step, move with what it is given.

    Weights, gradients and rates are off by ``tolerance`` of themselves, up or down, and gradients
    by that of the penalty's, too, whose weights are what is left of larger ones. Small steps in one
    direction add up so, and what divides by a small gradient makes much of little: no float32 can
    be nearer. ``reference(weight, steps)`` is an iterable; ``wd`` of a penalty, else 0.
    """
    random, expected = np.random.RandomState(0), list(reference(weight, steps))
    sizes = [np.abs(weight).max(), *running_sizes(expected, weight)]
    blurs = np.zeros(len(steps))

    def off(shape=()):
        return tolerance * random.choice([-1, 1], shape)

    for _ in range(tries):
        others = [
            (grad * (1 + off(grad.shape)) + wd * size * off(grad.shape), rate * (1 + off()))
            for (grad, rate), size in zip(steps, sizes)
        ]
        moved = reference(weight * (1 + off(weight.shape)), others)
        distances = [np.abs(one - other).max() for one, other in zip(moved, expected)]
        blurs = np.maximum(blurs, distances)
    return list(blurs)


def trainer_arguments(optimizer, params):
    """What a Trainer takes: MXNet's by its name, or one of gluonlab's own."""
    return (
        (make_optimizer(optimizer[4:], params),)
        if optimizer.startswith("own ")
        else (optimizer, params)
    )
