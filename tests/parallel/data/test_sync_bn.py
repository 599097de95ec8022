"""BatchNorm over all devices is BatchNorm on one device, whatever the sizes of the shards."""

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


def initialize(net, ctxs):
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net


def make_net(ctxs, start=None):
    net = initialize(SyncBatchNormNet(), ctxs)
    if start:
        set_parameter_arrays(net, start)
    return net


def make_uneven_batches(sizes):
    """Batches whose images differ in mean and spread, so that a shard's statistics differ too."""
    return [
        (images * np.linspace(0.5, 4, len(images)).reshape(-1, 1, 1, 1).astype("float32") + 1, labels)
        for images, labels in random_batches(sizes, shape=SHAPE)
    ]


@pytest.fixture(scope="module")
def start():
    mx.random.seed(1)
    return parameter_arrays(make_net([mx.cpu(0)]))


@pytest.mark.parametrize(
    ("k", "sizes", "weights"),
    [
        (2, (13, 2, 7), [5, 1]),
        (3, (13, 2, 7), [1, 2, 9]),
        (8, (50, 12), None),  # MXNet would lose all but one of 8 and more gradients of a value
        pytest.param(50, (50, 12), None, marks=[pytest.mark.long, FEWER_GPUS]),
    ],
)
def test_devices_that_share_batches_in_any_proportions_train_as_one(k, sizes, weights, start):
    """Weights and running statistics, on every device, also one without an image."""
    one, ctxs = make_net([mx.cpu(0)], start), devices(k, threads=1)
    expected = train_on_one_device(one, make_uneven_batches(sizes), "sgd", learning_rate=0.1)
    net = make_net(ctxs, start)
    train_steps(make_step(net, ctxs, sync_bn=True, learning_rate=0.1), make_uneven_batches(sizes), ctxs, weights)
    assert all(relative_distance(parameter_arrays(net, ctx), expected) <= TOLERANCE for ctx in ctxs)


def test_sync_bn_evaluates_with_running_statistics(start):
    ctxs = devices(3, threads=1)
    net = make_net(ctxs, start)
    step = make_step(net, ctxs, sync_bn=True, learning_rate=0.1)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in make_uneven_batches((13, 2, 13)):
        batch = shard_batch((images, labels), ctxs)
        step(batch)
        result = sum(part.loss.asscalar() for part in step.score(batch))
        scores = net(nd.array(images, ctx=ctxs[0]))
        expected = loss(scores, nd.array(labels, ctx=ctxs[0])).sum().asscalar()
        assert result == pytest.approx(expected, rel=1e-4)


def test_many_steps_without_a_wait_do_not_hang(start):
    """Devices run ahead of each other; MXNet's own operator would block their workers."""
    ctxs = devices(4, threads=1)
    net = make_net(ctxs, start)
    step = make_step(net, ctxs, store="sharded", sync_bn=True, learning_rate=0.1)
    batches = [shard_batch(batch, ctxs) for batch in make_uneven_batches((8, 3, 9))]
    for _ in range(20):
        for batch in batches:
            step(batch)
    nd.waitall()
    assert all(np.isfinite(array).all() for array in parameter_arrays(net))


@pytest.mark.cpu_only("nothing is computed")
def test_networks_without_supported_batchnorm_are_refused():
    leave_out = "--sync-bn: mynet (has|contains) .*{}.*: omit --sync-bn"
    for layers, message in (
        ([nn.Dense(3)], leave_out.format("no BatchNorm layers")),
        ([nn.BatchNorm(use_global_stats=True)], leave_out.format("no BatchNorm layers")),
        ([nn.BatchNorm(), nn.BatchNorm(axis=-1)], leave_out.format("a BatchNorm on axis -1")),
        ([nn.BatchNorm(), nn.BatchNormReLU()], leave_out.format("a BatchNormReLU")),
        ([nn.BatchNorm(), gluon.contrib.nn.SyncBatchNorm(num_devices=2)],
         "mynet contains MXNet's SyncBatchNorm.*use nn[.]BatchNorm"),
    ):  # fmt: skip
        net = nn.HybridSequential()
        net.add(*layers)
        with pytest.raises(ModelError, match=message):
            check_network(net, "mynet")
    check_network(make_net(contexts(1)), "mynet")


class BatchNormOperator(nn.HybridBlock):
    """BatchNorm by its operator, in a way that its statistics cannot be shared."""

    def __init__(self, call):
        super().__init__()
        self.call = call
        with self.name_scope():
            for name, init in {"gamma": "ones", "beta": "zeros", "mean": "ones", "var": "ones"}.items():
                learned = "write" if name in ("gamma", "beta") else "null"
                setattr(self, name, self.params.get(name, shape=(2,), grad_req=learned, init=init))
            self.scores = nn.Dense(10)

    def hybrid_forward(self, F, x, gamma, beta, mean, var):
        return self.scores(self.call(F, x, gamma, beta, mean, var))


def multiply_by_mean(outputs):
    images, mean, _ = outputs
    return images * mean.sum()


REFUSED = {
    "on axis -3": lambda F, *inputs: F.BatchNorm(*inputs, axis=-3),
    "is a _contrib_BatchNormWithReLU": lambda F, *inputs: F.contrib.BatchNormWithReLU(*inputs),
    "uses the mean or variance": lambda F, *inputs: multiply_by_mean(F.BatchNorm(*inputs, output_mean_var=True)),
}


@pytest.mark.cpu_only("nothing is computed")
@pytest.mark.parametrize("reason", REFUSED)
def test_unsupported_batchnorm_operators_are_refused(reason):
    ctxs = contexts(1)
    net = initialize(BatchNormOperator(REFUSED[reason]), ctxs)
    with pytest.raises(ModelError, match=f"sync_bn: .*{reason}.*: omit sync_bn, or "):
        make_step(net, ctxs, sync_bn=True)


def test_layers_with_global_statistics_stay_as_they_are():
    ctxs = devices(2, threads=1)
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(use_global_stats=True), nn.Dense(6), nn.BatchNorm(), nn.Dense(10))
    initialize(net, ctxs)
    train_steps(make_step(net, ctxs, sync_bn=True, learning_rate=0.1), make_uneven_batches([5]), ctxs)
    for ctx in ctxs:
        assert (net[0].running_mean.data(ctx).asnumpy() == 0).all()
        assert (net[2].running_mean.data(ctx).asnumpy() != 0).all()


class NativeSyncBatchNormNet(nn.HybridBlock):
    """A network with MXNet's SyncBatchNorm: as a layer, by its operator, or in the graph of a loop."""

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
            params = [getattr(layer, name).var() for name in ("gamma", "beta", "running_mean", "running_var")]

            def call(image, states):
                return F.contrib.SyncBatchNorm(image, *params, key="k", ndev=2), states

            x = F.contrib.foreach(call, F.expand_dims(x, 0), [])[0].reshape((-3, -2)) if self.looped else call(x, [])[0]
            return self.scores(x)
        return self.scores(self.inner(x))


NATIVE_SYNC_BATCHNORM = {
    "in a block": {"num_devices": 2},
    "for all GPUs there are": {},
    "on one device of two": {"num_devices": 2, "devices": 1},
    "by its operator": {"called": True},
    "in a loop": {"looped": True},
    "with a pipeline": {"num_devices": 2, "strategy": "pipeline"},
    "beside gluonlab's own": {"num_devices": 2, "sync_bn": True},
}


@pytest.mark.cpu_only("nothing is computed")
@pytest.mark.filterwarnings("ignore:Caution using SyncBatchNorm")
@pytest.mark.parametrize("where", NATIVE_SYNC_BATCHNORM)
def test_a_network_that_waits_for_other_devices_is_refused_before_training(where, empty_cwd):
    given = dict(NATIVE_SYNC_BATCHNORM[where])
    config = {name: given.pop(name) for name in ("strategy", "sync_bn") if name in given}
    count = given.pop("devices", 2)
    with pytest.raises(ModelError, match=r"contains .*SyncBatchNorm.* use nn[.]BatchNorm") as raised:
        train(
            TrainConfig(devices=device_spec(count), epochs=1, **config),
            net=lambda classes: NativeSyncBatchNormNet(classes, **given),
            reporter=Reporter(),
        )
    assert "--model" not in str(raised.value)
    assert not list(empty_cwd.iterdir())


def make_native_step(ctxs, **settings):
    net = initialize(NativeSyncBatchNormNet(**settings), ctxs)
    return net, make_step(net, ctxs, learning_rate=0.1)


@pytest.mark.cpu_only("nothing is computed")
def test_a_custom_step_refuses_native_sync_batchnorm():
    with pytest.raises(ModelError, match="NativeSyncBatchNormNet contains a SyncBatchNorm"):
        make_native_step(contexts(2), num_devices=2)


@pytest.mark.cpu_only("the operator of GPUs is another one")
@pytest.mark.parametrize(
    "count, settings", [(1, {"num_devices": 1}), (2, {"num_devices": 2, "use_global_stats": True})]
)
def test_native_sync_batchnorm_trains_on_one_device(count, settings):
    ctxs = devices(count, threads=1)
    net, step = make_native_step(ctxs, **settings)
    previous = parameter_arrays(net)
    step(shard_batch(make_uneven_batches([5])[0], ctxs))
    assert relative_distance(parameter_arrays(net), previous) > TOLERANCE


class PartlyFrozen(nn.HybridBlock):
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


def freeze(*names):
    """Return a function that freezes these parameters."""

    def freeze_parameters(net):
        for name in names:
            layer, param = name.split(".")
            getattr(getattr(net, layer), param).grad_req = "null"

    return freeze_parameters


def freeze_all_but_the_scores(net):
    net.collect_params().setattr("grad_req", "null")
    net.scores.collect_params().setattr("grad_req", "write")


def train_the_gamma_that_is_fixed(net):
    freeze_all_but_the_scores(net)
    net.images.gamma.grad_req = "write"


freeze_norms = freeze(*(f"{norm}.{name}" for norm in ("images", "middle", "last") for name in ("gamma", "beta")))
UNSCALED = {"scale": False, "center": False}
FROZEN = {
    "gamma and beta of all layers": (freeze_norms, {}),
    "all in front of the scores": (freeze_all_but_the_scores, {}),
    "all up to the second layer": (
        freeze("images.gamma", "images.beta", "conv.weight", "middle.gamma", "middle.beta"), {}),
    "neither scale nor center": (freeze(), {"first": UNSCALED}),
    "a fixed gamma that is trained": (train_the_gamma_that_is_fixed, {"first": UNSCALED}),
    "a stopped gradient": (freeze("last.gamma", "units.weight"), {"block": True}),
    "global statistics": (freeze_norms, {"first": {"use_global_stats": True}}),
}  # fmt: skip
RARE = ("all up to the second layer", "a fixed gamma that is trained", "global statistics")


def assert_trains_as_one_device(make, batches, counts):
    """Parameters, running statistics and the loss after training; on one device those of Gluon."""

    def make_seeded(ctxs):
        mx.random.seed(3)
        return make(ctxs)

    def train_on(k):
        ctxs = devices(k, threads=1)
        net = make_seeded(ctxs)
        step = make_step(net, ctxs, sync_bn=k > 1, learning_rate=0.1)
        train_steps(step, batches, ctxs)
        step.statistics.average()
        loss = sum(part.loss.asscalar() for part in step.score(shard_batch(batches[0], ctxs)))
        return [parameter_arrays(net, ctx) for ctx in ctxs], loss

    [expected], loss = train_on(1)
    [ctx] = devices(1, threads=1)
    if ctx.device_type == "cpu":  # cuDNN keeps another variance
        net = make_seeded([ctx])
        net.hybridize()  # without it MXNet crashes behind a stopped gradient
        gluons = train_on_one_device(net, batches, "sgd", learning_rate=0.1)
        assert relative_distance(expected, gluons) <= TOLERANCE
    for k in counts:
        results, result_loss = train_on(k)
        assert all(relative_distance(result, expected) <= TOLERANCE for result in results)
        assert result_loss == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.long] * (how in RARE)) for how in FROZEN])
def test_where_layers_are_frozen_k_devices_move_the_statistics_that_one_moves(how):
    freeze_parameters, settings = FROZEN[how]

    def make(ctxs):
        net = initialize(PartlyFrozen(**settings), ctxs)
        freeze_parameters(net)
        return net

    assert_trains_as_one_device(make, make_uneven_batches((12, 1)), [2])


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
    make = lambda ctxs: initialize(Reused(branches), ctxs)  # noqa: E731
    assert_trains_as_one_device(make, make_uneven_batches((12, 7)), [2, 3])


@pytest.mark.long
def test_a_run_on_two_devices_with_sync_bn_trains_as_on_one(tmp_path):
    def small_net(classes):
        net = nn.HybridSequential()
        net.add(nn.AvgPool2D(4, 4), nn.Dense(16, use_bias=False), nn.BatchNorm())
        net.add(nn.Activation("relu"), nn.Dense(classes))
        return net

    settings = dict(epochs=1, global_batch_size=300, optimizer="sgd", lr=0.1, sync_bn=True)

    def train_on(name, devices):
        config = TrainConfig(devices=devices, out=str(tmp_path / name), **settings)
        return parameter_arrays(train(config, reporter=Reporter(), net=small_net).net)

    assert relative_distance(train_on("two", device_spec(2)), train_on("one", "cpu")) <= TOLERANCE
