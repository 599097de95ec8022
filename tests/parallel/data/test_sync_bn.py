"""BatchNorm over all devices is BatchNorm on one device with the whole batch, whatever the sizes of
the shards.
"""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.covering import pairwise
from support.devices import contexts, devices, named
from support.reference import (
    as_is,
    distance,
    random_batches,
    set_values,
    shards,
    train_on_one_device,
    values,
)
from support.sync_bn import SHAPE, Residual

from gluonlab.config import TrainConfig
from gluonlab.errors import ModelError
from gluonlab.kvstores import make_kvstore
from gluonlab.models import MODELS, ModelKind
from gluonlab.parallel.data.microbatches import WHOLE, Microbatches
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.data.sync_bn import check_network
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from gluonlab.update.trainer import BucketedTrainer

TOLERANCE = 1e-4
FEWER_GPUS = pytest.mark.cpu_only("no machine has so many GPUs")
SIZES = {"equal": (12,) * 5, "unequal": (13,) * 5, "idle devices": (12, 1, 2, 13, 3)}


def make_net(ctxs, start=None):
    net = Residual()
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    if start:
        set_values(net, start)
    return net


def make_step(net, ctxs, cut=WHOLE, sync_bn=True, store="device", **params):
    trainer = BucketedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1, **params}, make_kvstore(store, ctxs)
    )
    return DataParallelStep(
        net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, as_is, cut, sync_bn
    )


def batches_of(sizes):
    """Images whose mean and spread differ from one to the next, so that a shard's statistics are
    not the batch's.
    """
    return [
        (
            images * np.linspace(0.5, 4, len(images)).reshape(-1, 1, 1, 1).astype("float32") + 1,
            labels,
        )
        for images, labels in random_batches(sizes, shape=SHAPE)
    ]


@pytest.fixture(scope="module")
def start():
    mx.random.seed(1)
    return values(make_net([mx.cpu(0)]))


def trained(start, sizes, k, weights=None, **settings):
    ctxs = devices(k, threads=1)
    net = make_net(ctxs, start)
    step = make_step(net, ctxs, **settings)
    for batch in batches_of(sizes):
        step(shards(batch, ctxs, weights))
    return [values(net, ctx) for ctx in ctxs]


@pytest.fixture(scope="module")
def on_one_device(start):
    """``on_one_device(sizes)``: the parameters after batches of SIZES there."""

    @functools.lru_cache(maxsize=None)
    def train(sizes):
        one, batches = make_net([mx.cpu(0)], start), batches_of(SIZES[sizes])
        return train_on_one_device(one, batches, "sgd", learning_rate=0.1, momentum=0.9)

    return train


@pairwise(k=[2, 3, 4], sizes=list(SIZES), store=["device", "ring"])
def test_synchronised_batchnorm_on_k_devices_is_that_of_one_device(
    k, sizes, store, start, on_one_device
):
    """Weights and running statistics, on every device, also where it had no image."""
    for found in trained(start, SIZES[sizes], k, store=store, momentum=0.9):
        assert distance(found, on_one_device(sizes)) <= TOLERANCE


@pytest.mark.parametrize("weights", [[5, 1], [1, 2, 9]], ids=str)
def test_so_it_is_where_devices_share_batches_unequally(weights, start):
    one = make_net([mx.cpu(0)], start)
    expected = train_on_one_device(one, batches_of((13, 2, 7)), "sgd", learning_rate=0.1)
    for found in trained(start, (13, 2, 7), len(weights), weights):
        assert distance(found, expected) <= TOLERANCE


@pytest.mark.parametrize("k", [8, pytest.param(50, marks=[pytest.mark.long, FEWER_GPUS])])
def test_many_devices_train_as_one_too(k, start):
    """Statistics are used on all of them, and each use has a gradient; of 8 and more MXNet would
    lose all but one.
    """
    one = make_net([mx.cpu(0)], start)
    expected = train_on_one_device(one, batches_of((50, 12)), "sgd", learning_rate=0.1)
    for found in trained(start, (50, 12), k):
        assert distance(found, expected) <= TOLERANCE


def test_plain_batchnorm_on_2_devices_is_not(start):
    expected = train_on_one_device(
        make_net([mx.cpu(0)], start), batches_of(SIZES["equal"]), "sgd", learning_rate=0.1
    )
    assert all(
        distance(found, expected) > 100 * TOLERANCE
        for found in trained(start, SIZES["equal"], 2, sync_bn=False)
    )


def test_it_evaluates_by_the_running_statistics(start):
    ctxs = devices(3, threads=1)
    net = make_net(ctxs, start)
    step = make_step(net, ctxs)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for batch in batches_of((13, 2, 13)):
        step(shards(batch, ctxs))
        images, labels = batch
        x = nd.array(images, ctx=ctxs[0])
        found = sum(part.loss.asscalar() for part in step.score(shards(batch, ctxs)))
        assert found == pytest.approx(
            loss(net(x), nd.array(labels, ctx=ctxs[0])).sum().asscalar(), rel=1e-4
        )


def test_with_microbatches_the_statistics_are_those_of_a_round_of_all_devices(start):
    """Shards of 7 and 6 images in parts of at most 3: rounds of 3 + 3, 2 + 3 and 2 images;
    gradients are added up.
    """
    ctxs = devices(2, threads=1)
    ((images, labels),) = batches_of([13])
    net, one = make_net(ctxs, start), make_net([mx.cpu(0)], start)
    step = make_step(net, ctxs, Microbatches(size=3), momentum=0.9)
    step(shards((images, labels), ctxs))
    rounds = [[0, 1, 2, 7, 8, 9], [3, 4, 10, 11, 12], [5, 6]]
    one.collect_params().setattr("grad_req", "add")
    for param in one.collect_params(".*running").values():
        param.grad_req = "null"
    for part in rounds:
        with autograd.record():
            total = gluon.loss.SoftmaxCrossEntropyLoss()(
                one(nd.array(images[part])), nd.array(labels[part])
            ).sum()
        total.backward()
    gluon.Trainer(
        one.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=None
    ).step(13)
    for ctx in ctxs:
        assert distance(values(net, ctx), values(one)) <= TOLERANCE


def test_many_steps_without_a_wait_do_not_hang(start):
    """Devices run ahead of each other here, from step to step; MXNet's own operator would block
    their workers.
    """
    ctxs = devices(4, threads=1)
    net = make_net(ctxs, start)
    step = make_step(net, ctxs, store="sharded")
    batches = [shards(batch, ctxs) for batch in batches_of((8, 3, 9))]
    for _ in range(20):
        for batch in batches:
            step(batch)
    nd.waitall()
    assert all(np.isfinite(array).all() for array in values(net))


def test_saved_parameters_fit_the_same_network_without_it(start, tmp_path):
    ctxs = devices(2, threads=1)
    net = make_net(ctxs, start)
    step = make_step(net, ctxs)
    ((images, labels),) = batches_of([9])
    step(shards((images, labels), ctxs))
    net.save_parameters(str(tmp_path / "parameters"))
    plain = make_net([mx.cpu(0)])
    plain.load_parameters(str(tmp_path / "parameters"), ctx=mx.cpu(0))
    assert (
        distance(
            [plain(nd.array(images)).asnumpy()], [net(nd.array(images, ctx=ctxs[0])).asnumpy()]
        )
        <= 1e-6
    )


@pytest.mark.cpu_only("nothing is computed")
def test_networks_that_it_does_not_suit_are_refused():
    plain, global_only, last_axis = (
        nn.HybridSequential(),
        nn.HybridSequential(),
        nn.HybridSequential(),
    )
    plain.add(nn.Dense(3))
    global_only.add(nn.Dense(3), nn.BatchNorm(use_global_stats=True))
    last_axis.add(nn.BatchNorm(), nn.BatchNorm(axis=-1))
    with_relu, mxnets = nn.HybridSequential(), nn.HybridSequential()
    with_relu.add(nn.BatchNorm(), nn.BatchNormReLU())
    mxnets.add(nn.BatchNorm(), gluon.contrib.nn.SyncBatchNorm(num_devices=2))
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
            self.gamma, self.beta = (
                self.params.get(name, shape=(2,), init=name) for name in ("ones", "zeros")
            )
            self.mean, self.var = (
                self.params.get(name, shape=(2,), grad_req="null", init="ones")
                for name in ("mean", "var")
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
    "takes mean or variance": lambda F, *inputs: mean_of_first(
        F.BatchNorm(*inputs, output_mean_var=True)
    ),
}


@pytest.mark.cpu_only("nothing is computed")
@pytest.mark.parametrize("reason", REFUSED)
def test_operators_that_it_does_not_suit_are_refused(reason):
    ctxs = contexts(1)
    net = ByOperator(REFUSED[reason])
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    with pytest.raises(ModelError, match=f"sync_bn: .*{reason}.*: leave sync_bn out, or "):
        make_step(net, ctxs)


def test_layers_with_global_statistics_stay_as_they_are():
    """They take no part in what is shared, and their running statistics do not move."""
    ctxs = devices(2, threads=1)
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(use_global_stats=True), nn.Dense(6), nn.BatchNorm(), nn.Dense(10))
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    step = make_step(net, ctxs)
    step(shards(batches_of([5])[0], ctxs))
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

            x = (
                F.contrib.foreach(call, F.expand_dims(x, 0), [])[0].reshape((-3, -2))
                if self.looped
                else call(x, [])[0]
            )
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
            TrainConfig(devices=named(count), epochs=1, **config),
            net=lambda classes: Waiting(classes, **given),
            reporter=Reporter(),
        )
    assert "--model" not in str(raised.value)
    assert not list(empty_cwd.iterdir())


def waiting_step(ctxs, **settings):
    net = Waiting(**settings)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net, make_step(net, ctxs, sync_bn=False)


@pytest.mark.cpu_only("nothing is computed")
def test_a_step_of_ones_own_refuses_it_too():
    with pytest.raises(ModelError, match="Waiting has a SyncBatchNorm"):
        waiting_step(contexts(2), num_devices=2)


@pytest.mark.cpu_only("the operator of GPUs is another one")
@pytest.mark.parametrize(
    "count, settings", [(1, {"num_devices": 1}), (2, {"num_devices": 2, "use_global_stats": True})]
)
def test_one_that_has_nobody_to_wait_for_trains(count, settings):
    ctxs = devices(count, threads=1)
    net, step = waiting_step(ctxs, **settings)
    before = values(net)
    step(shards(batches_of([5])[0], ctxs))
    assert distance(values(net), before) > TOLERANCE


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


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.long] * (how in RARE)) for how in FROZEN]
)
def test_where_layers_are_frozen_k_devices_move_the_statistics_that_one_moves(how):
    freeze, settings = FROZEN[how]
    batches = batches_of((12, 1))

    def make(ctxs):
        mx.random.seed(3)
        net = Freezes(**settings)
        net.initialize(mx.init.Xavier(), ctx=ctxs)
        net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
        freeze(net)
        return net

    def train_on(k):
        ctxs = devices(k, threads=1)
        net = make(ctxs)
        step = make_step(net, ctxs, sync_bn=k > 1)
        for batch in batches:
            step(shards(batch, ctxs))
        step.statistics.average()
        tested = sum(part.loss.asscalar() for part in step.score(shards(batches[0], ctxs)))
        return ctxs, [values(net, ctx) for ctx in ctxs], tested

    ctxs, [expected], loss = train_on(1)
    if ctxs[0].device_type == "cpu":  # cuDNN keeps another variance
        net = make(ctxs)
        net.hybridize()  # without it MXNet crashes behind the stopped gradient
        gluons = train_on_one_device(net, batches, "sgd", learning_rate=0.1)
        assert distance(expected, gluons) <= TOLERANCE
    _, found, tested = train_on(2)
    assert all(distance(each, expected) <= TOLERANCE for each in found)
    assert tested == pytest.approx(loss, rel=1e-4)


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

    def make(ctxs):
        mx.random.seed(3)
        net = Reused(branches)
        net.initialize(mx.init.Xavier(), ctx=ctxs)
        net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
        return net

    def train_on(k):
        ctxs = devices(k, threads=1)
        net = make(ctxs)
        step = make_step(net, ctxs)
        for batch in batches:
            step(shards(batch, ctxs))
        return ctxs, [values(net, ctx) for ctx in ctxs]

    batches = batches_of((12, 7))
    [ctx], [expected] = train_on(1)
    if ctx.device_type == "cpu":  # cuDNN keeps another variance
        one = make([ctx])
        one.hybridize()
        gluons = train_on_one_device(one, batches, "sgd", learning_rate=0.1)
        assert distance(expected, gluons) <= TOLERANCE
    for k in (2, 3):
        assert all(distance(found, expected) <= TOLERANCE for found in train_on(k)[1])


@pytest.mark.long
def test_a_run_takes_it(tmp_path, monkeypatch):
    """Two devices with --sync-bn end where one device does."""
    monkeypatch.setitem(
        MODELS, "bn", ModelKind(lambda classes: small_net(classes), "for this test")
    )

    def run(name, devices):
        settings = {
            "model": "bn",
            "epochs": 1,
            "global_batch_size": 300,
            "optimizer": "sgd",
            "lr": 0.1,
            "sync_bn": True,
        }
        return values(
            train(
                TrainConfig(devices=devices, out=str(tmp_path / name), **settings),
                reporter=Reporter(),
            ).net
        )

    assert distance(run("two", named(2)), run("one", "cpu")) <= TOLERANCE


def small_net(classes):
    net = nn.HybridSequential()
    net.add(
        nn.AvgPool2D(4, 4),
        nn.Dense(16, use_bias=False),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.Dense(classes),
    )
    return net
