"""Clipping by the global norm on several devices equals clipping on one device with the whole batch."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.covering import pairwise
from support.devices import contexts, device
from support.kvstore_runs import BATCHES, OPTIMIZERS, make_small_net
from support.reference import (
    arrays_equal,
    cpu_contexts,
    identity,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    shard_batch,
    train_on_devices,
)

from gluonlab.bucketed_trainer.gradient_postprocessing import GlobalNormClipping
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def clip_on_one_device(net, batches, clip_norm, optimizer, params):
    """Return the parameters after gluon.utils.clip_global_norm in each step, and the norms before it."""
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(params), kvstore=None, update_on_kvstore=False)
    norms = []
    for images, labels in batches:
        with autograd.record():
            total = LOSS(net(nd.array(images)), nd.array(labels)).sum()
        total.backward()
        grads = [param.grad() for param in net.collect_params().values()]
        norms.append(gluon.utils.clip_global_norm(grads, clip_norm * len(images)) / len(images))
        trainer.update(len(images))
    return parameter_arrays(net), norms


def train_with_clipping(store, optimizer, k, clip_norm):
    net = make_small_net(contexts(k))
    settings = {"bucket_bytes": 100, "clip_norm": clip_norm}
    params = dict(OPTIMIZERS[optimizer])
    trainer = BucketedTrainer(net.collect_params(), optimizer, params, make_kvstore(store), **settings)
    train_on_devices(net, trainer, contexts(k), BATCHES)
    return net


@functools.lru_cache(maxsize=None)
def clip_small_net_on_one_device(clip_norm, optimizer):
    return clip_on_one_device(make_small_net(cpu_contexts(1)), BATCHES, clip_norm, optimizer, OPTIMIZERS[optimizer])


@pairwise(
    k=[1, 2, 3],
    clip_norm=[0.01, 0.8],
    store=["device", "local", "ring", "sharded-optimizer"],
    optimizer=list(OPTIMIZERS),
)
def test_k_devices_clip_as_one(k, clip_norm, store, optimizer):
    expected, norms = clip_small_net_on_one_device(clip_norm, optimizer)
    assert max(norms) > clip_norm
    assert clip_norm < 0.1 or min(norms) < clip_norm  # the larger one lets some of the steps be
    net = train_with_clipping(store, optimizer, k, clip_norm)
    for ctx in contexts(k):
        assert relative_distance(parameter_arrays(net, ctx), expected) <= 1e-5
        assert arrays_equal(parameter_arrays(net, ctx), parameter_arrays(net, device(0)))


def test_a_norm_below_the_limit_changes_no_bit():
    with_limit, without = (train_with_clipping("device", "sgd", 2, limit) for limit in (1e6, None))
    assert arrays_equal(parameter_arrays(with_limit), parameter_arrays(without))


@pytest.mark.parametrize(
    ("values", "sharded", "norm"),
    [
        ([[[[0, 3], [0, 0]], [-4]]] * 2, False, 5),  # every device has all gradients
        ([[[3]], [], [[0, -4]], [[12], [0, 0]]], True, 13),  # every device has a shard, or none
        ([[[0] * 5]], False, 0),
    ],
)
def test_gradients_are_scaled_by_the_norm_of_all_together(values, sharded, norm):
    ctxs, half = contexts(len(values)), norm / 2 or 1.0
    grads = [[nd.array(value, ctx=ctx) for value in shard] for ctx, shard in zip(ctxs, values)]
    clip = GlobalNormClipping(grads, ctxs, sharded=sharded)
    for limit in (half, half, 100.0):  # only the first one changes gradients
        clip(limit)
        for arrays, shard in zip(grads, values):
            assert arrays_equal([array.asnumpy() for array in arrays], [np.array(value) / 2 for value in shard])


def test_the_norm_of_millions_of_elements_keeps_its_digits():
    # Added one by one in float32, the third digit would be wrong. The fifth depends on the BLAS.
    array = np.random.RandomState(0).normal(0, 0.01, 3_000_000).astype(np.float32)
    grad = nd.array(array, ctx=device())
    GlobalNormClipping([[grad]], contexts(1))(1.0)
    expected = array / np.linalg.norm(array.astype(np.float64))
    assert relative_distance([grad.asnumpy()], [expected]) <= 1e-4


def make_convolutions(ctxs):
    mx.random.seed(3)
    net = nn.HybridSequential()  # oneDNN rearranges 8 and 16 channels
    net.add(nn.Conv2D(16, 3, in_channels=8), nn.Conv2D(16, 3, in_channels=16), nn.Dense(4))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, 8, 8, 8), ctx=ctxs[0]))
    return net


def test_convolutions_are_clipped_between_evaluations():
    ctxs, batches = contexts(2), random_batches([6] * 4, shape=(8, 8, 8), classes=4)
    params = {"learning_rate": 0.5, "momentum": 0.9}
    expected_net, net = make_convolutions(cpu_contexts(1)), make_convolutions(ctxs)
    set_parameter_arrays(net, parameter_arrays(expected_net))
    expected, norms = clip_on_one_device(expected_net, batches, 0.2, "sgd", params)
    assert min(norms) > 0.2
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(params), make_kvstore("device"), clip_norm=0.2)
    step = DataParallelStep(net, LOSS, trainer, ctxs, identity)
    for images, labels in batches:
        batch = shard_batch((images, labels), ctxs)
        list(step.score(batch))
        net(batch.xs[0]).wait_to_read()  # a prediction, which leaves oneDNN's order behind
        step(batch)
    for ctx in ctxs:
        assert relative_distance(parameter_arrays(net, ctx), expected) <= 1e-5


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_no_step_waits_for_a_norm(store, monkeypatch):
    net = make_small_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {}, make_kvstore(store), clip_norm=0.1)
    train_on_devices(net, trainer, contexts(2), BATCHES[:3])  # the first two collect unused parameters

    def fail(*array):
        raise AssertionError("the step waits for the devices")

    with monkeypatch.context() as patched:
        for owner, name in (
            (nd.NDArray, "asnumpy"),
            (nd.NDArray, "asscalar"),
            (nd.NDArray, "wait_to_read"),
            (nd, "waitall"),
        ):
            patched.setattr(owner, name, fail)
        train_on_devices(net, trainer, contexts(2), BATCHES[3:])
    assert np.isfinite(parameter_arrays(net)[0]).all()
