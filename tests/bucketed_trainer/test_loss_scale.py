"""Scaling the loss changes no bit of the training. A step that overflows is skipped on all devices.

Nothing here depends on the type that the network computes in, so the tests use float32.
"""

import math

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.covering import pairwise
from support.devices import contexts
from support.examples import examples
from support.kvstore_runs import BATCHES, OPTIMIZERS, make_small_net
from support.reference import arrays_equal, identity, parameter_arrays, random_batches, shard_batch

from gluonlab.bucketed_trainer.gradient_postprocessing import GradientUnscaler
from gluonlab.bucketed_trainer.loss_scale import LossScale, SkipNotFinite, make_loss_scale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches
from gluonlab.errors import ConfigError, DivergedError
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS as OFFERED
from gluonlab.optimizers.optimizer_registry import make_optimizer
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.training.learning_rate_schedule import LearningRates

STORES = [name for name, kind in KVSTORES.items() if not kind.gpus_only]
ONE_IMAGE = random_batches([1], seed=5, shape=(1, 4, 4), classes=4)


def make_step(net, ctxs, loss_scale, store="device", cut=WHOLE_SHARDS, optimizer="sgd", sync_bn=False, **settings):
    params = settings.pop("params", OPTIMIZERS[optimizer]) if isinstance(optimizer, str) else None
    settings = {"bucket_bytes": 100, "loss_scale": loss_scale, **settings}
    trainer = BucketedTrainer(net.collect_params(), optimizer, params, make_kvstore(store), **settings)
    return DataParallelStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, identity, cut, sync_bn)


def replica_arrays(net, ctxs):
    return [parameter_arrays(net, ctx) for ctx in ctxs]


def train(loss_scale, k=2, batches=BATCHES, make_net=make_small_net, **settings):
    """Return the parameters on each of k devices."""
    ctxs = contexts(k)
    net = make_net(ctxs)
    step = make_step(net, ctxs, loss_scale, **settings)
    for batch in batches:
        step(shard_batch(batch, ctxs))
    return replica_arrays(net, ctxs)


def replicas_equal(replicas, others):
    return all(arrays_equal(one, other) for one, other in zip(replicas, others))


def linear_net(ctxs):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=16))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    return net


def make_overflowing(batch, images=slice(None)):
    pixels = batch[0].copy()
    pixels[images] *= 1e34  # the losses are finite in float32, the gradients times 2**16 are not
    return pixels, batch[1]


SINGLE = random_batches([7, 9, 8, 7, 9, 1], shape=(1, 4, 4), classes=4)
# Batches of MIXED, and which of them overflow
POSITIONS, SKIPPED = [0, 0, 1, 5, 2, 3, 4, 5, 4], [0, 3, 4, 8]
MIXED = [make_overflowing(SINGLE[i]) if number in SKIPPED else SINGLE[i] for number, i in enumerate(POSITIONS)]
KEPT = [SINGLE[i] for number, i in enumerate(POSITIONS) if number not in SKIPPED]


@examples(8, 12)
@given(
    exponent=st.integers(-14, 24),
    k=st.integers(1, 3),
    store=st.sampled_from(STORES),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    cut=st.sampled_from([WHOLE_SHARDS, Microbatches(count=2), Microbatches(size=1)]),
    clip_norm=st.sampled_from([None, 0.01, 0.8]),
)
def test_a_power_of_two_changes_no_bit(exponent, k, store, optimizer, cut, clip_norm):
    """Some batches leave devices idle."""
    options = dict(k=k, store=store, optimizer=optimizer, cut=cut, clip_norm=clip_norm, batches=BATCHES[:2] + ONE_IMAGE)
    scale = LossScale(2.0**exponent)
    assert replicas_equal(train(scale, **options), train(None, **options))
    assert (scale.value, scale.steps, scale.skipped) == (2.0**exponent, 3, 0)


@pytest.mark.parametrize("name", OFFERED)
def test_no_optimizer_sees_the_scale(name):
    scaled, plain = (
        train(s, optimizer=make_optimizer(name, {}), batches=BATCHES[:3]) for s in (LossScale(2.0**12), None)
    )
    assert replicas_equal(scaled, plain)


def normalizing_net(ctxs):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, in_channels=1), nn.BatchNorm(in_channels=4), nn.Activation("tanh"), nn.Dense(4, in_units=16)
    )
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    return net


@pytest.mark.parametrize("cut", [WHOLE_SHARDS, Microbatches(count=2)], ids=str)
def test_the_graph_of_all_devices_is_scaled_as_well(cut):
    options = dict(make_net=normalizing_net, sync_bn=True, k=3, cut=cut)
    assert replicas_equal(train(LossScale(2.0**10), **options), train(None, **options))


@pairwise(
    k=[1, 3], store=["device", "local", "ring", "sharded-optimizer"], optimizer=list(OPTIMIZERS), clip_norm=[None, 0.1]
)
def test_steps_that_overflow_leave_no_trace(k, store, optimizer, clip_norm):
    ctxs, scale = contexts(k), LossScale(2.0**24)
    net = linear_net(ctxs)
    step = make_step(net, ctxs, scale, store, optimizer=optimizer, clip_norm=clip_norm)
    skipped = []
    for number, batch in enumerate(MIXED):
        before, value = replica_arrays(net, ctxs), scale.value
        step(shard_batch(batch, ctxs))
        if scale.value < value:
            assert scale.value == value / 2
            assert replicas_equal(replica_arrays(net, ctxs), before)
            skipped.append(number)
    assert skipped == SKIPPED
    expected = train(None, k, KEPT, linear_net, store=store, optimizer=optimizer, clip_norm=clip_norm)
    assert replicas_equal(replica_arrays(net, ctxs), expected)


@pytest.mark.parametrize("store", ["device", "local", "ring", "sharded-optimizer"])
@pytest.mark.parametrize("k", [1, 3])
def test_a_step_whose_norm_is_nan_leaves_no_trace(k, store):
    # Clipping multiplies whole buckets by it, including the padding between parameters.
    ctxs, scale = contexts(k), SkipNotFinite()
    options = dict(store=store, clip_norm=0.1, bucket_bytes=1000)
    net = make_small_net(ctxs)
    step = make_step(net, ctxs, scale, **options)
    assert any(bucket.padding_indices() for bucket in step.trainer.buckets)
    pixels, labels = SINGLE[1]
    for batch in (SINGLE[0], (pixels * np.nan, labels), *SINGLE[2:]):
        step(shard_batch(batch, ctxs))
    assert scale.skipped == 1
    expected = train(None, k, [SINGLE[0], *SINGLE[2:]], **options)
    assert replicas_equal(replica_arrays(net, ctxs), expected)


@pairwise(device=[0, 2], store=STORES, clip_norm=[None, 1.0])
def test_an_overflow_on_one_device_stops_all(device, store, clip_norm):
    ctxs, scale = contexts(3), LossScale(2.0**20)
    net = linear_net(ctxs)
    step = make_step(net, ctxs, scale, store, clip_norm=clip_norm)
    batch = SINGLE[1]  # 3 images for each device
    step(shard_batch(batch, ctxs))
    before = replica_arrays(net, ctxs)
    step(shard_batch(make_overflowing(batch, slice(3 * device, 3 * device + 3)), ctxs))
    assert (scale.skipped, scale.value) == (1, 2.0**19)
    assert replicas_equal(replica_arrays(net, ctxs), before)
    step(shard_batch(batch, ctxs))
    after = replica_arrays(net, ctxs)
    assert scale.skipped == 1
    assert not replicas_equal(after, before)
    assert replicas_equal(after, [after[0]] * 3)


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_a_skipped_step_counts_for_the_learning_rate(store):
    # As in PyTorch's recipes: a run ends with the rate that was planned.
    rates, ctxs, scale = LearningRates(0.1, len(MIXED), "linear"), contexts(2), LossScale(2.0**24)
    step = make_step(linear_net(ctxs), ctxs, scale, store, params={"lr_scheduler": rates})
    used = []
    for batch in MIXED:
        step(shard_batch(batch, ctxs))
        used.append(step.trainer.learning_rate)
    assert scale.skipped == len(SKIPPED)
    assert used == [rates(number) for number in range(1, len(MIXED) + 1)]


def make_overflowing_net(ctxs):
    net = normalizing_net(ctxs)
    net[-1].weight.set_data(net[-1].weight.data(ctxs[0]) * 1e33)  # gradients overflow only if scaled by 2**24
    return net


def test_running_statistics_move_in_a_skipped_step():
    options, scale = dict(make_net=make_overflowing_net, batches=BATCHES[:1]), LossScale(2.0**24)
    skipped, plain = train(scale, **options), train(None, **options)
    start = [parameter_arrays(make_overflowing_net(contexts(1)))] * 2
    names = list(make_overflowing_net(contexts(1)).collect_params())
    assert scale.skipped == 1
    for now, moved, before in zip(skipped, plain, start):
        for name, a, b, c in zip(names, now, moved, before):
            assert np.array_equal(a, b if "running" in name else c), name
            assert "running" not in name or not np.array_equal(a, c), name


def test_the_scale_doubles_after_good_steps_only():
    scale = LossScale(8.0, good_steps=3, largest=32.0)
    followed = []
    for finite in [True, True, False, *[True] * 9, False, True]:
        scale.record_step(finite)
        followed.append(scale.value)
    assert followed == [8, 8, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 16, 16]
    for _ in range(20):
        scale.record_step(True)
    assert scale.value == 32
    assert (scale.steps, scale.skipped) == (34, 2)


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_an_endless_overflow_stops_the_run(store):
    batch = (BATCHES[0][0] * np.nan, BATCHES[0][1])
    ctxs, scale = contexts(2), LossScale(8.0, smallest=1.0)
    net = make_small_net(ctxs)
    step = make_step(net, ctxs, scale, store)
    for _ in range(3):
        step(shard_batch(batch, ctxs))
    message = "overflow at step 4, even with the smallest loss scale 1: use a smaller learning rate"
    with pytest.raises(DivergedError, match=message):
        step(shard_batch(batch, ctxs))
    assert replicas_equal(replica_arrays(net, ctxs), [parameter_arrays(make_small_net(contexts(1)))] * 2)


FLOATS = st.floats(width=32, allow_subnormal=False) | st.sampled_from([np.nan, np.inf, -np.inf])
DEVICES = st.lists(st.lists(st.lists(FLOATS, min_size=1, max_size=3), max_size=3), min_size=1, max_size=3)


def unscale_and_check(grads, scale, sharded=False):
    unscaler = GradientUnscaler(grads, sharded)
    unscaler.unscale(scale)
    return unscaler.were_finite()


@examples(40)
@given(DEVICES, st.sampled_from([0.25, 1.0, 1024.0]))
def test_gradients_are_divided_and_checked_on_all_devices(devices, scale):
    arrays = [[np.array(numbers, "float32") for numbers in part] for part in devices]
    grads = [[nd.array(array, ctx=ctx) for array in part] for ctx, part in zip(contexts(len(arrays)), arrays)]
    finite = all(np.isfinite(array).all() for part in arrays for array in part)
    assert unscale_and_check(grads, scale, sharded=True) is finite
    for part, expected in zip(grads, arrays):
        for grad, array in zip(part, [array / np.float32(scale) for array in expected]):
            assert np.array_equal(grad.asnumpy(), array, equal_nan=True) or abs(array).min() < 1e-37


@pytest.mark.parametrize("place", [0, 199, 200, 430])
def test_hundreds_of_arrays_are_checked(place):
    [ctx] = contexts(1)
    arrays = [nd.ones((2, 3), ctx=ctx) for _ in range(431)]
    assert unscale_and_check([arrays], 2.0)
    arrays[place][1, 2] = np.inf
    assert not unscale_and_check([arrays], 2.0)
    arrays[place][1, 2] = 1
    assert unscale_and_check([arrays], 4.0)
    assert all((array.asnumpy()[0] == 1 / 16).all() for array in arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": 3.0}, "loss scale 3"),
        ({"value": 0.0}, "loss scale 0"),
        ({"value": math.inf}, "loss scale inf"),
        ({"value": 2.0**30}, ": must be from 6\\.10352e-05 to 1\\.67772e\\+07"),
        ({"smallest": 2.0**17}, "loss scale 65536: must be from 131072 to 1\\.67772e\\+07"),
        ({"good_steps": 0}, "good_steps=0"),
    ],
)
def test_scales_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        LossScale(**changes)


@pytest.mark.parametrize(("images", "value"), [(1, 65536), (64, 1024), (100, 1024), (128, 512), (2**20, 1)])
def test_the_first_scale_suits_the_mean_loss_of_a_shard(images, value):
    assert make_loss_scale("float16", images).value == value
    assert make_loss_scale("float32", images) is None
