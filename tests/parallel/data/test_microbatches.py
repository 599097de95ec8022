"""Microbatches: any cut of any batch makes the update of the whole batch, in less memory."""

import json

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import devices
from support.examples import examples
from support.reference import (
    arrays_equal,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    shard_batch,
    train_on_one_device,
)
from support.steps import make_step, train_steps

from gluonlab.data.loading.split_batch import Batch, Microbatches
from gluonlab.errors import ConfigError
from gluonlab.models.builtin_networks import LeNet

TOLERANCE = 1e-5  # relative, after 5 steps: only the order of summation differs
SHAPE = (1, 16, 16)
# 22 over 3 devices: 8, 7, 7; 1 leaves two idle; 9 has fewer images than parts
RAGGED = (22, 22, 1, 9, 22)
CUTS = [*(Microbatches(count=count) for count in (1, 2, 3, 7)), *(Microbatches(size=size) for size in (1, 5, 64))]


def initialize(net, ctxs):
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net


def lenet(ctxs, arrays=None):
    net = initialize(LeNet(10), ctxs)
    if arrays:
        set_parameter_arrays(net, arrays)
    return net


@pytest.fixture(scope="module")
def start():
    mx.random.seed(3)
    return parameter_arrays(lenet([mx.cpu(0)]))


@pytest.fixture(scope="module")
def whole(start):
    """What Gluon makes of the whole batches on one device."""
    batches = random_batches(RAGGED, shape=SHAPE)
    return train_on_one_device(lenet([mx.cpu(0)], start), batches, "sgd", learning_rate=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("k", "cut"),
    [
        *((3, cut) for cut in CUTS),
        *((1, cut) for cut in CUTS[2::3]),
        *(pytest.param(1, cut, marks=pytest.mark.long) for cut in CUTS if cut not in CUTS[2::3]),
    ],
    ids=str,
)
def test_any_number_of_microbatches_makes_the_update_of_the_whole_batch(k, cut, start, whole):
    ctxs = devices(k, threads=1)
    net = lenet(ctxs, start)
    step = make_step(net, ctxs, cut=cut, learning_rate=0.1, momentum=0.9)
    train_steps(step, random_batches(RAGGED, shape=SHAPE), ctxs)
    assert relative_distance(parameter_arrays(net), whole) <= TOLERANCE
    assert all(arrays_equal(parameter_arrays(net, ctx), parameter_arrays(net)) for ctx in ctxs)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_losses_and_scores_of_microbatches_add_up(cut, start):
    ctxs = devices(3, threads=1)
    net = lenet(ctxs, start)
    step = make_step(net, ctxs, cut=cut, learning_rate=1e-9)
    for images, labels in random_batches((22, 9, 2), shape=SHAPE) * 2:
        scores = net(nd.array(images, ctx=ctxs[0])).asnumpy().astype("float64")
        expected = (np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]).sum()
        batch = shard_batch((images, labels), ctxs)
        used, losses, hits = zip(
            *(
                (p.device, p.loss.asscalar(), p.scores.asnumpy().argmax(axis=1) == p.labels.asnumpy())
                for p in step.score(batch)
            )
        )
        assert set(used) == set(range(min(len(labels), 3)))
        assert sum(losses) == pytest.approx(expected, rel=1e-5)
        assert sum(map(len, hits)) == len(labels)
        assert sum(map(sum, hits)) == (scores.argmax(axis=1) == labels).sum()
        assert sum(loss.asscalar() for loss in step(batch)) == pytest.approx(expected, rel=1e-5)


@given(
    st.integers(0, 300),
    st.one_of(st.builds(Microbatches, st.integers(1, 400)), st.builds(Microbatches, st.none(), st.integers(1, 400))),
)
def test_parts_cover_a_shard_in_order_and_differ_by_at_most_one_image(images, cut):
    bounds = cut.bounds(images)
    sizes = [end - begin for begin, end in bounds]
    assert [i for begin, end in bounds for i in range(begin, end)] == list(range(images))
    assert not sizes or max(sizes) - min(sizes) <= 1 <= min(sizes)
    assert cut.largest_part(images) == max(sizes, default=0)
    if cut.count is not None:
        assert len(sizes) == min(cut.count, images)
    else:
        assert len(sizes) == -(-images // cut.size)
        assert cut.largest_part(images) <= cut.size


@examples(40)
@given(st.lists(st.integers(1, 12), max_size=4), st.integers(1, 8))
def test_rounds_give_every_image_once_and_each_device_one_part_at_a_time(sizes, count):
    """Also for shards that the loader would not make, such as a small one before a large one."""
    xs = [nd.arange(100 * device, 100 * device + size) for device, size in enumerate(sizes)]
    rounds = Microbatches(count).split_into_rounds(Batch(xs, xs, sum(sizes)))
    for parts in rounds:
        assert len({part.device for part in parts}) == len(parts) > 0
        assert all(np.array_equal(part.images.asnumpy(), part.labels.asnumpy()) for part in parts)
    for device, x in enumerate(xs):
        images = [part.images.asnumpy() for parts in rounds for part in parts if part.device == device]
        assert np.array_equal(np.concatenate(images), x.asnumpy())


def test_batchnorm_sees_microbatches_and_not_the_batch():
    """The loss is that of halves, each normalized by its own statistics."""
    ctxs = devices(1)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(10))
    initialize(net, ctxs)
    ((images, labels),) = random_batches([12], shape=SHAPE)
    images[:6] *= 3  # halves whose variances differ
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    x, y = nd.array(images, ctx=ctxs[0]), nd.array(labels, ctx=ctxs[0])

    def with_statistics_of(*parts):
        with mx.autograd.train_mode():
            return sum(loss(net(x[part]), y[part]).sum().asscalar() for part in parts)

    halves, whole = with_statistics_of(slice(6), slice(6, 12)), with_statistics_of(slice(12))
    assert abs(halves - whole) / whole > 1e-3
    for cut, expected in ((Microbatches(2), halves), (Microbatches(1), whole)):
        step = make_step(net, ctxs, cut=cut, learning_rate=1e-9)
        assert train_steps(step, [(images, labels)], ctxs) == [[pytest.approx(expected, rel=1e-4)]]


@pytest.mark.parametrize("count, batch, k, limit", [(33, 64, 2, 32), (33, 65, 2, 32), (2, 2, 3, 1)])
def test_more_microbatches_than_images_are_refused(count, batch, k, limit):
    Microbatches(limit).check(batch, k)
    Microbatches(size=100).check(batch, k)
    message = rf"--microbatches {count}: in a batch of {batch} images.*use {limit} or fewer"
    with pytest.raises(ConfigError, match=message):
        Microbatches(count).check(batch, k)


PEAK = """
import json
import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn
from gluonlab.devices import devices
from gluonlab.data.loading.split_batch import Microbatches
from support.process_memory import measure_peak_bytes
from support.reference import random_batches, shard_batch
from support.steps import make_step

def train(parts):
    step = make_step(net, ctxs, cut=Microbatches(parts), learning_rate=0.1)
    for batch in batches:
        step(batch)
        list(step.score(batch))

ctxs = devices("cpu*2")
net = nn.HybridSequential()
net.add(*[nn.Conv2D(16, 1, activation="tanh") for _ in range(6)])
net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
net.initialize(ctx=ctxs)
net(nd.zeros((1, 3, 32, 32), ctx=ctxs[0]))
batches = [shard_batch(batch, ctxs) for batch in random_batches((256, 250), shape=(3, 32, 32))]
print(json.dumps([measure_peak_bytes(lambda: train(parts)) for parts in (8, 1)]))
"""


@pytest.mark.long
def test_eight_microbatches_need_a_small_part_of_the_memory_of_one_batch(python):
    """Peak of a process with full and ragged batches; six layers' outputs are 48 MiB a device."""
    result = python("-c", PEAK)
    assert result.returncode == 0, result.stderr
    eight, one = json.loads(result.stdout)
    assert one > 96 * 2**20
    assert eight < one / 3


class ComputedWeight(nn.HybridBlock):
    """A dense layer whose weight is computed from two parameters."""

    def __init__(self, way):
        super().__init__()
        self.way = WAYS[way]
        with self.name_scope():
            self.one = self.params.get("one", shape=(10, 256), init=mx.init.Xavier())
            self.other = self.params.get("other", shape=(10, 256), init=mx.init.Xavier())
            self.bias = self.params.get("bias", shape=(10,), init="zeros")

    def hybrid_forward(self, F, x, one, other, bias):
        return F.FullyConnected(x, self.way(F, one, other), bias, num_hidden=10)


WAYS = {
    "added": lambda F, one, other: one + other,
    "averaged": lambda F, one, other: F.broadcast_mul(one, F.mean(other, axis=1, keepdims=True)),
    "multiplied": lambda F, one, other: one * other,
    "dropped and added": lambda F, one, other: F.Dropout(one, p=0.0) + other,
    "used twice": lambda F, one, other: F.dot(F.dot(one, other, transpose_b=True), one) + other,
}


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_accumulate_through_operators_on_parameters(way, sync):
    """MXNet adds wrongly to the gradient of a parameter that goes straight into `+` or an average."""

    def make_net(ctxs):
        net = nn.HybridSequential()
        net.add(nn.BatchNorm() if sync else nn.Flatten(), nn.Flatten(), ComputedWeight(way))
        return initialize(net, ctxs)

    ((images, labels),) = random_batches((6,), shape=SHAPE)
    one, ctxs = make_net([mx.cpu(0)]), devices(2, threads=1)
    net, start = make_net(ctxs), parameter_arrays(one)
    set_parameter_arrays(net, start)
    thirds = Microbatches(count=3)  # rounds of one image of each device
    step = make_step(net, ctxs, cut=thirds, sync_bn=sync, learning_rate=0.1)
    params = [param for param in one.collect_params().values() if param.grad_req != "null"]
    sums = [0.0] * len(params)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for part in ([0, 3], [1, 4], [2, 5]):  # with sync, the statistics of each round are its own
        with autograd.record():
            total = loss(one(nd.array(images[part])), nd.array(labels[part])).sum()
        total.backward()
        sums = [so_far + param.grad().asnumpy() for so_far, param in zip(sums, params)]
    for param, total in zip(params, sums):
        param.grad()[:] = nd.array(total)
    gluon.Trainer(params, "sgd", {"learning_rate": 0.1}, kvstore=None).step(6)
    train_steps(step, [(images, labels)], ctxs)
    result, expected = ([a - b for a, b in zip(parameter_arrays(each), start)] for each in (net, one))
    assert relative_distance(result, expected) <= 1e-4
