"""BucketedTrainer with instances of MXNet's own stores, of one process or of several."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.kvstore import KVStoreBase
from support.devices import contexts, device
from support.parameter_server import start_workers
from support.reference import arrays_equal, parameter_arrays, random_batches, relative_distance, train_on_devices

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.launch.backends import BACKENDS

BATCHES = random_batches([6, 7, 6], shape=(5,), classes=4)


def make_net(ctxs, seed=3):
    mx.random.seed(seed)
    net = nn.HybridSequential()
    net.add(nn.Dense(7, in_units=5, activation="tanh"), nn.Dense(4, in_units=7))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    return net


@pytest.mark.parametrize("before", [BucketedTrainer, gluon.Trainer])
def test_an_instance_of_mxnets_serves_one_trainer_after_another(before):
    store, found = mx.kv.create("device"), []  # which does not accept a key twice
    first = make_net(contexts(2))
    trainer = before(first.collect_params(), "sgd", {}, kvstore=store, update_on_kvstore=False)
    train_on_devices(first, trainer, contexts(2), BATCHES)
    for kvstore in (store, "device"):
        net = make_net(contexts(2), seed=5)
        trainer = BucketedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=kvstore)
        train_on_devices(net, trainer, contexts(2), BATCHES)
        found.append(parameter_arrays(net))
    assert arrays_equal(*found)


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
def test_the_name_of_a_store_of_processes_is_refused_with_the_command_that_starts_them(name, backend):
    # MXNet itself silently makes a local store of "horovod", "byteps" and "p3".
    assert backend in BACKENDS
    with pytest.raises(KVStoreError) as raised:
        make_kvstore(name)
    start = f"kvstore {name!r} sums over processes: start them with gluonlab launch -n N --backend {backend}"
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
        assert output["refused"].startswith("compression_params {'type': '2bit'}: kvstore 'dist_sync' cannot compress")
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
