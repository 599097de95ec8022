"""Computations on MXNet's worker threads."""

import ctypes
import hashlib
import threading

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from gluonlab.engine.cpu_threads import EngineCallback, push_engine_operation

OPENMP = ctypes.CDLL("libgomp.so.1")


def openmp_team_size(ctx):
    """Return omp_get_max_threads() on the worker thread of a CPU device."""
    answers = []
    function = EngineCallback(
        lambda run_context, parameter: answers.append((threading.get_ident(), OPENMP.omp_get_max_threads()))
    )
    array = mx.nd.zeros((1,), ctx=ctx)
    push_engine_operation(function, array, b"team_size")
    array.wait_to_read()
    [(thread, size)] = answers
    assert thread != threading.get_ident()
    return size


def compute(ctxs):
    """Compute products, which hang if two devices open OpenMP teams in OpenBLAS."""
    arrays = [mx.nd.ones((256, 256), ctx=ctx) for ctx in ctxs]
    for _ in range(200):
        products = [mx.nd.dot(array, array) for array in arrays]
    return [float(product[0, 0].asscalar()) for product in products]


def run_convolutions(ctx, images):
    """Run forward and backward of convolutions; return sums of the results.

    oneDNN compiles the convolutions on each worker thread for its current OpenMP team.
    """
    net = nn.HybridSequential()
    net.add(nn.Conv2D(20, 3), nn.MaxPool2D(2, 2), nn.Conv2D(50, 5), nn.Dense(10))
    net.initialize(mx.init.One(), ctx=ctx)
    with mx.autograd.record():
        scores = net(mx.nd.ones((images, 1, 28, 28), ctx=ctx))
    scores.backward()
    return float(scores.sum().asscalar()), float(net[0].weight.grad(ctx).sum().asscalar())


def digest_gradients(ctx):
    """Return a digest of the gradients of a fixed convolutional network."""
    random = np.random.RandomState(1)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(20, 3), nn.MaxPool2D(2, 2), nn.Conv2D(50, 5), nn.Dense(10))
    net.initialize(ctx=ctx)
    images = mx.nd.array(random.normal(size=(16, 1, 28, 28)), ctx=ctx)
    net(images)
    for param in net.collect_params().values():
        param.set_data(mx.nd.array(random.normal(size=param.shape)))
    with mx.autograd.record():
        scores = net(images)
    scores.backward()
    grads = [param.grad(ctx).asnumpy() for param in net.collect_params().values()]
    return hashlib.sha256(b"".join(grads)).hexdigest()
