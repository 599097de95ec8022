"""Clipping by the global norm on several devices is that of one device which sees the whole
batch.
"""

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
    train_on_devices,
)

from gluonlab.bucketed_trainer.gradient_postprocessing import GlobalNormClipping
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import make_local_batch, shard
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def clipped_on_one_device(net, batches, clip_norm, optimizer, params):
    """gluon.utils.clip_global_norm between allreduce and update; and the norms before it."""
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


def clipped(store, optimizer, k, clip_norm, bucket_bytes=100):
    net = make_small_net(contexts(k))
    trainer = BucketedTrainer(
        net.collect_params(),
        optimizer,
        dict(OPTIMIZERS[optimizer]),
        make_kvstore(store),
        bucket_bytes=bucket_bytes,
        clip_norm=clip_norm,
    )
    train_on_devices(net, trainer, contexts(k), BATCHES)
    return net


@functools.lru_cache(maxsize=None)
def small_net_clipped_on_one_device(clip_norm, optimizer):
    return clipped_on_one_device(make_small_net(cpu_contexts(1)), BATCHES, clip_norm, optimizer, OPTIMIZERS[optimizer])


@pairwise(
    k=[1, 2, 3],
    clip_norm=[0.01, 0.8],
    store=["device", "local", "ring", "sharded-optimizer"],
    optimizer=list(OPTIMIZERS),
)
def test_k_devices_clip_as_one(k, clip_norm, store, optimizer):
    expected, norms = small_net_clipped_on_one_device(clip_norm, optimizer)
    assert max(norms) > clip_norm
    assert clip_norm < 0.1 or min(norms) < clip_norm  # the larger one lets some of the steps be
    net = clipped(store, optimizer, k, clip_norm)
    for ctx in contexts(k):
        assert relative_distance(parameter_arrays(net, ctx), expected) <= 1e-5
        assert arrays_equal(parameter_arrays(net, ctx), parameter_arrays(net, device(0)))


def test_a_norm_below_the_limit_changes_no_bit():
    with_limit, without = clipped("device", "sgd", 2, 1e6), clipped("device", "sgd", 2, None)
    assert arrays_equal(parameter_arrays(with_limit), parameter_arrays(without))


def test_the_norm_is_that_of_all_gradients_together():
    """Two arrays of norm 3 and 4 have norm 5; scaled to 2.5 each keeps its direction."""
    ctxs = contexts(2)
    grads = [[nd.array([[0, 3], [0, 0]], ctx=ctx), nd.array([-4], ctx=ctx)] for ctx in ctxs]
    clip = GlobalNormClipping(grads, ctxs)
    clip(2.5)
    for large, small in grads:
        assert large.asnumpy().tolist() == [[0, 1.5], [0, 0]]
        assert small.asnumpy().tolist() == [-2]
    clip(100.0)
    assert grads[1][1].asnumpy().tolist() == [-2]


def test_devices_that_have_parts_scale_them_by_the_norm_of_all():
    """Norms 3, nothing, 4 and 12 are 13 together."""
    ctxs = contexts(4)
    grads = [
        [nd.array([3], ctx=ctxs[0])],
        [],
        [nd.array([0, -4], ctx=ctxs[2])],
        [nd.array([12], ctx=ctxs[3]), nd.zeros(2, ctxs[3])],
    ]
    clip = GlobalNormClipping(grads, ctxs, sharded=True)
    clip(6.5)
    assert [[array.asnumpy().tolist() for array in arrays] for arrays in grads] == [
        [[1.5]],
        [],
        [[0, -2]],
        [[6], [0, 0]],
    ]
    clip(6.5)
    assert grads[2][0].asnumpy().tolist() == [0, -2]


def test_gradients_of_zero_stay_zero():
    grad = nd.zeros((5,), ctx=device())
    GlobalNormClipping([[grad]], contexts(1))(1.0)
    assert (grad.asnumpy() == 0).all()


def test_the_norm_of_millions_of_elements_keeps_its_digits():
    """Added one by one in float32, the third digit would be wrong; in how many lanes BLAS adds, and
    so the fifth digit, is the processor's.
    """
    array = np.random.RandomState(0).normal(0, 0.01, 3_000_000).astype(np.float32)
    grad = nd.array(array, ctx=device())
    GlobalNormClipping([[grad]], contexts(1))(1.0)
    expected = array / np.linalg.norm(array.astype(np.float64))
    assert relative_distance([grad.asnumpy()], [expected]) <= 1e-4


def convolutional(ctxs):
    """Channels that oneDNN likes to rearrange."""
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, in_channels=8), nn.Conv2D(16, 3, in_channels=16), nn.Dense(4))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, 8, 8, 8), ctx=ctxs[0]))
    return net


def test_convolutions_are_clipped_between_evaluations():
    ctxs, batches = contexts(2), random_batches([6] * 4, shape=(8, 8, 8), classes=4)
    params = {"learning_rate": 0.5, "momentum": 0.9}
    expected_net, net = convolutional(cpu_contexts(1)), convolutional(ctxs)
    set_parameter_arrays(net, parameter_arrays(expected_net))
    expected, norms = clipped_on_one_device(expected_net, batches, 0.2, "sgd", params)
    assert min(norms) > 0.2
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(params), make_kvstore("device"), clip_norm=0.2)
    step = DataParallelStep(net, LOSS, trainer, ctxs, identity)
    for images, labels in batches:
        xs, ys = shard(nd.array(images), ctxs), shard(nd.array(labels, dtype="int32"), ctxs)
        list(step.score(make_local_batch(xs, ys)))
        net(xs[0]).wait_to_read()  # a prediction, which leaves oneDNN's order behind
        step(make_local_batch(xs, ys))
    for ctx in ctxs:
        assert relative_distance(parameter_arrays(net, ctx), expected) <= 1e-5


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_no_step_waits_for_a_norm(store, monkeypatch):
    net = make_small_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {}, make_kvstore(store), clip_norm=0.1)
    train_on_devices(net, trainer, contexts(2), BATCHES[:3])  # the first two look for strays

    def wait(array):
        raise AssertionError("somebody waits for the devices")

    with monkeypatch.context() as patched:
        for name in ("asnumpy", "asscalar", "wait_to_read"):
            patched.setattr(nd.NDArray, name, wait)
        patched.setattr(nd, "waitall", wait)
        train_on_devices(net, trainer, contexts(2), BATCHES[3:])
    assert np.isfinite(parameter_arrays(net)[0]).all()
