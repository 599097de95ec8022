"""Parameters that live in buckets, after everything that Gluon and oneDNN do with their memory."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts
from support.reference import (
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    train_on_devices,
)

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import RunError
from gluonlab.kvstores import make_kvstore

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


COMPILED = {"eager": None, "hybridized": {}, "static": STATIC}


def predict_between_steps(trainer_class, store, compiled):
    """Return the parameters on both devices and the predictions after each step."""
    ctxs, predictions = contexts(2), []
    net = make_net(ctxs)
    if COMPILED[compiled] is not None:
        net.hybridize(**COMPILED[compiled])
    trainer = trainer_class(net.collect_params(), "sgd", SGD, kvstore=make_kvstore(store))
    for batch in BATCHES:
        train_on_devices(net, trainer, ctxs, [batch])
        predictions += [net(nd.array(BATCHES[-1][0], ctx=ctx)).asnumpy() for ctx in ctxs]
    return [*parameter_arrays(net, ctxs[0]), *parameter_arrays(net, ctxs[1]), *predictions]


predict_with_gluon = functools.lru_cache(maxsize=None)(
    functools.partial(predict_between_steps, gluon.Trainer, "device")
)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("compiled", COMPILED)
def test_predictions_between_steps_do_not_change_the_parameters(store, compiled):
    result = predict_between_steps(BucketedTrainer, store, compiled)
    assert relative_distance(result, predict_with_gluon(compiled)) < 1e-4


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("compiled", [{}, {"static_alloc": True}, STATIC], ids=str)
def test_a_compiled_network_trains_as_with_gluons_trainer(compiled, known):
    ctxs, results = contexts(2), []
    for trainer_class in (gluon.Trainer, BucketedTrainer):
        net = make_net(ctxs, known)
        net.hybridize(**compiled)
        trainer = trainer_class(net.collect_params(), "sgd", SGD, kvstore=make_kvstore("device"))
        train_on_devices(net, trainer, ctxs, BATCHES)
        results.append(parameter_arrays(net))
    assert relative_distance(results[1], results[0]) < 1e-5


class CountsCompilations(nn.HybridSequential):
    compilations = 0

    def hybrid_forward(self, F, x):
        self.compilations += F is mx.sym  # symbols mean that Gluon compiles
        return super().hybrid_forward(F, x)


@pytest.mark.parametrize("compiled", [{}, {"static_alloc": True}, STATIC], ids=str)
def test_a_network_is_compiled_again_only_with_static_shape_and_where_its_parameters_move(compiled):
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
def test_settings_that_come_too_late_are_not_ignored(name, before, after):
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
