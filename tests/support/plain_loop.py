"""A training loop as Gluon's tutorials write it, on one device or several, for any trainer."""

import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from support.devices import contexts

CROSS_ENTROPY = gluon.loss.SoftmaxCrossEntropyLoss()
FEATURES, CLASSES = 4, 3


def random_batch(step, images=12):
    """Random features and labels: the same in each process, others in each step."""
    random = np.random.RandomState(step)
    return random.normal(size=(images, FEATURES)), random.randint(0, CLASSES, images)


def split_over_devices(array, ctxs, **more):
    return gluon.utils.split_and_load(nd.array(array), ctxs[: len(array)], even_split=False, **more)


def initialize_randomly(net, ctxs, seed=0):
    """The network on these devices, with random values where its shapes are known."""
    net.initialize(ctx=ctxs)
    random = np.random.RandomState(seed)
    for param in net.collect_params().values():
        if param.grad_req != "null":
            param.set_data(nd.array(random.normal(0, 0.5, param.shape)))
    return net


def make_perceptron(outputs=CLASSES, inputs=FEATURES):
    net = nn.HybridSequential()
    net.add(
        nn.Dense(5, activation="tanh", in_units=inputs),
        nn.Dense(outputs, in_units=5),
    )
    return net


def recorded_losses(net, step, ctxs, images=12, loss=CROSS_ENTROPY):
    """A batch's losses on each device, recorded."""
    x, y = random_batch(step, images)
    with autograd.record():
        return [
            loss(net(a), b)
            for a, b in zip(split_over_devices(x, ctxs), split_over_devices(y, ctxs))
        ]


def run_steps(net, trainer, ctxs, of=range(3), images=12):
    for step in of:
        autograd.backward(recorded_losses(net, step, ctxs, images))
        trainer.step(images)


def parameter_arrays(net, ctx=None):
    """Copies of all parameters, of the first device or of one."""
    params = net.collect_params().values()
    return [param.data(ctx or param.list_ctx()[0]).asnumpy() for param in params]


def max_difference(these, those):
    """The largest difference between arrays."""
    return max(float(np.abs(a - b).max()) for a, b in zip(these, those))


def train_program(program, devices, trainer, make=make_perceptron, **settings):
    """The values after ``program(net, trainer, ctxs)``, the same on all devices."""
    ctxs = contexts(devices)
    net = initialize_randomly(make(), ctxs)
    program(net, trainer(net.collect_params(), **settings), ctxs)
    found = parameter_arrays(net)
    for ctx in ctxs[1:]:
        assert max_difference(parameter_arrays(net, ctx), found) == 0.0
    return found
