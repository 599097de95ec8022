"""The arguments that BucketedTrainer accepts and refuses. A refusal changes nothing."""

import inspect

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device
from support.reference import (
    arrays_equal,
    cpu_contexts,
    parameter_arrays,
    random_batches,
    relative_distance,
    train_on_devices,
)

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import ConfigError, GluonlabError, GluonlabWarning, KVStoreError
from gluonlab.kvstores import KVSTORES, make_kvstore

BATCHES = random_batches([6, 7, 6], shape=(5,), classes=4)


def compressed(**settings):
    return {"compression_params": {"type": "2bit", **settings}}


TWO_BITS = compressed(threshold=0.25)


def make_net(ctxs):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(7, in_units=5, activation="tanh"), nn.Dense(4, in_units=7))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    return net


def test_it_takes_what_gluons_trainer_takes_in_the_same_places():
    theirs = list(inspect.signature(gluon.Trainer).parameters.values())
    ours = list(inspect.signature(BucketedTrainer).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]
    assert {p.kind for p in ours[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.fixture(scope="module")
def parameters_of_one_device():
    net = make_net(cpu_contexts(1))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=None)
    train_on_devices(net, trainer, cpu_contexts(1), BATCHES)
    return parameter_arrays(net)


@pytest.mark.parametrize("name", [None, *sorted({*KVSTORES, "Ring", "DEVICE", "an instance"} - {"nccl"})])
def test_every_store_by_name_trains_all_replicas_as_one_device(name, parameters_of_one_device):
    kvstore = {"kvstore": mx.kv.create("device") if name == "an instance" else name} if name else {}
    net = make_net(contexts(3))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, **kvstore)
    train_on_devices(net, trainer, contexts(3), BATCHES)
    assert arrays_equal(parameter_arrays(net, device(0)), parameter_arrays(net, device(2)))
    assert relative_distance(parameter_arrays(net), parameters_of_one_device) <= 1e-5


def test_a_name_means_the_store_of_that_name():
    for name in ("ring", "sharded-optimizer"):
        trainer = BucketedTrainer(make_net(contexts(2)).collect_params(), "sgd", kvstore=name)
        assert type(trainer._kvstore) is type(make_kvstore(name)) and trainer._kvstore.type == name


def sparse_net(ctxs):
    net = nn.Embedding(10, 3, sparse_grad=True)
    net.initialize(ctx=ctxs)
    return net


def float16_net(ctxs):
    net = make_net(ctxs)
    net[1].cast("float16")
    return net


def net_on_other_devices(ctxs):
    net = make_net(ctxs)
    net[1].collect_params().reset_ctx(contexts(3))
    return net


def uninitialized_net(ctxs):
    net = make_net(ctxs)
    net.add(nn.Dense(2, in_units=4))
    return net


REFUSED = [
    (KVStoreError, dict(kvstore="rign"), "unknown kvstore 'rign': .*did you mean 'ring'"),
    (KVStoreError, dict(kvstore="dist_sync"), "kvstore 'dist_sync' sums over processes: start them with gluonlab l"),
    (KVStoreError, dict(kvstore=None), "kvstore None: .* 2 devices.*choose 'device'"),
    (KVStoreError, dict(kvstore=3), "kvstore 3 is no kvstore"),
    (KVStoreError, dict(kvstore=mx.kvstore.KVStoreBase), "is no kvstore: give a name"),
    (KVStoreError, dict(update_on_kvstore=True), "update_on_kvstore=True: kvstore 'device' sums.*sharded-optimizer"),
    (KVStoreError, dict(kvstore="sharded-optimizer", update_on_kvstore=False), "update_on_kvstore=False.*'sharded'"),
    (KVStoreError, dict(kvstore="sharded-optimizer", optimizer="lamb"), "which LAMB does not allow"),
    (KVStoreError, dict(kvstore="ring", **TWO_BITS), "'ring' cannot compress.*choose 'device'"),
    (KVStoreError, dict(kvstore="local", **TWO_BITS), "'local' cannot compress.*choose 'device'"),
    (KVStoreError, dict(kvstore="sharded-optimizer", **TWO_BITS), "cannot compress"),
    (KVStoreError, compressed(type="1bit"), "give {'type': '2bit'"),
    (KVStoreError, compressed(threshold=0), "above 0"),
    (KVStoreError, compressed(threshold="x"), "above 0"),
    (KVStoreError, compressed(treshold=1), "'threshold'"),
    (KVStoreError, dict(compression_params=100), "compression_params 100"),
    (KVStoreError, dict(loss_scale=LossScale(), **TWO_BITS), "an overflow.*leave one out"),
    (KVStoreError, dict(make=sparse_net), "sparse gradients, such as embedding.*use gluon.Trainer"),
    (KVStoreError, dict(make=float16_net, clip_norm=1.0), "clip_norm 1 is for float32, and"),
    (KVStoreError, dict(make=float16_net, loss_scale=LossScale()), "loss_scale is for float32"),
    (ConfigError, dict(bucket_bytes=-1), "bucket_bytes -1: give"),
    (ConfigError, dict(bucket_bytes="4M"), "bucket_bytes '4M': give"),
    (ConfigError, dict(clip_norm=0.0), "clip_norm 0.0: give a number above 0"),
    (ConfigError, dict(clip_norm=-1), "clip_norm -1: give"),
    (ConfigError, dict(clip_norm=float("nan")), "clip_norm nan: give"),
    (ConfigError, dict(clip_norm=float("inf")), "clip_norm inf: give"),
    (ConfigError, dict(loss_scale=128.0), "loss_scale 128.0: give .*LossScale"),
    (ConfigError, dict(optimizer=mx.optimizer.SGD), "give its name, .* or an instance"),
    (ConfigError, dict(optimizer="sdg"), "unknown optimizer 'sdg': choose .*sgd"),
    (ConfigError, dict(optimizer_params={"lr": 0.1}), "unexpected .*'lr'; the learning rate is 'learning_rate'$"),
    (ConfigError, dict(optimizer_params=0.1), "optimizer_params 0.1: give a dictionary"),
    (AssertionError, dict(make=net_on_other_devices), "same set of contexts"),
    (RuntimeError, dict(make=uninitialized_net), "has not been initialized"),
]


@pytest.mark.parametrize(("error", "arguments", "message"), REFUSED)
def test_refused_arguments_are_left_unchanged(error, arguments, message):
    settings = {"make": make_net, "optimizer": "sgd", **arguments}
    net = settings.pop("make")(contexts(2))
    params = list(net.collect_params().values())
    arrays = [(param._data, param._grad) for param in params]
    former = object()
    for param in params:
        param._trainer = former if param._stype == "default" else None
    trainers = [param._trainer for param in params]
    with pytest.raises(error, match=message) as raised:
        BucketedTrainer(params, settings.pop("optimizer"), **settings)
    assert not isinstance(raised.value, GluonlabError) or "\n" not in str(raised.value)
    assert [param._trainer for param in params] == trainers
    assert all(a is b for own, param in zip(arrays, params) for a, b in zip(own, (param._data, param._grad)))


def test_no_parameters_and_repeated_parameters_are_refused():
    # gluon.Trainer fails late, or updates the same parameter twice on one device.
    with pytest.raises(ConfigError, match="no parameters to train: give"):
        BucketedTrainer([], "sgd")
    params = list(make_net(contexts(1)).collect_params().values())
    with pytest.raises(ConfigError, match=f"{params[1].name} comes several times: give each once"):
        BucketedTrainer([*params, params[1]], "sgd")
    BucketedTrainer(list(dict.fromkeys([*params, params[1]])), "sgd")


@pytest.mark.parametrize("size", [0, -4, None, "8", float("nan"), float("inf"), nd.ones((1,))], ids=str)
@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_an_invalid_batch_size_changes_nothing(store, size):
    net = make_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=store)
    with autograd.record():
        losses = [net(nd.ones((2, 5), ctx=ctx)).sum() for ctx in contexts(2)]
    autograd.backward(losses)
    before = parameter_arrays(net)
    message = "give a number above 0: the images of this step on all devices"
    for call in (trainer.step, trainer.apply):
        with pytest.raises(ConfigError, match=message) as raised:
            call(size)
        assert "\n" not in str(raised.value)
    trainer.step(np.int64(4))  # the gradients are still fresh
    assert not np.array_equal(parameter_arrays(net)[0], before[0])


def test_an_optimizer_that_was_refused_keeps_its_parameters():
    net, other = make_net(contexts(2)), make_net(contexts(2))
    optimizer = mx.optimizer.SGD(learning_rate=0.1)
    gluon.Trainer(other.collect_params(), optimizer)
    mine = optimizer.param_dict
    with pytest.raises(KVStoreError):
        BucketedTrainer(net.collect_params(), optimizer, kvstore="rign")
    assert optimizer.param_dict is mine


def test_compressed_gradients_move_parameters_by_multiples_of_the_threshold():
    before = parameter_arrays(make_net(contexts(2)))

    def compute_moves(threshold, batches):
        net = make_net(contexts(2))
        params = {"learning_rate": 1.0}
        trainer = BucketedTrainer(net.collect_params(), "sgd", params, **compressed(threshold=threshold))
        train_on_devices(net, trainer, contexts(2), batches)
        return np.concatenate([(b - a).ravel() for a, b in zip(parameter_arrays(net), before)])

    assert not compute_moves(100.0, BATCHES).any()
    thresholds = compute_moves(0.25, BATCHES[:1]) * 6 / 0.25
    assert np.allclose(thresholds, np.round(thresholds), atol=1e-5) and np.round(thresholds).any()


def test_compression_on_one_device_warns():
    with pytest.warns(GluonlabWarning, match="one device has nobody to send gradients to"):
        BucketedTrainer(make_net(contexts(1)).collect_params(), "sgd", **TWO_BITS)


@pytest.mark.parametrize("kvstore", [None, "device", "ring", "sharded-optimizer"])
def test_one_device_needs_no_store_and_may_have_one(kvstore):
    net, other = make_net(contexts(1)), make_net(contexts(1))
    train_on_devices(net, BucketedTrainer(net.collect_params(), "adam", kvstore=kvstore), contexts(1), BATCHES)
    train_on_devices(other, gluon.Trainer(other.collect_params(), "adam", kvstore=None), contexts(1), BATCHES)
    assert arrays_equal(parameter_arrays(net), parameter_arrays(other))


@pytest.mark.parametrize("call", [lambda trainer: trainer.allreduce_grads(), lambda trainer: trainer.update(1)])
def test_a_store_that_updates_refuses_half_steps(call):
    params = make_net(contexts(2)).collect_params()
    trainer = BucketedTrainer(params, "sgd", kvstore="sharded-optimizer", update_on_kvstore=True)
    with pytest.raises(GluonlabError, match=r"sums and updates at once: call step\(\)"):
        call(trainer)


@pytest.mark.parametrize("name", [None, 3, ["device"], mx.kvstore.KVStoreBase])
def test_make_kvstore_refuses_values_that_are_not_names(name):
    with pytest.raises(KVStoreError, match="unknown kvstore"):
        make_kvstore(name)
