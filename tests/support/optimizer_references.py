"""Reference implementations of optimizers in NumPy and float64, independent of MXNet and gluonlab.

A reference is a generator. It takes (gradient, learning rate) of each step, and yields the weights
after the step. Weight decay is the penalty wd / 2 * |w|^2, whose gradient is added to the gradient
before or after clipping, unless a paper defines it otherwise.
"""

import numpy as np


def penalized_gradient(weight, grad, wd, clip=None, clip_last=False):
    """Add the gradient of the penalty; ``clip_last``: clip the sum instead of the gradient."""
    limit = np.inf if clip is None else clip
    if clip_last:
        return np.clip(grad + wd * weight, -limit, limit)
    return np.clip(grad, -limit, limit) + wd * weight


def sgd(weight, steps, momentum=0.0, wd=0.0, clip=None):
    """Yield weights by Sutskever et al. 2013, equations 1 and 2: v = m v + g, w = w - rate v."""
    v = np.zeros_like(weight)
    for grad, rate in steps:
        v = momentum * v + penalized_gradient(weight, grad, wd, clip)
        weight = weight - rate * v
        yield weight


def sgd_mxnet_momentum(weight, steps, momentum=0.0, wd=0.0, clip=None):
    """Yield weights by the rule of MXNet: v = m v - rate g, w = w + v."""
    v = np.zeros_like(weight)
    for grad, rate in steps:
        v = momentum * v - rate * penalized_gradient(weight, grad, wd, clip)
        weight = weight + v
        yield weight


def nag(weight, steps, momentum=0.0, wd=0.0, clip=None):
    """Yield weights by Sutskever et al. 2013, equations 3 and 4, at the look-ahead position."""
    v = np.zeros_like(weight)
    for grad, rate in steps:
        grad = penalized_gradient(weight, grad, wd, clip)
        v = momentum * v + grad
        weight = weight - rate * (grad + momentum * v)
        yield weight


def adam(weight, steps, wd=0.0, clip=None, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Yield weights by Kingma, Ba 2015, end of section 2: epsilon after the uncorrected root."""
    m = v = np.zeros_like(weight)
    for t, (grad, rate) in enumerate(steps, start=1):
        grad = penalized_gradient(weight, grad, wd, clip, clip_last=True)
        m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
        weight = weight - rate * np.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (np.sqrt(v) + epsilon)
        yield weight


def adamax(weight, steps, wd=0.0, clip=None, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Yield weights by Kingma, Ba 2015, algorithm 2, with the epsilon of PyTorch in u."""
    m = u = np.zeros_like(weight)
    for t, (grad, rate) in enumerate(steps, start=1):
        grad = penalized_gradient(weight, grad, wd, clip, clip_last=True)
        m, u = beta1 * m + (1 - beta1) * grad, np.maximum(beta2 * u, np.abs(grad) + epsilon)
        weight = weight - rate / (1 - beta1**t) * m / u
        yield weight


def nadam(weight, steps, wd=0.0, clip=None, beta1=0.9, beta2=0.999, epsilon=1e-8, decay=0.004):
    """Yield weights by Dozat 2016, algorithm 2, with its schedule of the momentum."""
    m = v = np.zeros_like(weight)
    product = 1.0
    for t, (grad, rate) in enumerate(steps, start=1):
        grad = penalized_gradient(weight, grad, wd, clip, clip_last=True)
        current, following = (beta1 * (1 - 0.5 * 0.96 ** (decay * s)) for s in (t, t + 1))
        product *= current
        m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
        ahead = (1 - current) * grad / (1 - product) + following * m / (1 - product * following)
        weight = weight - rate * ahead / (np.sqrt(v / (1 - beta2**t)) + epsilon)
        yield weight


def adagrad(weight, steps, wd=0.0, clip=None, epsilon=1e-10):
    """Yield weights by Duchi et al. 2011, figure 1, with delta after the root."""
    total = np.zeros_like(weight)
    for grad, rate in steps:
        grad = penalized_gradient(weight, grad, wd, clip, clip_last=True)
        total = total + grad**2
        weight = weight - rate * grad / (np.sqrt(total) + epsilon)
        yield weight


def adadelta(weight, steps, wd=0.0, clip=None, rho=0.9, epsilon=1e-6):
    """Yield weights by Zeiler 2012, algorithm 1, times a learning rate."""
    squares = updates = np.zeros_like(weight)
    for grad, rate in steps:
        grad = penalized_gradient(weight, grad, wd, clip, clip_last=True)
        squares = rho * squares + (1 - rho) * grad**2
        delta = np.sqrt(updates + epsilon) / np.sqrt(squares + epsilon) * grad
        updates = rho * updates + (1 - rho) * delta**2
        weight = weight - rate * delta
        yield weight


def rmsprop(weight, steps, wd=0.0, clip=None, decay=0.9, epsilon=1e-8):
    """Yield weights by Tieleman, Hinton 2012, slide 29, with epsilon under the root."""
    squares = np.zeros_like(weight)
    for grad, rate in steps:
        grad = penalized_gradient(weight, grad, wd, clip, clip_last=True)
        squares = decay * squares + (1 - decay) * grad**2
        weight = weight - rate * grad / np.sqrt(squares + epsilon)
        yield weight


def ftml(weight, steps, wd=0.0, clip=None, beta1=0.6, beta2=0.999, epsilon=1e-8):
    """Yield weights by Zheng, Kwok 2017, algorithm 1."""
    d = v = z = np.zeros_like(weight)
    for t, (grad, rate) in enumerate(steps, start=1):
        grad = penalized_gradient(weight, grad, wd, clip, clip_last=True)
        v = beta2 * v + (1 - beta2) * grad**2
        former, d = d, (1 - beta1**t) / rate * (np.sqrt(v / (1 - beta2**t)) + epsilon)
        z = beta1 * z + (1 - beta1) * grad - (d - beta1 * former) * weight
        weight = -z / d
        yield weight


def signum(weight, steps, momentum=0.9, wd=0.0, clip=None):
    """Yield weights by Bernstein et al. 2018, algorithm 2, or algorithm 1 without momentum."""
    m = np.zeros_like(weight)
    for grad, rate in steps:
        m = momentum * m + (1 - momentum) * penalized_gradient(weight, grad, wd, clip)
        weight = weight - rate * np.sign(m)
        yield weight


def lars(weight, steps, momentum=0.0, wd=0.0, clip=None, eta=0.001):
    """Yield weights of a layer by You, Gitman, Ginsburg 2017, algorithm 1.

    The momentum does not contain the global learning rate.
    """
    v = np.zeros_like(weight)
    limit = np.inf if clip is None else clip
    for grad, rate in steps:
        grad = np.clip(grad, -limit, limit)
        weight_norm, grad_norm = np.linalg.norm(weight), np.linalg.norm(grad)
        trust = eta * weight_norm / (grad_norm + wd * weight_norm) if weight_norm and grad_norm else 1.0
        v = momentum * v + trust * (grad + wd * weight)
        weight = weight - rate * v
        yield weight


def lamb(weight, steps, wd=0.0, clip=None, beta1=0.9, beta2=0.999, epsilon=1e-6):
    """Yield weights of a layer by You et al. 2020, algorithm 2, with the identity as phi."""
    m = v = np.zeros_like(weight)
    limit = np.inf if clip is None else clip
    for t, (grad, rate) in enumerate(steps, start=1):
        grad = np.clip(grad, -limit, limit)
        m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
        step = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon) + wd * weight
        weight_norm, step_norm = np.linalg.norm(weight), np.linalg.norm(step)
        weight = weight - rate * (weight_norm / step_norm if weight_norm and step_norm else 1.0) * step
        yield weight
