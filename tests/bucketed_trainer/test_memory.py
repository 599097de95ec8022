"""Parameters that live in buckets, after everything that Gluon and oneDNN do with their memory."""

import functools

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts
from support.examples import examples
from support.reference import (
    arrays_equal,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    train_on_devices,
)

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import RunError
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers import OPTIMIZERS
from gluonlab.optimizers.optimizer_registry import ELEMENT_WISE, MXNET_ELEMENT_WISE

BATCHES = random_batches([8] * 4, shape=(16, 6, 6), classes=16)
STORES = ("device", "ring", "sharded-optimizer")
STATIC = {"static_alloc": True, "static_shape": True}
SGD = {"learning_rate": 0.1, "momentum": 0.9}


def make_net(ctxs, known=True):
    """Return a network whose weights oneDNN stores in blocks of channels."""
    mx.random.seed(4)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(32, 3, padding=1, activation="tanh"),
        nn.Conv2D(16, 3, padding=1, groups=16 if known else 1, in_channels=32 if known else 0, use_bias=False),
        nn.Conv2DTranspose(24, 3, activation="tanh"),
        nn.GlobalAvgPool2D(),
        nn.Dense(64, activation="tanh"),
        nn.Dense(16),
    )
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    if known:
        with autograd.train_mode():
            net(nd.zeros((2, 16, 6, 6), ctx=ctxs[0]))
    return net


COMPILED = {"eager": None, "hybridized": {}, "static_alloc": {"static_alloc": True}, "static": STATIC}


@functools.lru_cache(maxsize=None)
def train_net(trainer_class, store, compiled, known, predicts):
    """Return the parameters on both devices, and the predictions after each step if ``predicts``."""
    ctxs, predictions = contexts(2), []
    net = make_net(ctxs, known)
    if COMPILED[compiled] is not None:
        net.hybridize(**COMPILED[compiled])
    trainer = trainer_class(net.collect_params(), "sgd", SGD, kvstore=make_kvstore(store))
    for batch in BATCHES:
        train_on_devices(net, trainer, ctxs, [batch])
        if predicts:
            predictions += [net(nd.array(BATCHES[-1][0], ctx=ctx)).asnumpy() for ctx in ctxs]
    return [*parameter_arrays(net, ctxs[0]), *parameter_arrays(net, ctxs[1]), *predictions]


CASES = [(store, compiled, True, True) for store in STORES for compiled in ("eager", "hybridized", "static")]
CASES += [("device", compiled, known, False) for compiled in list(COMPILED)[1:] for known in (True, False)]


@pytest.mark.parametrize(("store", "compiled", "known", "predicts"), CASES)
def test_compiled_networks_train_as_with_gluons_trainer_also_with_predictions(store, compiled, known, predicts):
    result = train_net(BucketedTrainer, store, compiled, known, predicts)
    expected = train_net(gluon.Trainer, "device", compiled, known, predicts)
    assert relative_distance(result, expected) < (1e-4 if predicts else 1e-5)


class CountsCompilations(nn.HybridSequential):
    compilations = 0

    def hybrid_forward(self, F, x):
        self.compilations += F is mx.sym  # symbols mean that Gluon compiles
        return super().hybrid_forward(F, x)


@pytest.mark.parametrize("compiled", [{}, {"static_alloc": True}, STATIC], ids=str)
def test_a_network_is_compiled_again_only_with_static_shape_and_if_its_parameters_move(compiled):
    ctxs, images = contexts(1), nd.ones((2, 3), ctx=contexts(1)[0])
    nets = trained, other = CountsCompilations(), CountsCompilations()
    for net in nets:
        net.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
        net.initialize(ctx=ctxs)
        net.hybridize(**compiled)
        net(images)
    trainer = BucketedTrainer(trained.collect_params(), "sgd", SGD)
    for _ in range(2):
        with autograd.record():
            losses = [net(images) for net in nets]
        autograd.backward(losses)
        trainer.step(2)
    assert trained.compilations == (2 if compiled == STATIC else 1)
    assert other.compilations == 1


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("lr_mult", 1.0, 0.1), ("wd_mult", 1.0, 0.0), ("grad_req", "write", "null"), ("grad_req", "null", "write")],
)
def test_changes_of_parameters_after_the_first_step_are_refused(name, before, after):
    net = make_net(contexts(1))
    setattr(net[0].weight, name, before)
    trainer = BucketedTrainer(net.collect_params(), "sgd", SGD)
    train_on_devices(net, trainer, contexts(1), BATCHES[:1])
    setattr(net[0].weight, name, after)
    with pytest.raises(RunError, match=name):
        train_on_devices(net, trainer, contexts(1), BATCHES[1:])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_setting_parameters_keeps_the_sharded_optimizers_state(optimizer, tmp_path):
    """Parameter.set_data makes gluon.Trainer prepare its store again."""
    settings = {"sgd": SGD, "adam": {"learning_rate": 0.01}}[optimizer]
    ctxs, results = contexts(2), []
    for name in ("device", "sharded-optimizer"):
        net = make_net(ctxs)
        trainer = BucketedTrainer(net.collect_params(), optimizer, settings, make_kvstore(name))
        train_on_devices(net, trainer, ctxs, BATCHES[:2])
        buckets = list(trainer.buckets)
        set_parameter_arrays(net, [value * 0.5 for value in parameter_arrays(net)])
        train_on_devices(net, trainer, ctxs, BATCHES[2:3])
        net.save_parameters(str(tmp_path / "params"))
        net.load_parameters(str(tmp_path / "params"), ctx=ctxs)
        train_on_devices(net, trainer, ctxs, BATCHES[3:])
        assert all(a is b for a, b in zip(trainer.buckets, buckets))
        results.append(parameter_arrays(net, ctxs[1]))
    assert all(np.isfinite(value).all() for value in results[0])
    assert relative_distance(results[1], results[0]) < 1e-5


SMALL_BATCHES = random_batches([6, 8, 4], shape=(1, 6, 6), classes=4)


@pytest.fixture(scope="module")
def exported_net(tmp_path_factory):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Flatten(), nn.Dense(4))
    net.initialize()
    net.hybridize()
    net(nd.zeros((1, 1, 6, 6)))
    path = str(tmp_path_factory.mktemp("exported") / "net")
    net.export(path)
    return path


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("store", ["device", "ring", "sharded-optimizer"])
def test_an_imported_network_trains_as_under_gluons_trainer(exported_net, store, tmp_path):
    ctxs, files = contexts(2), (f"{exported_net}-symbol.json", ["data"], f"{exported_net}-0000.params")
    nets = [gluon.SymbolBlock.imports(*files, ctx=ctxs) for _ in range(2)]
    assert any(param.shape is None for param in nets[0].collect_params().values())
    expected = gluon.Trainer(nets[0].collect_params(), "sgd", dict(SGD), kvstore="device")
    train_on_devices(nets[0], expected, ctxs, SMALL_BATCHES)
    first = BucketedTrainer(nets[1].collect_params(), "sgd", dict(SGD), kvstore=store)
    train_on_devices(nets[1], first, ctxs, SMALL_BATCHES[:1])
    first.save_states(str(tmp_path / "states"))
    second = BucketedTrainer(nets[1].collect_params(), "sgd", dict(SGD), kvstore=store)
    second.load_states(str(tmp_path / "states"))
    train_on_devices(nets[1], second, ctxs, SMALL_BATCHES[1:])
    assert relative_distance(parameter_arrays(nets[1]), parameter_arrays(nets[0])) < 1e-5


@pytest.mark.parametrize("deferred", [False, True])
def test_a_parameter_without_a_type_has_that_of_its_arrays(deferred):
    # Gluon makes it float32, which clipping needs. NumPy reads a missing type as float64.
    param = gluon.Parameter("w", shape=(0 if deferred else 3,), dtype=None, init="ones", allow_deferred_init=True)
    param.initialize(ctx=contexts(2))
    trainer = BucketedTrainer([param], "sgd", {"learning_rate": 0.5}, clip_norm=1.0)
    if deferred:
        param.shape = (3,)
        param._finish_deferred_init()
        trainer.prepare()
    for gradient in param.list_grad():
        gradient[:] = 1
    trainer.apply(2)
    assert all(np.allclose(array.asnumpy(), 1 - 0.5 / np.sqrt(3)) for array in param.list_data())


CHANNELS, SIZE = 8, 6  # oneDNN arranges 8 channels, or a multiple, in blocks
KINDS = list(dict.fromkeys([*MXNET_ELEMENT_WISE, *(kind.cls for kind in OPTIMIZERS.values())]))
KINDS.remove(mx.optimizer.Adamax)  # divides 0 by 0 here


def train(kind, k, kvstore, predicting, compiled):
    """Return the parameters of each device. ``predicting[step]``: devices that predict before it."""
    ctxs, random = contexts(k), np.random.RandomState(0)
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(2 * CHANNELS, 3, in_channels=CHANNELS), nn.Activation("relu"))
    net.add(nn.Conv2D(CHANNELS, 3, in_channels=2 * CHANNELS))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    if compiled:
        net.hybridize()
    options = {"wd": 0.01, "learning_rate": 0.01, **({"momentum": 0.9} if "momentum" in vars(kind()) else {})}
    trainer = BucketedTrainer(net.collect_params(), kind(**options), kvstore=kvstore)
    for numbers in predicting:
        images = random.uniform(-1, 1, (k, 2, CHANNELS, SIZE, SIZE)).astype("float32")
        with autograd.record():
            losses = [(net(nd.array(x, ctx=ctx)) ** 2).sum() for x, ctx in zip(images, ctxs)]
        autograd.backward(losses)
        for device in numbers & set(range(k)):
            net(nd.array(images[device], ctx=ctxs[device])).wait_to_read()
        trainer.step(2 * k)
    return [[param.data(ctx).asnumpy() for param in net.collect_params().values()] for ctx in ctxs]


@pytest.mark.parametrize("kind", KINDS)
@examples(1, 4)
@given(
    k=st.integers(1, 3),
    store=st.sampled_from(["device", "ring", "sharded-optimizer"]),
    predicting=st.lists(st.sets(st.integers(0, 2)), min_size=2, max_size=4),
    compiled=st.booleans(),
)
@example(k=2, store="device", predicting=[{0}, {0}, {0}], compiled=False)
def test_no_bit_depends_on_the_devices_that_predict(kind, k, store, predicting, compiled):
    if kind not in ELEMENT_WISE and store == "sharded-optimizer":
        store = "ring"
    [expected, *_] = train(kind, k, store, [set()] * len(predicting), compiled)
    for replica in train(kind, k, store, predicting, compiled):
        assert arrays_equal(replica, expected)
