"""Buckets change how parameters are summed, not how they are updated."""

import math

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon
from support.devices import contexts
from support.examples import examples
from support.kvstore_runs import BATCHES, make_small_net
from support.reference import arrays_equal, parameter_arrays, random_batches, train_on_devices

from gluonlab.bucketed_trainer.buckets import ALIGNMENT_BYTES, Bucket, coalesce_buckets, group_parameters
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import ConfigError, RunError
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers import optimizer_registry


def train(net, trainer, batches=None):
    train_on_devices(net, trainer, net[0].weight.list_ctx(), batches or BATCHES)
    return parameter_arrays(net, net[0].weight.list_ctx()[-1])


OPTIMIZERS = [cls.__name__.lower() for cls in optimizer_registry.MXNET_ELEMENT_WISE]


def make_gluon_trainer(*arguments):
    return gluon.Trainer(*arguments, kvstore=None)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "nadam", "lamb", "lars"])
def test_every_optimizer_makes_the_updates_of_gluons_trainer(optimizer):
    results = []
    for make in (make_gluon_trainer, BucketedTrainer):
        net = make_small_net(contexts(1))
        results.append(train(net, make(net.collect_params(), optimizer)))
    assert arrays_equal(*results)


@pytest.mark.parametrize("params", [{"momentum": 0.9, "wd": 0.01}, {"wd": 0.1, "clip_gradient": 0.02}, {}], ids=str)
def test_sgd_follows_its_settings_while_they_change(params):
    results = []
    for make in (make_gluon_trainer, BucketedTrainer):
        net = make_small_net(contexts(1))
        schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.4)
        trainer = make(net.collect_params(), "sgd", {"lr_scheduler": schedule, "learning_rate": 0.4, **params})
        results.append(train(net, trainer, BATCHES + random_batches([3, 5], 1, (1, 4, 4), 4)))
    assert arrays_equal(*results)


def test_multipliers_of_a_parameter_count():
    results = []
    for make in (make_gluon_trainer, BucketedTrainer):
        net = make_small_net(contexts(1))
        net[0].weight.lr_mult, net[0].bias.wd_mult, net[1].weight.lr_mult = (0.1, 0.0, 0.0)
        start = parameter_arrays(net)
        results.append(train(net, make(net.collect_params(), "sgd", {"learning_rate": 0.3, "wd": 0.1})))
    assert arrays_equal(*results)
    assert np.array_equal(results[1][2], start[2])  # lr_mult 0


def test_frozen_parameters_stay():
    net = make_small_net(contexts(2))
    net[1].collect_params().setattr("grad_req", "null")
    before = parameter_arrays(net)
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.3}, make_kvstore("device"))
    trainer.prepare()
    after = train(net, trainer)
    changed = [not np.array_equal(a, b) for a, b in zip(before, after)]
    assert changed == [True, True, False, False]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(1, 2000))
def test_buckets_keep_order_and_hold_no_more_than_they_may(sizes, bucket_bytes):
    params = [gluon.Parameter(f"p{i}", shape=(size,)) for i, size in enumerate(sizes)]
    groups = group_parameters(params, bucket_bytes)
    assert [param for bucket in groups for param in bucket] == params
    for bucket in groups:
        assert len(bucket) == 1 or sum(math.prod(param.shape) for param in bucket) * 4 <= bucket_bytes
    for a, b in zip(groups, groups[1:]):  # none is closed while the next parameter still fits
        assert sum(math.prod(param.shape) for param in [*a, b[0]]) * 4 > bucket_bytes


@examples(40)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8), bucket_bytes=st.integers(0, 200))
def test_buckets_are_coalesced_in_order_and_only_if_they_fit(sizes, bucket_bytes):
    params = [gluon.Parameter(f"p{i}", shape=(size,)) for i, size in enumerate(sizes)]
    for param in params:
        param.initialize()
    groups = coalesce_buckets([Bucket([param]) for param in params], bucket_bytes)
    assert [position for positions in groups for position in positions] == list(range(len(sizes)))
    taken = [[4 * sizes[position] for position in positions] for positions in groups]
    assert all(sum(taking) <= bucket_bytes or len(taking) == 1 for taking in taken)
    assert all(sum(taking) + following[0] > bucket_bytes for taking, following in zip(taken, taken[1:]))


def test_every_parameter_begins_on_a_cache_line():
    net = make_small_net(contexts(1))
    trainer = BucketedTrainer(net.collect_params(), "sgd")
    trainer.prepare()
    assert all(begin * 4 % ALIGNMENT_BYTES == 0 for bucket in trainer.buckets for begin in bucket.offsets)
    assert len(trainer.buckets) == 1


@pytest.mark.parametrize("optimizer", ["nadam", "lars", "sgld", "lbsgd"])
def test_optimizers_of_mxnet_that_let_replicas_drift_are_refused_for_several_devices(optimizer):
    params = make_small_net(contexts(2)).collect_params()
    with pytest.raises(ConfigError, match="the 2 replicas diverge: use"):
        BucketedTrainer(params, optimizer, None, make_kvstore("device"))
    BucketedTrainer(make_small_net(contexts(1)).collect_params(), optimizer)


def test_parameters_that_were_initialized_again_are_refused():
    net = make_small_net(contexts(1))
    trainer = BucketedTrainer(net.collect_params(), "sgd")
    train(net, trainer)
    net.initialize(force_reinit=True, ctx=contexts(1))
    with pytest.raises(RunError, match="create a new BucketedTrainer with a new kvstore"):
        train(net, trainer)
