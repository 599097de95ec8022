"""BatchNorm over all devices is BatchNorm on one device with the whole batch, whatever the sizes of
the shards.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device_spec, devices
from support.reference import (
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    shard_batch,
    train_on_one_device,
)
from support.steps import make_step, train_steps
from support.sync_bn import SHAPE, SyncBatchNormNet

from gluonlab.config import TrainConfig
from gluonlab.errors import ModelError
from gluonlab.parallel.data.sync_bn import check_network
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

TOLERANCE = 1e-4
FEWER_GPUS = pytest.mark.cpu_only("no machine has so many GPUs")


def make_net(ctxs, start=None):
    net = SyncBatchNormNet()
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    if start:
        set_parameter_arrays(net, start)
    return net


def batches_of(sizes):
    """Images whose mean and spread differ from one to the next, so that a shard's statistics are
    not the batch's.
    """
    return [
        (images * np.linspace(0.5, 4, len(images)).reshape(-1, 1, 1, 1).astype("float32") + 1, labels)
        for images, labels in random_batches(sizes, shape=SHAPE)
    ]


@pytest.fixture(scope="module")
def start():
    mx.random.seed(1)
    return parameter_arrays(make_net([mx.cpu(0)]))


def assert_trains_as_one(start, sizes, k, weights=None):
    """Weights and running statistics, on every device, also where it had no image."""
    one, ctxs = make_net([mx.cpu(0)], start), devices(k, threads=1)
    expected = train_on_one_device(one, batches_of(sizes), "sgd", learning_rate=0.1)
    net = make_net(ctxs, start)
    train_steps(make_step(net, ctxs, sync_bn=True, learning_rate=0.1), batches_of(sizes), ctxs, weights)
    for ctx in ctxs:
        assert relative_distance(parameter_arrays(net, ctx), expected) <= TOLERANCE


@pytest.mark.parametrize("weights", [[5, 1], [1, 2, 9]], ids=str)
def test_devices_that_share_batches_unequally_train_as_one(weights, start):
    assert_trains_as_one(start, (13, 2, 7), len(weights), weights)


@pytest.mark.parametrize("k", [8, pytest.param(50, marks=[pytest.mark.long, FEWER_GPUS])])
def test_many_devices_train_as_one_too(k, start):
    """Statistics are used on all of them, and each use has a gradient; of 8 and more MXNet would
    lose all but one.
    """
    assert_trains_as_one(start, (50, 12), k)


def test_sync_bn_evaluates_with_running_statistics(start):
    ctxs = devices(3, threads=1)
    net = make_net(ctxs, start)
    step = make_step(net, ctxs, sync_bn=True, learning_rate=0.1)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in batches_of((13, 2, 13)):
        batch = shard_batch((images, labels), ctxs)
        step(batch)
        found = sum(part.loss.asscalar() for part in step.score(batch))
        scores = net(nd.array(images, ctx=ctxs[0]))
        expected = loss(scores, nd.array(labels, ctx=ctxs[0])).sum().asscalar()
        assert found == pytest.approx(expected, rel=1e-4)


def test_many_steps_without_a_wait_do_not_hang(start):
    """Devices run ahead of each other here, from step to step; MXNet's own operator would block
    their workers.
    """
    ctxs = devices(4, threads=1)
    net = make_net(ctxs, start)
    step = make_step(net, ctxs, store="sharded", sync_bn=True, learning_rate=0.1)
    batches = [shard_batch(batch, ctxs) for batch in batches_of((8, 3, 9))]
    for _ in range(20):
        for batch in batches:
            step(batch)
    nd.waitall()
    assert all(np.isfinite(array).all() for array in parameter_arrays(net))


@pytest.mark.cpu_only("nothing is computed")
def test_networks_without_supported_batchnorm_are_refused():
    def network(*layers):
        net = nn.HybridSequential()
        net.add(*layers)
        return net

    plain, global_only = network(nn.Dense(3)), network(nn.BatchNorm(use_global_stats=True))
    last_axis = network(nn.BatchNorm(), nn.BatchNorm(axis=-1))
    with_relu = network(nn.BatchNorm(), nn.BatchNormReLU())
    mxnets = network(nn.BatchNorm(), gluon.contrib.nn.SyncBatchNorm(num_devices=2))
    for net, reason in (
        (plain, "no BatchNorm layers"), (global_only, "no BatchNorm layers"),
        (last_axis, "another axis than 1"), (with_relu, "a BatchNormReLU"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=f"--sync-bn: mynet has .*{reason}.*: leave it out"):
            check_network(net, "mynet")
    with pytest.raises(ModelError, match=r"mynet has a SyncBatchNorm.*write nn[.]BatchNorm"):
        check_network(mxnets, "mynet")
    check_network(make_net(contexts(1)), "mynet")


class ByOperator(nn.HybridBlock):
    """BatchNorm by its operator alone, in a way that its statistics cannot be shared."""

    def __init__(self, call):
        super().__init__()
        self.call = call
        with self.name_scope():
            self.gamma, self.beta = (self.params.get(name, shape=(2,), init=name) for name in ("ones", "zeros"))
            self.mean, self.var = (
                self.params.get(name, shape=(2,), grad_req="null", init="ones") for name in ("mean", "var")
            )
            self.scores = nn.Dense(10)

    def hybrid_forward(self, F, x, gamma, beta, mean, var):
        return self.scores(self.call(F, x, gamma, beta, mean, var))


def mean_of_first(outputs):
    images, mean, _ = outputs
    return images * mean.sum()


REFUSED = {
    "over axis -3": lambda F, *inputs: F.BatchNorm(*inputs, axis=-3),
    "is a _contrib_BatchNormWithReLU": lambda F, *inputs: F.contrib.BatchNormWithReLU(*inputs),
    "takes mean or variance": lambda F, *inputs: mean_of_first(F.BatchNorm(*inputs, output_mean_var=True)),
}


@pytest.mark.cpu_only("nothing is computed")
@pytest.mark.parametrize("reason", REFUSED)
def test_unsupported_batchnorm_operators_are_refused(reason):
    ctxs = contexts(1)
    net = ByOperator(REFUSED[reason])
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    with pytest.raises(ModelError, match=f"sync_bn: .*{reason}.*: leave sync_bn out, or "):
        make_step(net, ctxs, sync_bn=True)


def test_layers_with_global_statistics_stay_as_they_are():
    """They take no part in what is shared, and their running statistics do not move."""
    ctxs = devices(2, threads=1)
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(use_global_stats=True), nn.Dense(6), nn.BatchNorm(), nn.Dense(10))
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    train_steps(make_step(net, ctxs, sync_bn=True, learning_rate=0.1), batches_of([5]), ctxs)
    for ctx in ctxs:
        assert (net[0].running_mean.data(ctx).asnumpy() == 0).all()
        assert (net[2].running_mean.data(ctx).asnumpy() != 0).all()


class Waiting(nn.HybridBlock):
    """Scores with MXNet's own synchronised BatchNorm in front of them.

    ``called``: by its operator, ``looped``: within the graph of a loop.
    """

    def __init__(self, classes=10, called=False, looped=False, **settings):
        super().__init__()
        self.called, self.looped = called, looped
        with self.name_scope():
            self.inner = nn.HybridSequential()
            with self.inner.name_scope():
                self.inner.add(gluon.contrib.nn.SyncBatchNorm(**settings))
            self.scores = nn.Dense(classes)

    def hybrid_forward(self, F, x):
        if self.called or self.looped:
            layer = self.inner[0]
            names = ("gamma", "beta", "running_mean", "running_var")
            params = [getattr(layer, name).var() for name in names]

            def call(image, states):
                return F.contrib.SyncBatchNorm(image, *params, key="k", ndev=2), states

            x = F.contrib.foreach(call, F.expand_dims(x, 0), [])[0].reshape((-3, -2)) if self.looped else call(x, [])[0]
            return self.scores(x)
        return self.scores(self.inner(x))


WAITING = {
    "in a block": {"num_devices": 2},
    "for all GPUs there are": {},
    "on one device of two": {"num_devices": 2, "devices": 1},
    "by its operator": {"called": True},
    "in a loop": {"looped": True},
    "with a pipeline": {"num_devices": 2, "split": "pipeline"},
    "beside gluonlab's own": {"num_devices": 2, "sync_bn": True},
}


@pytest.mark.cpu_only("nothing is computed")
@pytest.mark.filterwarnings("ignore:Caution using SyncBatchNorm")
@pytest.mark.parametrize("where", WAITING)
def test_a_network_that_waits_for_other_devices_is_refused_before_training(where, empty_cwd):
    given = dict(WAITING[where])
    config = {name: given.pop(name) for name in ("split", "sync_bn") if name in given}
    count = given.pop("devices", 2)
    with pytest.raises(ModelError, match=r"has a SyncBatchNorm.* write nn[.]BatchNorm") as raised:
        train(
            TrainConfig(devices=device_spec(count), epochs=1, **config),
            net=lambda classes: Waiting(classes, **given),
            reporter=Reporter(),
        )
    assert "--model" not in str(raised.value)
    assert not list(empty_cwd.iterdir())


def waiting_step(ctxs, **settings):
    net = Waiting(**settings)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net, make_step(net, ctxs, learning_rate=0.1)


@pytest.mark.cpu_only("nothing is computed")
def test_a_custom_step_refuses_native_sync_batchnorm():
    with pytest.raises(ModelError, match="Waiting has a SyncBatchNorm"):
        waiting_step(contexts(2), num_devices=2)


@pytest.mark.cpu_only("the operator of GPUs is another one")
@pytest.mark.parametrize(
    "count, settings", [(1, {"num_devices": 1}), (2, {"num_devices": 2, "use_global_stats": True})]
)
def test_native_sync_batchnorm_trains_on_one_device(count, settings):
    ctxs = devices(count, threads=1)
    net, step = waiting_step(ctxs, **settings)
    before = parameter_arrays(net)
    step(shard_batch(batches_of([5])[0], ctxs))
    assert relative_distance(parameter_arrays(net), before) > TOLERANCE


def null(params):
    for param in params:
        param.grad_req = "null"


class Freezes(nn.HybridBlock):
    """Three BatchNorm layers, of which some never get a gradient."""

    def __init__(self, first=None, block=False):
        super().__init__()
        self.block = block
        with self.name_scope():
            self.images = nn.BatchNorm(momentum=0.6, **first or {})
            self.conv = nn.Conv2D(4, 3, use_bias=False)
            self.middle = nn.BatchNorm(momentum=0.7)
            self.units = nn.Dense(5, use_bias=False)
            self.last = nn.BatchNorm(momentum=0.8, center=False)
            self.scores = nn.Dense(10)

    def hybrid_forward(self, F, x):
        x = F.relu(self.middle(self.conv(self.images(x))))
        return self.scores(self.last(self.units(F.BlockGrad(x) if self.block else x)))


def freeze_in_front_of_the_scores(net):
    net.collect_params().setattr("grad_req", "null")
    net.scores.collect_params().setattr("grad_req", "write")


def freeze_norms(net):
    null([norm.gamma for norm in (net.images, net.middle, net.last)])
    null([norm.beta for norm in (net.images, net.middle, net.last)])


def train_the_gamma_that_is_fixed(net):
    freeze_in_front_of_the_scores(net)
    net.images.gamma.grad_req = "write"


FROZEN = {
    "gamma and beta of all layers": (freeze_norms, {}),
    "all in front of the scores": (freeze_in_front_of_the_scores, {}),
    "all up to the second layer": (
        lambda net: null([net.images.gamma, net.images.beta, net.conv.weight, net.middle.gamma,
                          net.middle.beta]), {}),
    "neither scale nor center": (lambda net: None, {"first": {"scale": False, "center": False}}),
    "a fixed gamma that is trained": (
        train_the_gamma_that_is_fixed, {"first": {"scale": False, "center": False}}),
    "a stopped gradient": (
        lambda net: null([net.last.gamma, *net.units.collect_params().values()]), {"block": True}),
    "global statistics": (freeze_norms, {"first": {"use_global_stats": True}}),
}  # fmt: skip


RARE = ("all up to the second layer", "a fixed gamma that is trained", "global statistics")


def started(make, ctxs):
    mx.random.seed(3)
    net = make()
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net


def assert_moves_what_one_device_moves(make, batches, counts):
    """Parameters, running statistics and the loss after training; on one device those of Gluon."""

    def train_on(k):
        ctxs = devices(k, threads=1)
        net = make(ctxs)
        step = make_step(net, ctxs, sync_bn=k > 1, learning_rate=0.1)
        train_steps(step, batches, ctxs)
        step.statistics.average()
        tested = sum(part.loss.asscalar() for part in step.score(shard_batch(batches[0], ctxs)))
        return [parameter_arrays(net, ctx) for ctx in ctxs], tested

    [expected], loss = train_on(1)
    [ctx] = devices(1, threads=1)
    if ctx.device_type == "cpu":  # cuDNN keeps another variance
        net = make([ctx])
        net.hybridize()  # without it MXNet crashes behind a stopped gradient
        gluons = train_on_one_device(net, batches, "sgd", learning_rate=0.1)
        assert relative_distance(expected, gluons) <= TOLERANCE
    for k in counts:
        found, tested = train_on(k)
        assert all(relative_distance(each, expected) <= TOLERANCE for each in found)
        assert tested == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.long] * (how in RARE)) for how in FROZEN])
def test_where_layers_are_frozen_k_devices_move_the_statistics_that_one_moves(how):
    freeze, settings = FROZEN[how]

    def make(ctxs):
        net = started(lambda: Freezes(**settings), ctxs)
        freeze(net)
        return net

    assert_moves_what_one_device_moves(make, batches_of((12, 1)), [2])


class Reused(nn.HybridBlock):
    """One BatchNorm layer in three places: in a chain, or in branches that are added."""

    def __init__(self, branches):
        super().__init__()
        self.branches = branches
        with self.name_scope():
            self.units = [nn.Dense(6, use_bias=False) for _ in range(3)]
            for layer in self.units:
                self.register_child(layer)
            self.norm, self.scores = nn.BatchNorm(momentum=0.6), nn.Dense(10)

    def hybrid_forward(self, F, x):
        if self.branches:
            first, second, third = (self.norm(layer(x)) for layer in self.units)
            return self.scores(F.tanh(first) + F.relu(second) + third)
        for layer in self.units:
            x = F.relu(self.norm(layer(x)))
        return self.scores(x)


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "branches"])
def test_the_statistics_of_a_layer_in_several_places_follow_its_uses_in_order(branches):
    """On a CPU that is backward's order, in which its last use comes first."""
    make = lambda ctxs: started(lambda: Reused(branches), ctxs)  # noqa: E731
    assert_moves_what_one_device_moves(make, batches_of((12, 7)), [2, 3])


@pytest.mark.long
def test_a_run_trains_with_sync_bn(tmp_path):
    """Two devices with --sync-bn end where one device does."""

    def small_net(classes):
        net = nn.HybridSequential()
        net.add(nn.AvgPool2D(4, 4), nn.Dense(16, use_bias=False), nn.BatchNorm())
        net.add(nn.Activation("relu"), nn.Dense(classes))
        return net

    settings = dict(epochs=1, global_batch_size=300, optimizer="sgd", lr=0.1, sync_bn=True)

    def trained(name, devices):
        config = TrainConfig(devices=devices, out=str(tmp_path / name), **settings)
        return parameter_arrays(train(config, reporter=Reporter(), net=small_net).net)

    assert relative_distance(trained("two", device_spec(2)), trained("one", "cpu")) <= TOLERANCE
