"""What BucketedTrainer takes, what it refuses, and how it leaves what it refused."""

import inspect

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device
from support.reference import cpus, distance, random_batches, train_on_devices, values

from gluonlab.errors import ConfigError, GluonlabError, GluonlabWarning, KVStoreError
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.update.loss_scale import LossScale
from gluonlab.update.trainer import BucketedTrainer

BATCHES = random_batches([6, 7, 6], shape=(5,), classes=4)
TWO_BITS = {"type": "2bit", "threshold": 0.25}


def small_net(ctxs, **settings):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(7, in_units=5, activation="tanh"), nn.Dense(4, in_units=7))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    return net


def test_it_takes_what_gluons_trainer_takes_in_the_same_places():
    theirs = list(inspect.signature(gluon.Trainer).parameters.values())
    ours = list(inspect.signature(BucketedTrainer).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [
        (p.name, p.default, p.kind) for p in theirs
    ]
    assert {p.kind for p in ours[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.fixture(scope="module")
def parameters_of_one_device():
    net = small_net(cpus(1))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=None)
    train_on_devices(net, trainer, cpus(1), BATCHES)
    return values(net)


@pytest.mark.parametrize(
    "name",
    [None, *(name for name in (*KVSTORES, "Ring", "DEVICE") if name != "nccl"), "an instance"],
)
def test_every_store_by_name_keeps_the_replicas_alike(name, parameters_of_one_device):
    """And trains as one device does, for which no store is needed."""
    kvstore = {"kvstore": mx.kv.create("device") if name == "an instance" else name} if name else {}
    net = small_net(contexts(3))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, **kvstore)
    train_on_devices(net, trainer, contexts(3), BATCHES)
    assert all(np.array_equal(a, b) for a, b in zip(values(net, device(0)), values(net, device(2))))
    assert distance(values(net), parameters_of_one_device) <= 1e-5


def test_a_name_means_the_store_of_that_name():
    for name in ("ring", "sharded-optimizer"):
        trainer = BucketedTrainer(small_net(contexts(2)).collect_params(), "sgd", kvstore=name)
        assert type(trainer._kvstore) is type(make_kvstore(name)) and trainer._kvstore.type == name


def embedding():
    net = nn.Embedding(10, 3, sparse_grad=True)
    net.initialize(ctx=contexts(2))
    return net


def half():
    net = small_net(contexts(2))
    net[1].cast("float16")
    return net


def elsewhere():
    net = small_net(contexts(2))
    net[1].collect_params().reset_ctx(contexts(3))
    return net


def uninitialised():
    net = small_net(contexts(2))
    net.add(nn.Dense(2, in_units=4))
    return net


REFUSED = {
    "unknown store": (
        small_net,
        dict(kvstore="rign"),
        KVStoreError,
        "unknown kvstore 'rign': .*did you mean 'ring'",
    ),
    "store of processes": (
        small_net,
        dict(kvstore="dist_sync"),
        KVStoreError,
        "kvstore 'dist_sync' sums over processes: start them with gluonlab launch -n N --backend d",
    ),
    "no store": (
        small_net,
        dict(kvstore=None),
        KVStoreError,
        "kvstore None: .* 2 devices.*choose 'device'",
    ),
    "number": (small_net, dict(kvstore=3), KVStoreError, "kvstore 3 is no kvstore"),
    "class": (
        small_net,
        dict(kvstore=mx.kvstore.KVStoreBase),
        KVStoreError,
        "is no kvstore: give a name",
    ),
    "update on a store that sums": (
        small_net,
        dict(update_on_kvstore=True),
        KVStoreError,
        "update_on_kvstore=True: kvstore 'device' sums.*sharded-optimizer",
    ),
    "no update on the one that updates": (
        small_net,
        dict(kvstore="sharded-optimizer", update_on_kvstore=False),
        KVStoreError,
        "update_on_kvstore=False.*'sharded'",
    ),
    "whole parameters, sharded": (
        small_net,
        dict(kvstore="sharded-optimizer", optimizer="lamb"),
        KVStoreError,
        "which LAMB does not allow",
    ),
    "compression in a ring": (
        small_net,
        dict(kvstore="ring", compression_params=TWO_BITS),
        KVStoreError,
        "'ring' cannot compress.*choose 'device'",
    ),
    "compression on the CPU": (
        small_net,
        dict(kvstore="local", compression_params=TWO_BITS),
        KVStoreError,
        "'local' cannot compress.*choose 'device'",
    ),
    "compression and shards": (
        small_net,
        dict(kvstore="sharded-optimizer", compression_params=TWO_BITS),
        KVStoreError,
        "cannot compress",
    ),
    "another compression": (
        small_net,
        dict(compression_params={"type": "1bit"}),
        KVStoreError,
        "give {'type': '2bit'",
    ),
    "a threshold of 0": (
        small_net,
        dict(compression_params={"type": "2bit", "threshold": 0}),
        KVStoreError,
        "above 0",
    ),
    "a threshold in words": (
        small_net,
        dict(compression_params={"type": "2bit", "threshold": "x"}),
        KVStoreError,
        "above 0",
    ),
    "a misspelt threshold": (
        small_net,
        dict(compression_params={"type": "2bit", "treshold": 1}),
        KVStoreError,
        "'threshold'",
    ),
    "bytes in the place of compression": (
        small_net,
        dict(compression_params=100),
        KVStoreError,
        "compression_params 100",
    ),
    "compression and loss scale": (
        small_net,
        dict(compression_params=TWO_BITS, loss_scale=LossScale()),
        KVStoreError,
        "an overflow.*leave one out",
    ),
    "sparse": (
        lambda ctxs: embedding(),
        {},
        KVStoreError,
        "sparse gradients, such as embedding.*use gluon.Trainer",
    ),
    "clipped float16": (
        lambda ctxs: half(),
        dict(clip_norm=1.0),
        KVStoreError,
        "clip_norm 1 is for float32",
    ),
    "a bucket of less than nothing": (
        small_net,
        dict(bucket_bytes=-1),
        ConfigError,
        "bucket_bytes -1: give",
    ),
    "a bucket in words": (
        small_net,
        dict(bucket_bytes="4M"),
        ConfigError,
        "bucket_bytes '4M': give",
    ),
    "clipped to nothing": (
        small_net,
        dict(clip_norm=0.0),
        ConfigError,
        "clip_norm 0.0: give a number above 0",
    ),
    "clipped to less": (small_net, dict(clip_norm=-1), ConfigError, "clip_norm -1: give"),
    "clipped to NaN": (small_net, dict(clip_norm=float("nan")), ConfigError, "clip_norm nan: give"),
    "clipped to infinity": (
        small_net,
        dict(clip_norm=float("inf")),
        ConfigError,
        "clip_norm inf: give",
    ),
    "a number for a loss scale": (
        small_net,
        dict(loss_scale=128.0),
        ConfigError,
        "loss_scale 128.0: give .*LossScale",
    ),
    "an optimizer's class": (
        small_net,
        dict(optimizer=mx.optimizer.SGD),
        ConfigError,
        "give its name, .* or an instance",
    ),
    "unknown optimizer": (
        small_net,
        dict(optimizer="sdg"),
        ConfigError,
        "unknown optimizer 'sdg': choose .*sgd",
    ),
    "another framework's name of the rate": (
        small_net,
        dict(optimizer_params={"lr": 0.1}),
        ConfigError,
        "unexpected .*'lr'; the learning rate is 'learning_rate'$",
    ),
    "a rate instead of a dictionary": (
        small_net,
        dict(optimizer_params=0.1),
        ConfigError,
        "optimizer_params 0.1: give a dictionary",
    ),
    "other devices": (lambda ctxs: elsewhere(), {}, AssertionError, "same set of contexts"),
    "uninitialised": (lambda ctxs: uninitialised(), {}, RuntimeError, "has not been initialized"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_left_as_it_was(case):
    """In one line, if the refusal is ours; and gluon.Trainer, or other arguments, can have the
    parameters.
    """
    make, arguments, error, message = REFUSED[case]
    net = make(contexts(2))
    params = list(net.collect_params().values())
    arrays = [(param._data, param._grad) for param in params]
    former = object()
    for param in params:
        param._trainer = former if param._stype == "default" else None
    trainers = [param._trainer for param in params]
    settings = {"optimizer": "sgd", **arguments}
    with pytest.raises(error, match=message) as raised:
        BucketedTrainer(params, settings.pop("optimizer"), **settings)
    assert not isinstance(raised.value, GluonlabError) or "\n" not in str(raised.value)
    assert [param._trainer for param in params] == trainers
    assert all(
        a is b
        for own, param in zip(arrays, params)
        for a, b in zip(own, (param._data, param._grad))
    )


def test_parameters_that_are_none_or_come_twice_are_refused():
    """gluon.Trainer stumbles over both; the second it takes on one device, and updates them
    twice.
    """
    with pytest.raises(ConfigError, match="no parameters to train: give"):
        BucketedTrainer([], "sgd")
    params = list(small_net(contexts(1)).collect_params().values())
    with pytest.raises(ConfigError, match=f"{params[1].name} comes several times: give each once"):
        BucketedTrainer([*params, params[1]], "sgd")
    BucketedTrainer(list(dict.fromkeys([*params, params[1]])), "sgd")


@pytest.mark.parametrize(
    "size", [0, -4, None, "8", float("nan"), float("inf"), nd.ones((1,))], ids=str
)
@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_a_batch_size_that_is_none_changes_nothing(store, size):
    net = small_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=store)
    with autograd.record():
        losses = [net(nd.ones((2, 5), ctx=ctx)).sum() for ctx in contexts(2)]
    autograd.backward(losses)
    before = values(net)
    for use in (trainer.step, trainer.apply):
        with pytest.raises(
            ConfigError, match="give a number above 0: the images of this step on all devices"
        ) as raised:
            use(size)
        assert "\n" not in str(raised.value)
    trainer.step(np.int64(4))  # the gradients are still fresh
    assert not np.array_equal(values(net)[0], before[0])


@pytest.mark.cpu_only("kernels for sparse arrays are not simulated")
def test_the_remedy_for_sparse_parameters_works():
    net = embedding()
    with pytest.raises(KVStoreError, match=r"use gluon\.Trainer for them"):
        BucketedTrainer(net.collect_params(), "sgd")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore="device")
    before = values(net)[0]
    with autograd.record():
        losses = [net(nd.array([2], ctx=ctx)).sum() for ctx in contexts(2)]
    autograd.backward(losses)
    trainer.step(2)
    assert np.allclose(values(net)[0][2], before[2] - 1)


def test_an_optimizer_that_was_refused_keeps_its_parameters():
    net, other = small_net(contexts(2)), small_net(contexts(2))
    optimizer = mx.optimizer.SGD(learning_rate=0.1)
    gluon.Trainer(other.collect_params(), optimizer)
    mine = optimizer.param_dict
    with pytest.raises(KVStoreError):
        BucketedTrainer(net.collect_params(), optimizer, kvstore="rign")
    assert optimizer.param_dict is mine


def test_compression_is_obeyed():
    """Gradients below the threshold are kept back: nothing moves at first, and all of it by
    thresholds.
    """
    net = small_net(contexts(2))
    before = values(net)
    trainer = BucketedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 1.0},
        "device",
        {"type": "2bit", "threshold": 100.0},
    )
    train_on_devices(net, trainer, contexts(2), BATCHES)
    assert all(np.array_equal(a, b) for a, b in zip(values(net), before))
    net = small_net(contexts(2))
    trainer = BucketedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 1.0},
        "device",
        {"type": "2bit", "threshold": 0.25},
    )
    train_on_devices(net, trainer, contexts(2), BATCHES[:1])
    moved = np.concatenate([(b - a).ravel() for a, b in zip(values(net), before)]) * 6 / 0.25
    assert np.allclose(moved, np.round(moved), atol=1e-5) and np.any(np.round(moved))


def test_one_device_has_nobody_to_compress_for():
    with pytest.warns(GluonlabWarning, match="one device has nobody to send gradients to"):
        BucketedTrainer(small_net(contexts(1)).collect_params(), "sgd", compression_params=TWO_BITS)


@pytest.mark.parametrize("kvstore", [None, "device", "ring", "sharded-optimizer"])
def test_one_device_needs_no_store_and_may_have_one(kvstore):
    net, other = small_net(contexts(1)), small_net(contexts(1))
    train_on_devices(
        net, BucketedTrainer(net.collect_params(), "adam", kvstore=kvstore), contexts(1), BATCHES
    )
    train_on_devices(
        other, gluon.Trainer(other.collect_params(), "adam", kvstore=None), contexts(1), BATCHES
    )
    assert all(np.array_equal(a, b) for a, b in zip(values(net), values(other)))


@pytest.mark.parametrize(
    "act", [lambda trainer: trainer.allreduce_grads(), lambda trainer: trainer.update(1)]
)
def test_a_store_that_updates_has_no_halves(act):
    trainer = BucketedTrainer(
        small_net(contexts(2)).collect_params(),
        "sgd",
        kvstore="sharded-optimizer",
        update_on_kvstore=True,
    )
    with pytest.raises(GluonlabError, match=r"sums and updates at once: call step\(\)"):
        act(trainer)


@pytest.mark.parametrize("name", [None, 3, ["device"], mx.kvstore.KVStoreBase])
def test_what_is_no_name_is_refused_as_one(name):
    with pytest.raises(KVStoreError, match="unknown kvstore"):
        make_kvstore(name)
