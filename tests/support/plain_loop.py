"""A training loop of plain Gluon on one or several devices, for any trainer."""

import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from support.devices import contexts
from support.reference import parameter_arrays

CROSS_ENTROPY = gluon.loss.SoftmaxCrossEntropyLoss()
FEATURES, CLASSES = 4, 3


def random_batch(step, images=12):
    """Return random features and labels, which depend on the step only."""
    random = np.random.RandomState(step)
    return random.normal(size=(images, FEATURES)), random.randint(0, CLASSES, images)


def split_over_devices(array, ctxs, **more):
    return gluon.utils.split_and_load(nd.array(array), ctxs[: len(array)], even_split=False, **more)


def initialize_randomly(net, ctxs, seed=0):
    """Initialize a network on some devices with random values; return the network."""
    net.initialize(ctx=ctxs)
    random = np.random.RandomState(seed)
    for param in net.collect_params().values():
        if param.grad_req != "null":
            param.set_data(nd.array(random.normal(0, 0.5, param.shape)))
    return net


def make_perceptron(outputs=CLASSES, inputs=FEATURES):
    net = nn.HybridSequential()
    net.add(nn.Dense(5, activation="tanh", in_units=inputs), nn.Dense(outputs, in_units=5))
    return net


def recorded_losses(net, step, ctxs, images=12, loss=CROSS_ENTROPY):
    """Return the recorded losses of a batch, one array per device."""
    x, y = random_batch(step, images)
    with autograd.record():
        return [loss(net(a), b) for a, b in zip(split_over_devices(x, ctxs), split_over_devices(y, ctxs))]


def run_steps(net, trainer, ctxs, steps=range(3), images=12):
    for step in steps:
        autograd.backward(recorded_losses(net, step, ctxs, images))
        trainer.step(images)


def max_difference(arrays, others):
    """Return the largest difference between two lists of arrays."""
    return max(float(np.abs(a - b).max()) for a, b in zip(arrays, others))


def train_program(program, devices, trainer, make=make_perceptron, **settings):
    """Return the parameters after ``program(net, trainer, ctxs)``, which all devices share."""
    ctxs = contexts(devices)
    net = initialize_randomly(make(), ctxs)
    program(net, trainer(net.collect_params(), **settings), ctxs)
    arrays = parameter_arrays(net)
    for ctx in ctxs[1:]:
        assert max_difference(parameter_arrays(net, ctx), arrays) == 0.0
    return arrays
