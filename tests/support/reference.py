"""Independent references: plain Gluon, as a textbook writes it."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from gluonlab.data.loading.split_batch import make_local_batch, shard, shard_sizes


def textbook_lenet(classes=10, pool="max"):
    """LeNet in the lab's own order: convolution, ReLU, pooling."""
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
    """The parameters as numpy arrays, in order; of the first device, or of ``ctx``."""
    return [
        (param.data(ctx) if ctx else param.list_data()[0]).asnumpy()
        for param in net.collect_params().values()
    ]


def set_parameter_arrays(net, arrays):
    for param, array in zip(net.collect_params().values(), arrays):
        param.set_data(nd.array(array, dtype=array.dtype))


def train_on_one_device(net, batches, optimizer, **optimizer_params):
    """One gluon.Trainer step per batch (images, labels): numpy arrays, whole, on the first device
    of ``net``.
    """
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
    """Gluon's own recording with one shard per device; one step of ``trainer`` per batch (images,
    labels), as numpy arrays.
    """
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in batches:
        xs, ys = shard(nd.array(images), ctxs), shard(nd.array(labels), ctxs)
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(xs, ys)]
        autograd.backward(losses)
        trainer.step(len(images))


def shard_batch(batch, ctxs, weights=None):
    """A batch (images, labels) of numpy arrays, cut for the devices."""
    images, labels = batch
    sizes = shard_sizes(len(images), len(ctxs), weights)
    return make_local_batch(
        shard(nd.array(images), ctxs, sizes), shard(nd.array(labels, dtype="int32"), ctxs, sizes)
    )


def relative_distance(a, b):
    """The largest ||a - b|| / ||b|| over two lists of arrays."""
    return max(np.linalg.norm(x - y) / (np.linalg.norm(y) or 1) for x, y in zip(a, b))


def arrays_equal(arrays, others):
    """Whether two lists of numpy arrays hold the same numbers."""
    return all(np.array_equal(one, other) for one, other in zip(arrays, others))


def random_batches(sizes, seed=0, shape=(1, 28, 28), classes=10):
    """Continuous random images (repeated pixels would make ties in max pooling) and random
    labels.
    """
    random = np.random.RandomState(seed)
    return [
        (
            random.uniform(-1, 1, (size, *shape)).astype("float32"),
            random.randint(0, classes, size).astype("int32"),
        )
        for size in sizes
    ]


def run_convolution(ctx, seed, out=None):
    """What oneDNN computes and leaves in blocks of channels."""
    random = np.random.RandomState(seed)
    weight = nd.array(random.normal(size=(32, 16, 3, 3)), ctx=ctx)
    images = nd.array(random.normal(size=(2, 16, 8, 8)), ctx=ctx)
    return nd.Convolution(
        images, weight, kernel=(3, 3), num_filter=32, no_bias=True, pad=(1, 1), out=out
    )


def identity(F, images):
    return images


def cpu_contexts(k):
    return [mx.cpu(i) for i in range(k)]


def to_gluon_layout(params):
    """The eight arrays as Gluon's layers hold them: Dense has (out, in), by hand it is (in,
    out).
    """
    return [
        param.asnumpy().T if param.shape[0] in (800, 128) and param.ndim == 2 else param.asnumpy()
        for param in params
    ]
