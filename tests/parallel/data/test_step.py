"""A step on several devices is the step of one device, whatever the sizes of batch and shards."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.covering import pairwise
from support.devices import contexts, device, devices
from support.reference import (
    arrays_equal,
    identity,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    shard_batch,
    textbook_lenet,
    train_on_one_device,
)
from support.steps import make_step, train_steps

from gluonlab.data.loading.augmentation import to_float
from gluonlab.errors import ModelError
from gluonlab.models import get_model
from gluonlab.models.builtin_networks import LeNet
from gluonlab.models.optimize_network import optimize
from gluonlab.parallel.data.replica import make_replicas

TOLERANCE = 1e-5  # relative, after 5 steps: only the order of summation differs
SIZES = {"divides": (12,) * 5, "ragged": (7,) * 5, "smaller than k": (12, 1, 7, 2, 12), "single images": (1,) * 5}


def initialized_lenet(ctxs, start):
    net = get_model("lenet", 10, ctxs)
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, 1, 28, 28), ctx=ctxs[0]))
    set_parameter_arrays(net, start)
    return net


@pytest.fixture(scope="module")
def start():
    mx.random.seed(3)
    net = textbook_lenet()
    net.initialize(mx.init.Xavier(), force_reinit=True)
    net(nd.zeros((1, 1, 28, 28)))
    return parameter_arrays(net)


@pytest.fixture(scope="module")
def expected_of(start):
    """``expected_of(sizes, momentum)``: the parameters after these batches on one device."""

    @functools.lru_cache(maxsize=None)
    def train(sizes, momentum):
        net = textbook_lenet()
        set_parameter_arrays(net, start)
        return train_on_one_device(net, random_batches(SIZES[sizes]), "sgd", learning_rate=0.1, momentum=momentum)

    return train


@pairwise(k=[1, 2, 3, 4], store=["local", "device"], sizes=list(SIZES), momentum=[0.0, 0.9])
def test_k_devices_make_the_update_of_one(k, store, sizes, momentum, start, expected_of):
    ctxs = devices(k, threads=1)
    batches, expected = random_batches(SIZES[sizes]), expected_of(sizes, momentum)
    net = initialized_lenet(ctxs, start)
    train_steps(make_step(net, ctxs, store, learning_rate=0.1, momentum=momentum), batches, ctxs)
    assert relative_distance(parameter_arrays(net), expected) <= TOLERANCE
    assert all(arrays_equal(parameter_arrays(net, ctx), parameter_arrays(net)) for ctx in ctxs)


@pytest.mark.parametrize("pool", ["max", "avg"])
@pytest.mark.parametrize("optimized", [False, True])
def test_lenet_is_the_labs_network(pool, optimized):
    """Scores and gradients equal those of the textbook's network, on continuous inputs."""
    textbook, net = textbook_lenet(pool=pool), LeNet(10, pool)
    net.initialize(ctx=device())
    net(nd.zeros((1, 1, 28, 28), ctx=device()))
    if optimized:
        optimize(net)
    set_parameter_arrays(net, parameter_arrays(textbook))
    ((images, labels),) = random_batches([9], seed=1)
    scores, gradients = [], []
    for network, ctx in ((net, device()), (textbook, mx.cpu(0))):
        with autograd.record():
            output = network(nd.array(images, ctx=ctx))
            total = gluon.loss.SoftmaxCrossEntropyLoss()(output, nd.array(labels, ctx=ctx)).sum()
        total.backward()
        scores.append(output.asnumpy())
        gradients.append([param.grad(ctx).asnumpy() for param in network.collect_params().values()])
    assert relative_distance(scores[:1], scores[1:]) <= 1e-5
    assert relative_distance(*gradients) <= 1e-5


def test_the_compiled_graph_evaluates_like_gluon_with_batchnorm_and_dropout():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.5), nn.Dense(5))
    net.initialize(mx.init.Xavier(), ctx=device())
    net(nd.zeros((1, 2, 6, 6), ctx=device()))
    ((images, labels),) = random_batches([10], shape=(2, 6, 6), classes=5)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    (replica,) = make_replicas(net, loss, identity, contexts(1))
    x, y = nd.array(images, ctx=device()), nd.array(labels, ctx=device(), dtype="int32")
    replica.forward(x, y)  # in training: moves the running statistics
    replica.backward()
    total, scores = (array.asnumpy() for array in replica.forward(x, y, train=False))
    expected = net(x)
    assert total[0] == pytest.approx(loss(expected, y).sum().asscalar(), rel=1e-5)
    assert relative_distance([scores], [expected.asnumpy()]) <= 1e-5
    assert not np.allclose(net[1].running_mean.data(device()).asnumpy(), 0)


def test_evaluation_uses_the_weights_as_they_are_now(start):
    """MXNet's fusion for inference would keep the weights of the first evaluation."""
    ctxs = devices(2)
    net = initialized_lenet(ctxs, start)
    step = make_step(net, ctxs, learning_rate=0.5)
    ((images, labels),) = random_batches([8])
    batch, x = shard_batch((images, labels), ctxs), nd.array(images, ctx=ctxs[0])
    for _ in range(3):
        expected = gluon.loss.SoftmaxCrossEntropyLoss()(net(x), nd.array(labels, ctx=ctxs[0])).sum().asscalar()
        losses = [part.loss.asscalar() for part in step.score(batch)], [loss.asscalar() for loss in step(batch)]
        assert [sum(shards) for shards in losses] == pytest.approx([expected] * 2, rel=1e-4)


def test_to_float_divides_by_255_in_numpys_arithmetic():
    images = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    expected = images.astype(np.float32) * np.float32(1 / 255)
    assert np.array_equal(to_float(nd, nd.array(images, ctx=device(), dtype="uint8")).asnumpy(), expected)


class TwoOutputs(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.one, self.other = nn.Dense(10), nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.one(x), self.other(x)


@pytest.mark.cpu_only("nothing is computed")
def test_a_network_with_two_outputs_is_refused():
    ctxs = contexts(2)
    net = TwoOutputs()
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, 1, 28, 28), ctx=ctxs[0]))
    with pytest.raises(ModelError, match="TwoOutputs returns a tuple of 2, but must return one"):
        make_step(net, ctxs, "device")
