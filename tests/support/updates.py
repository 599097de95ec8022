"""Updates of one parameter by an optimizer, and their comparison with a reference."""

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.optimizers.optimizer_registry import make_optimizer


def run_updates(optimizer, weight, steps, dtype="float32"):
    """Return the weights after each (gradient, rate), as float64."""
    updater, array = mx.optimizer.get_updater(optimizer), nd.array(weight, dtype=dtype)
    weights = []
    for grad, rate in steps:
        optimizer.set_learning_rate(rate)
        updater(0, nd.array(grad, dtype=dtype), array)
        weights.append(array.asnumpy().astype("float64"))
    return weights


def assert_close(weights, expected, start, tolerance=1e-5, blurs=None):
    """Check that weights are close, relative to the largest weight or step so far.

    The tolerance is 100 times that of float32, because 1 - beta2 is 0.00099999 in MXNet's kernels,
    which lengthens each step of Adam by a factor of 6e-6. ``blurs``: more absolute tolerance of
    each step, as by `estimate_rounding_errors`.
    """
    sizes = running_sizes(expected, start)
    assert len(weights) == len(expected)
    for one, other, size, blur in zip(weights, expected, sizes, blurs or [0.0] * len(sizes)):
        assert np.isfinite(one).all()
        assert np.abs(one - other).max() <= tolerance * size + blur


def running_sizes(expected, start):
    """Return the largest weight or step so far, after each step."""
    sizes, size, previous = [], np.abs(start).max(), start
    for weight in expected:
        size, previous = max(size, np.abs(weight).max(), np.abs(weight - previous).max()), weight
        sizes.append(size)
    return sizes


def estimate_rounding_errors(reference, weight, steps, wd, tolerance, tries=8):
    """Return how much relative errors of the inputs change the reference, after each step.

    Weights, gradients, rates, and the gradient of the penalty get random relative errors of
    ``tolerance``. No float32 computation can be more accurate: errors of small steps in one
    direction add up, and a division by a small gradient amplifies them.

    Args:
        reference: ``reference(weight, steps)`` returns the weights after each step.
        weight: the initial weights.
        steps: (gradient, rate) of each step.
        wd: the weight decay, if it is a penalty, else 0.
        tolerance: the relative error.
        tries: the number of random errors.
    """
    random, expected = np.random.RandomState(0), list(reference(weight, steps))
    sizes = [np.abs(weight).max(), *running_sizes(expected, weight)]
    blurs = np.zeros(len(steps))

    def error(shape=()):
        return tolerance * random.choice([-1, 1], shape)

    for _ in range(tries):
        inexact_steps = [
            (grad * (1 + error(grad.shape)) + wd * size * error(grad.shape), rate * (1 + error()))
            for (grad, rate), size in zip(steps, sizes)
        ]
        inexact = reference(weight * (1 + error(weight.shape)), inexact_steps)
        distances = [np.abs(one - other).max() for one, other in zip(inexact, expected)]
        blurs = np.maximum(blurs, distances)
    return list(blurs)


def trainer_arguments(optimizer, params):
    """Return the arguments of a Trainer for an optimizer of MXNet, or of gluonlab ("own NAME")."""
    return (make_optimizer(optimizer[4:], params),) if optimizer.startswith("own ") else (optimizer, params)
