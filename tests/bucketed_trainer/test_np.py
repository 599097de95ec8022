"""BucketedTrainer under npx.set_np(): what gluon.Trainer makes of the same mx.np network."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, npx
from mxnet import np as mnp
from mxnet.gluon import nn
from support.devices import contexts, device
from support.reference import arrays_equal, parameter_arrays, random_batches, relative_distance, set_parameter_arrays

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.engine.nd_and_np_arrays import nd_semantics, np_semantics
from gluonlab.optimizers.optimizer_registry import ELEMENT_WISE

BATCHES = random_batches([6, 7, 6], shape=(1, 6, 6), classes=4)
STORES = ("device", "local", "ring", "sharded-optimizer")


@pytest.fixture(autouse=True)
def _numpy_semantics():
    npx.set_np()
    yield
    npx.reset_np()


def layers():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, activation="tanh"), nn.Flatten(), nn.Dense(7, activation="tanh"), nn.Dense(4))
    return net


def numpy_net(ctxs, compiled=None):
    mx.random.seed(5)
    net = layers()
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    if compiled is not None:
        net.hybridize(**compiled)
    net(mnp.zeros((1, 1, 6, 6), ctx=ctxs[0]))
    return net


def train(net, trainer, ctxs, batches=BATCHES, scale=1.0):
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in batches:
        xs, ys = (gluon.utils.split_and_load(mnp.array(array), ctxs, even_split=False) for array in (images, labels))
        with autograd.record():
            losses = [loss(net(x), y).sum() * scale for x, y in zip(xs, ys)]
        autograd.backward(losses)
        trainer.step(len(images))
    return parameter_arrays(net, ctxs[-1])


@functools.lru_cache(maxsize=None)
def _expected(optimizer, params):
    net = numpy_net(contexts(1))
    return train(net, gluon.Trainer(net.collect_params(), optimizer, dict(params), kvstore=None), contexts(1))


def expected(optimizer, params):
    """What gluon.Trainer makes of the network on one device, trained once for all tests."""
    return _expected(optimizer, tuple(params.items()))


@pytest.mark.parametrize("optimizer", [*sorted(cls.__name__.lower() for cls in ELEMENT_WISE), "lamb", "dcasgd"])
def test_every_optimizer_makes_the_updates_of_gluons_trainer(optimizer):
    net = numpy_net(contexts(1))
    found = train(net, BucketedTrainer(net.collect_params(), optimizer, {"learning_rate": 0.01}), contexts(1))
    assert all(type(param.data(device())) is mnp.ndarray for param in net.collect_params().values())
    assert arrays_equal(found, expected(optimizer, {"learning_rate": 0.01}))


@pytest.mark.parametrize("bucket_bytes", [0, 300, 2**20])
@pytest.mark.parametrize("store", STORES)
def test_k_devices_train_as_one(store, bucket_bytes):
    params = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    net = numpy_net(contexts(3), {"static_alloc": True, "static_shape": True})
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(params), kvstore=store, bucket_bytes=bucket_bytes)
    found = train(net, trainer, contexts(3))
    assert relative_distance(found, expected("sgd", params)) <= 1e-5
    assert arrays_equal(found, parameter_arrays(net, device(0)))


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_clipping_and_scaling_do_what_they_do_to_mx_nd(store):
    net, scaled = numpy_net(contexts(2)), LossScale(256.0)
    start = parameter_arrays(net)
    trainer = BucketedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.5}, store, clip_norm=0.1, loss_scale=scaled, bucket_bytes=100
    )
    found = train(net, trainer, contexts(2), scale=256.0)
    npx.reset_np()
    plain = layers()
    plain.initialize()
    plain(mx.nd.zeros((1, 1, 6, 6)))
    set_parameter_arrays(plain, start)
    reference = BucketedTrainer(plain.collect_params(), "sgd", {"learning_rate": 0.5}, clip_norm=0.1)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in BATCHES:
        with autograd.record():
            total = loss(plain(mx.nd.array(images)), mx.nd.array(labels))
        total.backward()
        reference.step(len(images))
    assert relative_distance(found, parameter_arrays(plain)) <= 1e-5


class Half(mx.init.Initializer):
    """0.5 everywhere; MXNet's own initializers cannot write into shape ()."""

    def _init_weight(self, name, array):
        array[()] = 0.5


class Scaled(gluon.HybridBlock):
    """A dense layer times one number."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, in_units=36)
        self.number = self.params.get("number", shape=(), init=Half(), allow_deferred_init=True)

    def hybrid_forward(self, F, x, number):
        return self.dense(x) * number


@pytest.mark.parametrize("bucket_bytes", [0, 2**20])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_a_parameter_of_one_number(optimizer, bucket_bytes):
    results = []
    for make, ctxs in ((gluon.Trainer, contexts(1)), (BucketedTrainer, contexts(2))):
        mx.random.seed(2)
        net = Scaled()
        net.initialize(mx.init.Normal(0.3), ctx=ctxs)
        settings = {} if make is gluon.Trainer else {"bucket_bytes": bucket_bytes}
        trainer = make(net.collect_params(), optimizer, {"learning_rate": 0.05}, **settings)
        results.append(train(net, trainer, ctxs))
    assert [array.shape for array in results[1]] == [array.shape for array in results[0]]
    assert net.number.data(ctxs[1]).shape == () and net.number.data(ctxs[1]).item() != 0.5
    assert relative_distance(results[1], results[0]) <= 1e-5


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_a_device_without_a_shard_and_a_parameter_without_a_use(store):
    """As with mx.nd: the first counts as zero, the second is named, or stays."""
    net = numpy_net(contexts(2))
    unused = nn.Dense(2, in_units=2)
    unused.initialize(ctx=contexts(2))
    params = [*net.collect_params().values(), *unused.collect_params().values()]
    before = parameter_arrays(unused)
    trainer = BucketedTrainer(params, "sgd", {"learning_rate": 0.1, "wd": 0.1}, store)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in BATCHES:
        with autograd.record():
            total = loss(net(mnp.array(images, ctx=device())), mnp.array(labels, ctx=device()))
        total.backward()
        with pytest.raises(UserWarning, match=r"dense\d+_weight on [cg]pu\(0\)"):
            trainer.step(len(images))
        trainer.step(len(images), ignore_stale_grad=True)
    assert (
        relative_distance(parameter_arrays(net, device(1)), expected("sgd", {"learning_rate": 0.1, "wd": 0.1})) <= 1e-5
    )
    assert arrays_equal(before, parameter_arrays(unused, device(1)))


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
@pytest.mark.parametrize("of_nd", [True, False])
def test_a_trainer_may_be_made_and_used_under_the_other_semantics(store, of_nd, tmp_path):
    """A network of mx.nd whose trainer is made and steps after npx.set_np(), and a network of mx.np
    in a trainer from before it.
    """
    states, found = str(tmp_path / "states"), []
    for other_way in (False, True):
        ctxs = contexts(2)
        with semantics(not of_nd):
            net = numpy_net(ctxs) if not of_nd else nd_net(ctxs)
        with semantics(of_nd == other_way):
            trainer = BucketedTrainer(
                net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=store
            )
        for images, labels in BATCHES:
            with semantics(not of_nd):
                array = mx.nd.array if of_nd else mnp.array
                xs, ys = (gluon.utils.split_and_load(array(part), ctxs, even_split=False) for part in (images, labels))
                with autograd.record():
                    losses = [gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y).sum() for x, y in zip(xs, ys)]
                autograd.backward(losses)
            with semantics(of_nd == other_way):
                trainer.step(len(images))
                trainer.save_states(states)
                trainer.load_states(states)
        found.append([parameter_arrays(net, ctx) for ctx in ctxs])
    assert all(np.array_equal(a, b) for one, other in zip(*found) for a, b in zip(one, other))


def semantics(numpy_like):
    return np_semantics() if numpy_like else nd_semantics()


def nd_net(ctxs):
    mx.random.seed(5)
    net = nn.HybridSequential()
    net.add(nn.Dense(7, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(mx.nd.zeros((1, 1, 6, 6), ctx=ctxs[0]))
    return net
