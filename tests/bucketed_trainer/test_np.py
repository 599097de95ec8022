"""BucketedTrainer after npx.set_np() trains an mx.np network as gluon.Trainer does."""

import functools

import mxnet as mx
import pytest
from mxnet import autograd, gluon, npx
from mxnet import np as mnp
from mxnet.gluon import nn
from support.devices import contexts, device
from support.reference import (
    arrays_equal,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    train_on_devices,
)

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


def make_net(ctxs, arrays=mnp, compiled=None):
    mx.random.seed(5)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, activation="tanh"), nn.Flatten(), nn.Dense(7, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    if compiled is not None:
        net.hybridize(**compiled)
    net(arrays.zeros((1, 1, 6, 6), ctx=ctxs[0]))
    return net


def backward(net, ctxs, batch, arrays=mnp, scale=1.0):
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    xs, ys = (gluon.utils.split_and_load(arrays.array(part), ctxs, even_split=False) for part in batch)
    with autograd.record():
        losses = [loss(net(x), y).sum() * scale for x, y in zip(xs, ys)]
    autograd.backward(losses)


def train(net, trainer, ctxs, scale=1.0):
    for batch in BATCHES:
        backward(net, ctxs, batch, scale=scale)
        trainer.step(len(batch[0]))
    return parameter_arrays(net, ctxs[-1])


@functools.lru_cache(maxsize=None)
def train_with_gluon(optimizer, **params):
    net = make_net(contexts(1))
    return train(net, gluon.Trainer(net.collect_params(), optimizer, params, kvstore=None), contexts(1))


@pytest.mark.parametrize("optimizer", [*sorted(cls.__name__.lower() for cls in ELEMENT_WISE), "lamb", "dcasgd"])
def test_every_optimizer_makes_the_updates_of_gluons_trainer(optimizer):
    net = make_net(contexts(1))
    result = train(net, BucketedTrainer(net.collect_params(), optimizer, {"learning_rate": 0.01}), contexts(1))
    assert all(type(param.data(device())) is mnp.ndarray for param in net.collect_params().values())
    assert arrays_equal(result, train_with_gluon(optimizer, learning_rate=0.01))


@pytest.mark.parametrize("bucket_bytes", [0, 300, 2**20])
@pytest.mark.parametrize("store", STORES)
def test_k_devices_train_as_one(store, bucket_bytes):
    params = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    net = make_net(contexts(3), compiled={"static_alloc": True, "static_shape": True})
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(params), kvstore=store, bucket_bytes=bucket_bytes)
    result = train(net, trainer, contexts(3))
    assert relative_distance(result, train_with_gluon("sgd", **params)) <= 1e-5
    assert arrays_equal(result, parameter_arrays(net, device(0)))


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_clipping_and_scaling_work_as_with_mx_nd(store):
    net = make_net(contexts(2))
    start, settings = parameter_arrays(net), {"optimizer_params": {"learning_rate": 0.5}, "clip_norm": 0.1}
    scaling = {"loss_scale": LossScale(256.0), "bucket_bytes": 100}
    trainer = BucketedTrainer(net.collect_params(), "sgd", kvstore=store, **settings, **scaling)
    result = train(net, trainer, contexts(2), scale=256.0)
    npx.reset_np()
    plain = make_net(contexts(1), mx.nd)
    set_parameter_arrays(plain, start)
    train_on_devices(plain, BucketedTrainer(plain.collect_params(), "sgd", **settings), contexts(1), BATCHES)
    assert relative_distance(result, parameter_arrays(plain)) <= 1e-5


class ScaledDense(gluon.HybridBlock):
    """A dense layer times one number of shape ()."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, in_units=36)
        init = mx.init.Initializer()  # MXNet's other initializers cannot write into shape ()
        init._init_weight = lambda name, array: array.__setitem__((), 0.5)
        self.number = self.params.get("number", shape=(), init=init, allow_deferred_init=True)

    def hybrid_forward(self, F, x, number):
        return self.dense(x) * number


@pytest.mark.parametrize("bucket_bytes", [0, 2**20])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_a_parameter_of_one_number(optimizer, bucket_bytes):
    results = []
    for make, ctxs in ((gluon.Trainer, contexts(1)), (BucketedTrainer, contexts(2))):
        mx.random.seed(2)
        net = ScaledDense()
        net.initialize(mx.init.Normal(0.3), ctx=ctxs)
        settings = {} if make is gluon.Trainer else {"bucket_bytes": bucket_bytes}
        trainer = make(net.collect_params(), optimizer, {"learning_rate": 0.05}, **settings)
        results.append(train(net, trainer, ctxs))
    assert [array.shape for array in results[1]] == [array.shape for array in results[0]]
    assert net.number.data(ctxs[1]).shape == () and net.number.data(ctxs[1]).item() != 0.5
    assert relative_distance(results[1], results[0]) <= 1e-5


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_idle_devices_count_as_zero_and_unused_parameters_are_named_or_stay(store):
    net, unused = make_net(contexts(2)), nn.Dense(2, in_units=2)
    unused.initialize(ctx=contexts(2))
    before, settings = parameter_arrays(unused), {"learning_rate": 0.1, "wd": 0.1}
    params = [*net.collect_params().values(), *unused.collect_params().values()]
    trainer = BucketedTrainer(params, "sgd", dict(settings), store)
    for batch in BATCHES:
        backward(net, contexts(1), batch)
        with pytest.raises(UserWarning, match=r"dense\d+_weight on [cg]pu\(0\)"):
            trainer.step(len(batch[0]))
        trainer.step(len(batch[0]), ignore_stale_grad=True)
    assert relative_distance(parameter_arrays(net, device(1)), train_with_gluon("sgd", **settings)) <= 1e-5
    assert arrays_equal(before, parameter_arrays(unused, device(1)))


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
@pytest.mark.parametrize(
    ("semantics", "other", "arrays"), [(nd_semantics, np_semantics, mx.nd), (np_semantics, nd_semantics, mnp)]
)
def test_a_trainer_may_be_made_and_used_under_the_other_semantics(store, semantics, other, arrays, tmp_path):
    states, results, ctxs = str(tmp_path / "states"), [], contexts(2)
    for of_trainer in (semantics, other):
        with semantics():
            net = make_net(ctxs, arrays)
        with of_trainer():
            trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, store)
        for batch in BATCHES:
            with semantics():
                backward(net, ctxs, batch, arrays)
            with of_trainer():
                trainer.step(len(batch[0]))
                trainer.save_states(states)
                trainer.load_states(states)
        results.append([array for ctx in ctxs for array in parameter_arrays(net, ctx)])
    assert arrays_equal(*results)
