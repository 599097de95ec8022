"""Channels side by side, whatever their numbers: the results and gradients of float64."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.completed import completed
from support.devices import device, devices
from support.reference import as_is, cpus, distance, random_batches

from gluonlab.data.loading.batch import whole
from gluonlab.data.loading.shards import shard
from gluonlab.kvstores import make_kvstore
from gluonlab.models.graphs import parsed
from gluonlab.models.odd_concat import plain_where_channels_are_odd
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.update.trainer import BucketedTrainer

SHAPE = (3, 4, 6)


class Branches(nn.HybridBlock):
    """Convolutions of the same images, side by side, with the images themselves, if wanted, and a
    network behind them.
    """

    def __init__(self, channels, own, activated):
        super().__init__()
        self.own, self.activated = own, activated
        with self.name_scope():
            self.parts = nn.HybridSequential()
            self.parts.add(*(nn.Conv2D(each, 3, padding=1) for each in channels))
            self.rest = nn.HybridSequential()
            self.rest.add(
                nn.Conv2D(16, 3, padding=1),
                nn.BatchNorm(),
                nn.GlobalAvgPool2D(),
                nn.Flatten(),
                nn.Dense(10),
            )

    def hybrid_forward(self, F, x):
        joined = F.concat(
            *[part(x) for part in self.parts._children.values()], *([x] if self.own else []), dim=1
        )
        return self.rest(F.relu(joined) if self.activated else joined)


def made(net, ctxs):
    mx.random.seed(3)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net


def grads_of(net):
    return [
        param.list_grad()[0].asnumpy()
        for param in net.collect_params().values()
        if param.grad_req != "null"
    ]


def in_float64(net, batch):
    """The sum of losses, and all gradients as one array."""
    net.cast("float64")
    images, labels = (nd.array(array, dtype="float64") for array in batch)
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels).sum()
    loss.backward()
    return loss.asscalar(), np.concatenate([grad.ravel() for grad in grads_of(net)])


def by_step(net, batch, ctxs):
    trainer = BucketedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 1e-12}, make_kvstore("device", ctxs)
    )
    step = DataParallelStep(
        net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, as_is, sync_bn=len(ctxs) > 1
    )
    xs, ys = shard(nd.array(batch[0]), ctxs), shard(nd.array(batch[1], dtype="int32"), ctxs)
    for _ in range(2):
        loss = sum(float(part.asscalar()) for part in step(whole(xs, ys)))
    return loss, np.concatenate([grad.ravel() for grad in grads_of(net)])


@settings(max_examples=2)
@given(
    channels=st.lists(st.sampled_from([1, 4, 5, 8, 12, 16, 24, 32]), min_size=1, max_size=3),
    own=st.booleans(),
    activated=st.booleans(),
    k=st.integers(1, 2),
)
@example(channels=[24, 40], own=False, activated=True, k=1)
@example(channels=[24, 40], own=False, activated=False, k=2)
@example(channels=[32], own=True, activated=False, k=1)
def test_any_numbers_of_channels_give_the_losses_and_gradients_of_float64(
    channels, own, activated, k
):
    (batch,) = random_batches([7], shape=SHAPE)
    expected, expected_grads = in_float64(made(Branches(channels, own, activated), cpus(1)), batch)
    ctxs = devices(k, threads=1)
    loss, grads = by_step(made(Branches(channels, own, activated), ctxs), batch, ctxs)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert distance([grads], [expected_grads]) <= 1e-4


@pytest.mark.parametrize(
    "channels, axes, replaced", [([16, 32], 4, False), ([16, 33], 4, True), ([5, 3], 2, False)]
)
def test_only_images_whose_channels_fill_no_blocks_are_joined_otherwise(channels, axes, replaced):
    names = [f"part{i}" for i in range(len(channels))]
    graph = mx.sym.Concat(*[mx.sym.relu(mx.sym.var(name)) for name in names], dim=1, name="joined")
    shapes = {name: (2, each, 3, 4)[:axes] for name, each in zip(names, channels)}
    found = plain_where_channels_are_odd(graph, shapes)
    assert (found is not graph) == replaced
    assert (len(parsed(found)["nodes"]) != len(parsed(graph)["nodes"])) == replaced
    assert (
        found.list_outputs() == graph.list_outputs()
        and found.list_arguments() == graph.list_arguments()
    )
    assert found.infer_shape(**shapes)[1] == graph.infer_shape(**shapes)[1]


def results(graph, shapes, dtype):
    """All outputs and gradients."""
    random, ctx = np.random.RandomState(0), device()
    args = {
        name: nd.array(random.normal(size=shape), ctx, dtype=dtype)
        for name, shape in shapes.items()
    }
    grads = {name: nd.zeros(shape, ctx, dtype) for name, shape in shapes.items()}
    executor = graph.bind(ctx, args, args_grad=grads)
    executor.forward(is_train=True)
    executor.backward([nd.ones_like(output) / 2 for output in executor.outputs])
    return [array.asnumpy() for array in (*executor.outputs, *grads.values())]


def parts_of(kind):
    """What is joined: of an operator with several outputs, of the graph's outputs, the same
    twice.
    """
    x, y = mx.sym.var("x"), mx.sym.var("y")
    if kind == "split":
        first, second, third = mx.sym.split(x, num_outputs=3, axis=1)
        return [third, first, y, second]
    return [x, mx.sym.topk(x, k=2, axis=1, ret_typ="both")[0], y] if kind == "topk" else [x, y, x]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "kind, dim",
    [(kind, dim) for kind in ("split", "twice", "topk") for dim in (1, -3)]
    + [("twice", dim) for dim in (0, 2, -1)],
)
def test_a_graph_computes_the_same_however_its_parts_are_made(kind, dtype, dim):
    joined = mx.sym.concat(*parts_of(kind), dim=dim, name="joined")
    graph = mx.sym.Group([mx.sym.concat(joined, joined, dim=1), joined])
    shapes = {"x": (2, 9, 4, 5), "y": (2, 5 if dim in (1, -3) else 9, 4, 5)}
    found = plain_where_channels_are_odd(graph, shapes)
    assert found is not graph and found.list_outputs() == graph.list_outputs()
    for own, expected in zip(results(found, shapes, dtype), results(graph, shapes, dtype)):
        assert np.array_equal(own, expected)


class Shuffled(nn.HybridBlock):
    """Channels that change places, as ShuffleNet's do."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.conv, self.norm = nn.Conv2D(6, 3), nn.BatchNorm()
            self.pool, self.scores = nn.GlobalAvgPool2D(), nn.Dense(10)

    def hybrid_forward(self, F, x):
        parts = self.conv(x).reshape((0, -4, 2, 3, -2))  # (n, 2, 3, H, W)
        return self.scores(self.pool(self.norm(F.swapaxes(parts, 1, 2).reshape((0, -3, -2)))))


@pytest.mark.parametrize("k", [1, 2])
def test_channels_may_change_places(k):
    (batch,) = random_batches([7], shape=SHAPE)
    expected, expected_grads = in_float64(made(Shuffled(), cpus(1)), batch)
    ctxs = devices(k, threads=1)
    loss, grads = by_step(made(Shuffled(), ctxs), batch, ctxs)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert distance([grads], [expected_grads]) <= 1e-4


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
def test_shufflenet_trains_with_batchnorm_over_all_devices(k):
    """Its branches have 24 and 216 channels."""
    shape = (3, 64, 64)
    (batch,) = random_batches([2 * k + 1], shape=shape)
    losses = []
    for count in (1, k):
        mx.random.seed(0)
        ctxs = devices(count, threads=1)
        losses.append(by_step(completed("gluoncv:shufflenet_v1", shape, ctxs=ctxs), batch, ctxs)[0])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
