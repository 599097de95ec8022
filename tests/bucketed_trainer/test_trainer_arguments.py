"""The arguments that BucketedTrainer accepts and refuses, and stores over several processes."""

import inspect
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.kvstore import KVStoreBase
from support.devices import contexts, device
from support.kvstore_runs import BATCHES, make_small_net
from support.parameter_server import start_workers
from support.reference import (
    arrays_equal,
    cpu_contexts,
    parameter_arrays,
    relative_distance,
    set_parameter_arrays,
    train_on_devices,
)

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import ConfigError, GluonlabError, GluonlabWarning, KVStoreError
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.launch.backends import BACKENDS


def compression_arguments(**settings):
    return {"compression_params": {"type": "2bit", **settings}}


TWO_BITS = compression_arguments(threshold=0.25)


def test_it_has_the_arguments_of_gluons_trainer_in_the_same_order():
    theirs = list(inspect.signature(gluon.Trainer).parameters.values())
    ours = list(inspect.signature(BucketedTrainer).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]
    assert {p.kind for p in ours[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.fixture(scope="module")
def parameters_of_one_device():
    net = make_small_net(cpu_contexts(1))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=None)
    train_on_devices(net, trainer, cpu_contexts(1), BATCHES)
    return parameter_arrays(net)


@pytest.mark.parametrize("name", [None, *sorted({*KVSTORES, "Ring", "DEVICE", "an instance"} - {"nccl"})])
def test_every_store_by_name_trains_all_replicas_as_one_device(name, parameters_of_one_device):
    kvstore = {"kvstore": mx.kv.create("device") if name == "an instance" else name} if name else {}
    net = make_small_net(contexts(3))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, **kvstore)
    train_on_devices(net, trainer, contexts(3), BATCHES)
    assert arrays_equal(parameter_arrays(net, device(0)), parameter_arrays(net, device(2)))
    assert relative_distance(parameter_arrays(net), parameters_of_one_device) <= 1e-5


def sparse_net(ctxs):
    net = nn.Embedding(10, 3, sparse_grad=True)
    net.initialize(ctx=ctxs)
    return net


def float16_net(ctxs):
    net = make_small_net(ctxs)
    net[1].cast("float16")
    return net


def net_on_other_devices(ctxs):
    net = make_small_net(ctxs)
    net[1].collect_params().reset_ctx(contexts(3))
    return net


def uninitialized_net(ctxs):
    net = make_small_net(ctxs)
    net.add(nn.Dense(2, in_units=4))
    return net


REFUSED = [
    (KVStoreError, dict(kvstore="rign"), "unknown kvstore 'rign': .*did you mean 'ring'"),
    (
        KVStoreError,
        dict(kvstore="horovod"),
        ("kvstore 'horovod' is for several processes: start them with gluonlab launch -n N --backend horovod"),
    ),
    (
        KVStoreError,
        dict(kvstore=None),
        "kvstore=None does not sum the gradients of the 2 devices, so the replicas would differ",
    ),
    (KVStoreError, dict(kvstore=3), "kvstore=3 is not a valid kvstore"),
    (
        KVStoreError,
        dict(kvstore=mx.kvstore.KVStoreBase),
        (
            "kvstore=<class 'mxnet\\.kvstore\\.base\\.KVStoreBase'> is not a valid kvstore: use a "
            "name, such as 'device', or an instance of KVStoreBase"
        ),
    ),
    (
        KVStoreError,
        dict(update_on_kvstore=True),
        ("update_on_kvstore=True: kvstore 'device' only sums gradients, and each device updates its own replica"),
    ),
    (KVStoreError, dict(kvstore="sharded-optimizer", update_on_kvstore=False), "update_on_kvstore=False.*'sharded'"),
    (
        KVStoreError,
        dict(kvstore="sharded-optimizer", optimizer="lamb"),
        ("kvstore 'sharded-optimizer' may split a parameter at any element, but LAMB needs whole parameters"),
    ),
    (KVStoreError, dict(kvstore="ring", **TWO_BITS), "'ring' cannot compress.*use kvstore 'device'"),
    (KVStoreError, dict(kvstore="local", **TWO_BITS), "'local' cannot compress.*use kvstore 'device'"),
    (KVStoreError, dict(kvstore="sharded-optimizer", **TWO_BITS), "cannot compress"),
    (KVStoreError, compression_arguments(type="1bit"), "use \\{'type': '2bit', 'threshold'"),
    (KVStoreError, compression_arguments(threshold=0), "above 0"),
    (KVStoreError, compression_arguments(threshold="x"), "above 0"),
    (KVStoreError, compression_arguments(treshold=1), "'threshold'"),
    (KVStoreError, dict(compression_params=100), "compression_params=100"),
    (KVStoreError, dict(loss_scale=LossScale(), **TWO_BITS), "omit compression_params or loss_scale"),
    (KVStoreError, dict(make=sparse_net), "sparse gradients, such as embedding.*use gluon.Trainer"),
    (
        KVStoreError,
        dict(make=float16_net, clip_norm=1.0),
        "clip_norm=1 requires float32 parameters, but net_dense1_weight has type float16",
    ),
    (
        KVStoreError,
        dict(make=float16_net, loss_scale=LossScale()),
        "loss_scale requires float32 parameters, but net_dense1_weight has type float16",
    ),
    (ConfigError, dict(bucket_bytes=-1), "bucket_bytes=-1"),
    (ConfigError, dict(bucket_bytes="4M"), "bucket_bytes='4M'"),
    (ConfigError, dict(clip_norm=0.0), "clip_norm=0\\.0: use a number above 0, or None"),
    (ConfigError, dict(clip_norm=-1), "clip_norm=-1"),
    (ConfigError, dict(clip_norm=float("nan")), "clip_norm=nan"),
    (ConfigError, dict(clip_norm=float("inf")), "clip_norm=inf"),
    (ConfigError, dict(loss_scale=128.0), "loss_scale=128\\.0"),
    (
        ConfigError,
        dict(optimizer=mx.optimizer.SGD),
        "use a name, such as 'sgd', or an instance of mx\\.optimizer\\.Optimizer",
    ),
    (ConfigError, dict(optimizer="sdg"), "unknown optimizer 'sdg': choose .*sgd"),
    (ConfigError, dict(optimizer_params={"lr": 0.1}), "use 'learning_rate' for the learning rate"),
    (ConfigError, dict(optimizer_params=0.1), "optimizer_params=0\\.1: use a dictionary, such as \\{'learning_rate'"),
    (AssertionError, dict(make=net_on_other_devices), "same set of contexts"),
    (RuntimeError, dict(make=uninitialized_net), "has not been initialized"),
]


@pytest.mark.parametrize(("error", "arguments", "message"), REFUSED)
def test_refused_arguments_are_left_unchanged(error, arguments, message):
    settings = {"make": make_small_net, "optimizer": "sgd", **arguments}
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
    with pytest.raises(ConfigError, match="params contains no parameters to train"):
        BucketedTrainer([], "sgd")
    params = list(make_small_net(contexts(1)).collect_params().values())
    with pytest.raises(ConfigError, match=f"{params[1].name} several times: pass each parameter once"):
        BucketedTrainer([*params, params[1]], "sgd")
    BucketedTrainer(list(dict.fromkeys([*params, params[1]])), "sgd")


@pytest.mark.parametrize("size", [0, -4, None, "8", float("nan"), float("inf"), nd.ones((1,))], ids=str)
@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_an_invalid_batch_size_changes_nothing(store, size):
    net = make_small_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=store)
    with autograd.record():
        losses = [net(nd.ones((2, 16), ctx=ctx)).sum() for ctx in contexts(2)]
    autograd.backward(losses)
    before = parameter_arrays(net)
    message = "pass the number of images in this step on all devices, which must be above 0"
    for call in (trainer.step, trainer.apply):
        with pytest.raises(ConfigError, match=message) as raised:
            call(size)
        assert "\n" not in str(raised.value)
    trainer.step(np.int64(4))  # the gradients are still fresh
    assert not np.array_equal(parameter_arrays(net)[0], before[0])


def test_an_optimizer_that_was_refused_keeps_its_parameters():
    net, other = make_small_net(contexts(2)), make_small_net(contexts(2))
    optimizer = mx.optimizer.SGD(learning_rate=0.1)
    gluon.Trainer(other.collect_params(), optimizer)
    mine = optimizer.param_dict
    with pytest.raises(KVStoreError):
        BucketedTrainer(net.collect_params(), optimizer, kvstore="rign")
    assert optimizer.param_dict is mine


def test_compressed_gradients_move_parameters_by_multiples_of_the_threshold():
    before = parameter_arrays(make_small_net(contexts(2)))

    def compute_moves(threshold, batches):
        net = make_small_net(contexts(2))
        params = {"learning_rate": 1.0}
        trainer = BucketedTrainer(net.collect_params(), "sgd", params, **compression_arguments(threshold=threshold))
        train_on_devices(net, trainer, contexts(2), batches)
        return np.concatenate([(b - a).ravel() for a, b in zip(parameter_arrays(net), before)])

    assert not compute_moves(100.0, BATCHES).any()
    thresholds = compute_moves(0.25, BATCHES[:1]) * len(BATCHES[0][0]) / 0.25
    assert np.allclose(thresholds, np.round(thresholds), atol=1e-5) and np.round(thresholds).any()


def test_compression_on_one_device_warns():
    with pytest.warns(GluonlabWarning, match="a single device does not send gradients"):
        BucketedTrainer(make_small_net(contexts(1)).collect_params(), "sgd", **TWO_BITS)


@pytest.mark.parametrize("call", [lambda trainer: trainer.allreduce_grads(), lambda trainer: trainer.update(1)])
def test_a_store_that_updates_refuses_half_steps(call):
    params = make_small_net(contexts(2)).collect_params()
    trainer = BucketedTrainer(params, "sgd", kvstore="sharded-optimizer", update_on_kvstore=True)
    with pytest.raises(
        GluonlabError, match=r"kvstore 'sharded-optimizer' sums gradients and updates parameters in one operation"
    ):
        call(trainer)


@pytest.mark.parametrize("before", [BucketedTrainer, gluon.Trainer])
def test_an_instance_of_mxnets_serves_one_trainer_after_another(before):
    store, results = mx.kv.create("device"), []  # which does not accept a key twice
    first = make_small_net(contexts(2))
    set_parameter_arrays(first, [array * 2 for array in parameter_arrays(first)])
    trainer = before(first.collect_params(), "sgd", {}, kvstore=store, update_on_kvstore=False)
    train_on_devices(first, trainer, contexts(2), BATCHES)
    for kvstore in (store, "device"):
        net = make_small_net(contexts(2))
        trainer = BucketedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=kvstore)
        train_on_devices(net, trainer, contexts(2), BATCHES)
        results.append(parameter_arrays(net))
    assert arrays_equal(*results)


class TwoProcesses(KVStoreBase):
    """A store such as Horovod's. The other process has equal gradients, and parameters ``begin``."""

    type, rank, num_workers = "two processes", 1, 2

    def __init__(self, begin):
        self.begin = begin

    def broadcast(self, key, value, out, priority=0):
        for array in out:
            array[:] = self.begin

    def pushpull(self, key, value, out=None, priority=0):
        total = 2 * sum(array.asnumpy() for array in value)
        for array in value:
            array[:] = total

    @staticmethod
    def is_capable(capability):
        return False


@pytest.mark.parametrize("devices", [1, 2])
def test_a_store_of_another_kind_sums_and_broadcasts_over_its_processes(devices):
    net = nn.Dense(3, in_units=4)
    net.bias.grad_req = "null"
    net.initialize(mx.init.One(), ctx=contexts(devices))
    net.bias.set_data(nd.ones(3))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=TwoProcesses(0.25))
    assert all((array == 0.25).all() for array in parameter_arrays(net))
    with autograd.record():
        losses = [net(nd.ones((2, 4), ctx=ctx)).sum() for ctx in contexts(devices)]
    autograd.backward(losses)
    trainer.step(4 * devices)
    assert (net.weight.data(device()).asnumpy() == 0.25 - 0.5 * (2 * 2 * devices) / (4 * devices)).all()


def test_a_process_without_a_shard_counts_as_zero_if_stale_gradients_are_allowed():
    net = nn.Dense(3, in_units=4, use_bias=False)
    net.initialize(mx.init.One(), ctx=device())

    class OthersGradients(TwoProcesses):
        def pushpull(self, key, value, out=None, priority=0):
            assert not value[0].asnumpy().any()
            value[0][:] = 3

    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=OthersGradients(1.0))
    for _ in range(2):
        trainer.step(2, ignore_stale_grad=True)
    assert (net.weight.data(device()).asnumpy() == 1 - 2 * 0.5 * 3 / 2).all()


BACKEND_OF = {"dist_sync": "dist_sync", "dist": "dist_sync", "dist_device_sync": "dist_device_sync"}
BACKEND_OF.update(dist_sync_device="dist_device_sync", Dist_Async="dist_async", p3="dist_sync", byteps="dist_sync")


@pytest.mark.parametrize(("name", "backend"), [*BACKEND_OF.items(), ("horovod", "horovod")])
def test_the_name_of_a_store_of_processes_is_refused_with_the_command_that_starts_them(monkeypatch, name, backend):
    monkeypatch.setattr("gluonlab.kvstores.has_parameter_server", lambda: True)
    # MXNet itself silently makes a local store of "horovod", "byteps" and "p3".
    assert backend in BACKENDS
    with pytest.raises(KVStoreError) as raised:
        make_kvstore(name)
    start = f"kvstore {name!r} is for several processes: start them with gluonlab launch -n N --backend {backend}"
    in_a_loop = f"; in your own loop, use mx.kv.create({backend!r})"
    assert str(raised.value) == f"{start}{in_a_loop if name != 'horovod' else ''}"


# --- real workers of MXNet's parameter server

WORKER = """
import json, sys
import gluonlab, mxnet as mx, numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts
from gluonlab.errors import KVStoreError
from gluonlab.bucketed_trainer.trainer import BucketedTrainer

store, devices = mx.kv.create("dist_sync"), int(sys.argv[1])
ctxs = contexts(devices)

def train(make_trainer):
    mx.random.seed(store.rank)
    net = nn.HybridSequential()
    net.add(nn.Dense(6, in_units=5, activation="tanh"), nn.Dense(3, in_units=6))
    net[1].bias.grad_req = "null"
    net.initialize(mx.init.Normal(0.5), ctx=ctxs)
    net[1].bias.set_data(nd.ones(3) * store.rank)
    trainer = make_trainer(net.collect_params())
    if type(trainer) is gluon.Trainer:
        trainer._init_kvstore()
        trainer._init_params()
    nd.waitall()  # the servers may answer gluon.Trainer's first sum before
    begin = [param.data().asnumpy().tolist() for param in net.collect_params().values()]
    random = np.random.RandomState(0)
    for _ in range(5):
        images = random.uniform(-1, 1, (store.num_workers, devices, 2, 5)).astype("float32")
        with autograd.record():
            xs = [nd.array(x, ctx=ctx) for x, ctx in zip(images[store.rank], ctxs)]
            losses = [(net(x) ** 2).sum() for x in xs]
        autograd.backward(losses)
        trainer.step(store.num_workers * devices * 2)
    params = net.collect_params().values()
    return begin, [[param.data(ctx).asnumpy().tolist() for param in params] for ctx in ctxs]

settings = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
makers = {
    "gluon": lambda params: gluon.Trainer(params, "sgd", settings, kvstore=store, update_on_kvstore=False),
    "ours": lambda params: BucketedTrainer(params, "sgd", settings, kvstore=store),
    "single": lambda params: BucketedTrainer(params, "sgd", settings, kvstore=store, bucket_bytes=0),
}
found = {name: train(maker) for name, maker in makers.items()}
try:
    twobit = {"type": "2bit"}
    train(lambda params: BucketedTrainer(params, "sgd", kvstore=store, compression_params=twobit))
except KVStoreError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.parametrize(("count", "devices"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_dist_sync_trains_as_gluons_trainer_does_with_it(count, devices):
    with start_workers(count, WORKER, str(devices)) as workers:
        outputs = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    begin, [expected, *_] = outputs[0]["gluon"]
    expected = [np.array(array) for array in expected]
    for output in outputs:
        assert output["refused"] == (
            "compression_params={'type': '2bit'}: kvstore 'dist_sync' cannot compress gradients: choose 'device'"
        )
        for name in ("gluon", "ours", "single"):
            assert output[name][0] == begin  # also the parameters that are not trained
            for arrays in output[name][1]:
                assert relative_distance([np.array(array) for array in arrays], expected) <= 1e-6
    assert relative_distance(expected, train_in_float64(begin, count, devices)) <= 1e-6


def train_in_float64(begin, count, devices, steps=5, lr=0.1, momentum=0.9, wd=0.01):
    """Train with loss |W2 tanh(W1 x + b1) + b2|^2, momentum, and weight decay; b2 is not trained."""
    w1, b1, w2, b2 = (np.array(array) for array in begin)
    random, velocity = np.random.RandomState(0), [0.0, 0.0, 0.0]
    for _ in range(steps):
        x = random.uniform(-1, 1, (count, devices, 2, 5)).astype("float32").astype("float64").reshape(-1, 5)
        hidden = np.tanh(x @ w1.T + b1)
        back = 2 * (hidden @ w2.T + b2)
        inner = (back @ w2) * (1 - hidden**2)
        for i, (weight, grad) in enumerate(zip((w1, b1, w2), (inner.T @ x, inner.sum(0), back.T @ hidden))):
            velocity[i] = momentum * velocity[i] + grad / len(x) + wd * weight
            weight -= lr * velocity[i]
    return [w1, b1, w2, b2]
