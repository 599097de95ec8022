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
    identity,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    textbook_lenet,
    train_on_one_device,
)
from support.steps import make_step, train_steps

from gluonlab.data.loading.augmentation import to_float
from gluonlab.data.loading.split_batch import make_local_batch, shard
from gluonlab.errors import ModelError
from gluonlab.models import get_model
from gluonlab.models.optimize_network import optimize
from gluonlab.models.own_networks import LeNet
from gluonlab.parallel.data.replica import make_replicas

TOLERANCE = 1e-5  # relative, after 5 steps: only the order of summation differs
SIZES = {"divides": (12,) * 5, "ragged": (7,) * 5, "smaller than k": (12, 1, 7, 2, 12), "single images": (1,) * 5}


def initialised(net, ctxs, start, shape=(1, 28, 28)):
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, *shape), ctx=ctxs[0]))
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
        batches = random_batches(SIZES[sizes])
        return train_on_one_device(net, batches, "sgd", learning_rate=0.1, momentum=momentum)

    return train


@pairwise(k=[1, 2, 3, 4], store=["local", "device"], sizes=list(SIZES), momentum=[0.0, 0.9])
def test_k_devices_make_the_update_of_one(k, store, sizes, momentum, start, expected_of):
    ctxs = devices(k, threads=1)
    batches, expected = random_batches(SIZES[sizes]), expected_of(sizes, momentum)
    net = initialised(get_model("lenet", 10, ctxs), ctxs, start)
    train_steps(make_step(net, ctxs, store, learning_rate=0.1, momentum=momentum), batches, ctxs)
    for ctx in ctxs:
        assert relative_distance(parameter_arrays(net, ctx), expected) <= TOLERANCE
    for ctx in ctxs[1:]:  # and the replicas agree to the bit
        assert all(np.array_equal(a, b) for a, b in zip(parameter_arrays(net, ctx), parameter_arrays(net, ctxs[0])))


def test_the_losses_of_the_shards_add_up_to_the_loss_of_the_batch(start):
    ctxs = devices(3)
    ((images, labels),) = random_batches([8])
    net = initialised(get_model("lenet", 10), ctxs, start)
    shards = train_steps(make_step(net, ctxs, learning_rate=0.1), [(images, labels)], ctxs)[0]
    textbook = textbook_lenet()
    set_parameter_arrays(textbook, start)
    scores = textbook(nd.array(images)).asnumpy().astype("float64")
    expected = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(8), labels]
    assert len(shards) == 3
    assert sum(shards) == pytest.approx(expected.sum(), rel=1e-5)


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


def normalising_net():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.5), nn.Dense(5))
    net.initialize(mx.init.Xavier(), ctx=device())
    net(nd.zeros((1, 2, 6, 6), ctx=device()))
    return net


def test_the_compiled_graph_evaluates_like_gluon_with_batchnorm_and_dropout():
    net = normalising_net()
    ((images, labels),) = random_batches([10], shape=(2, 6, 6), classes=5)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    (replica,) = make_replicas(net, loss, identity, contexts(1))
    x, y = nd.array(images, ctx=device()), nd.array(labels, ctx=device(), dtype="int32")
    replica.forward(x, y)  # in training: moves the running statistics
    replica.backward()
    total, found = (array.asnumpy() for array in replica.forward(x, y, train=False))
    scores = net(x)
    assert total[0] == pytest.approx(loss(scores, y).sum().asscalar(), rel=1e-5)
    assert relative_distance([found], [scores.asnumpy()]) <= 1e-5
    assert not np.allclose(net[1].running_mean.data(device()).asnumpy(), 0)


def test_evaluation_uses_the_weights_as_they_are_now(start):
    """MXNet's fusion for inference would keep the weights of the first evaluation."""
    ctxs = devices(2)
    net = initialised(get_model("lenet", 10, ctxs), ctxs, start)
    step = make_step(net, ctxs, learning_rate=0.5)
    ((images, labels),) = random_batches([8])
    xs, ys = shard(nd.array(images), ctxs), shard(nd.array(labels, dtype="int32"), ctxs)
    x = nd.array(images, ctx=ctxs[0])
    for _ in range(3):
        found = sum(part.loss.asscalar() for part in step.score(make_local_batch(xs, ys)))
        expected = gluon.loss.SoftmaxCrossEntropyLoss()(net(x), nd.array(labels, ctx=ctxs[0])).sum().asscalar()
        assert found == pytest.approx(expected, rel=1e-4)
        step(make_local_batch(xs, ys))


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
