"""Reference implementations in plain Gluon, and comparisons of arrays."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from gluonlab.data.loading.split_batch import make_local_batch, shard, shard_sizes


def textbook_lenet(classes=10, pool="max"):
    """Return LeNet in the order of the labs: convolution, ReLU, pooling."""
    pooling = nn.MaxPool2D if pool == "max" else nn.AvgPool2D
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(20, 3, activation="relu"), pooling(2, 2), nn.Conv2D(50, 5, activation="relu"),
        pooling(2, 2), nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(classes),
    )  # fmt: skip
    net.initialize()
    net(nd.zeros((1, 1, 28, 28)))
    return net


def parameter_arrays(net, ctx=None):
    """Return the parameters on the first device, or on ``ctx``, as numpy arrays in order."""
    return [(param.data(ctx) if ctx else param.list_data()[0]).asnumpy() for param in net.collect_params().values()]


def set_parameter_arrays(net, arrays):
    for param, array in zip(net.collect_params().values(), arrays):
        param.set_data(nd.array(array, dtype=array.dtype))


def train_on_one_device(net, batches, optimizer, **optimizer_params):
    """Train with one gluon.Trainer step per batch on the first device; return the parameters."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), optimizer, optimizer_params, kvstore=None)
    ctx = next(iter(net.collect_params().values())).list_ctx()[0]
    for images, labels in batches:
        with autograd.record():
            total = loss(net(nd.array(images, ctx=ctx)), nd.array(labels, ctx=ctx)).sum()
        total.backward()
        trainer.step(len(images))
    return parameter_arrays(net)


def train_on_devices(net, trainer, ctxs, batches):
    """Train with one step of ``trainer`` per batch (images, labels), sharded over devices."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in batches:
        xs, ys = shard(nd.array(images), ctxs), shard(nd.array(labels), ctxs)
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(xs, ys)]
        autograd.backward(losses)
        trainer.step(len(images))


def shard_batch(batch, ctxs, weights=None):
    """Return the shards on the devices of a batch (images, labels) of numpy arrays."""
    images, labels = batch
    sizes = shard_sizes(len(images), len(ctxs), weights)
    return make_local_batch(shard(nd.array(images), ctxs, sizes), shard(nd.array(labels, dtype="int32"), ctxs, sizes))


def relative_distance(a, b):
    """Return the largest ||a - b|| / ||b|| over two lists of arrays."""
    return max(np.linalg.norm(x - y) / (np.linalg.norm(y) or 1) for x, y in zip(a, b))


def arrays_equal(arrays, others):
    """Return whether two lists of numpy arrays are equal."""
    return all(np.array_equal(one, other) for one, other in zip(arrays, others))


def random_batches(sizes, seed=0, shape=(1, 28, 28), classes=10):
    """Return batches of random images and labels of some sizes."""
    # Continuous values: equal pixels would make ties in max pooling.
    random = np.random.RandomState(seed)
    return [
        (random.uniform(-1, 1, (size, *shape)).astype("float32"), random.randint(0, classes, size).astype("int32"))
        for size in sizes
    ]


def run_convolution(ctx, seed, out=None):
    """Return the result of a convolution, which oneDNN leaves in blocks of channels."""
    random = np.random.RandomState(seed)
    weight = nd.array(random.normal(size=(32, 16, 3, 3)), ctx=ctx)
    images = nd.array(random.normal(size=(2, 16, 8, 8)), ctx=ctx)
    return nd.Convolution(images, weight, kernel=(3, 3), num_filter=32, no_bias=True, pad=(1, 1), out=out)


def identity(F, images):
    return images


def cpu_contexts(k):
    return [mx.cpu(i) for i in range(k)]


def to_gluon_layout(params):
    """Convert the arrays of gluonlab.scratch to Gluon's layout, in which Dense is (out, in)."""
    return [
        param.asnumpy().T if param.shape[0] in (800, 128) and param.ndim == 2 else param.asnumpy() for param in params
    ]
