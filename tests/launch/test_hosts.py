"""What a process does with its part of a batch: devices that have no shard add nothing."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, named, on_gpus
from support.reference import as_is, cpus, random_batches

from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch import whole
from gluonlab.data.loading.shards import shard
from gluonlab.errors import DivergedError
from gluonlab.launch.hosts import Replicas, train_on_hosts
from gluonlab.models import MODELS, ModelKind

SHAPE = (1, 3, 3)


def made(ctxs):
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=9, activation="tanh"), nn.Dense(4, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    return net


def by_one_device(images, labels):
    """By the same kernels on a CPU; for GPUs in float64, as oneDNN's log_softmax of float32 is
    wrong by up to 4e-6.
    """
    net, dtype = made(cpus(1)), "float64" if on_gpus() else "float32"
    net.cast(dtype)
    with autograd.record():
        total = gluon.loss.SoftmaxCrossEntropyLoss()(
            net(nd.array(images, dtype=dtype)), nd.array(labels)
        ).sum()
    total.backward()
    return [param.grad().asnumpy() for param in net.collect_params().values()]


@settings(max_examples=8)
@given(k=st.integers(2, 4), sizes=st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_the_gradients_of_all_devices_add_up_to_those_of_the_batch(k, sizes):
    """Also where the batch is smaller than the number of devices, or empty, and after more steps
    than are queued.
    """
    replicas = Replicas(made(contexts(k)), contexts(k), as_is)
    learned = list(replicas.net.collect_params().values())
    for images, labels in random_batches([k, *sizes], shape=SHAPE, classes=4):
        shards = (shard(nd.array(each), contexts(k)) for each in (images, labels))
        replicas.gradients(whole(*shards))
        found = [sum(grad.asnumpy() for grad in param.list_grad()) for param in learned]
        expected = by_one_device(images, labels) if len(images) else [0 * grad for grad in found]
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


class Poisoned:
    """A group of one process, whose optimizer leaves a NaN where ReLU hides it."""

    rank, size = 0, 1

    def place(self, config):
        return config

    def trainer(self, net, optimizer, params):
        self.net = net
        return gluon.Trainer(net.collect_params(), optimizer, params)

    def step(self, trainer, images):
        trainer.step(images)
        self.net[1].bias.data()[0] = float("nan")


def test_parameters_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    def relu(classes, lanes):
        net = nn.HybridSequential()
        net.add(nn.Flatten(), nn.Dense(4, activation="relu"), nn.Dense(classes))
        return net

    monkeypatch.setitem(MODELS, "hidden", ModelKind(relu, "for this test"))
    config = TrainConfig(
        model="hidden", devices=named(1), epochs=1, global_batch_size=600, out=str(tmp_path / "run")
    )
    with pytest.raises(
        DivergedError, match=r"_bias of the network is no longer finite after epoch 1"
    ):
        train_on_hosts(config, Poisoned())
    assert not (tmp_path / "run" / "parameters.params").exists()
