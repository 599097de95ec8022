"""Stores made of schedules, under Gluon's own Trainer and under gluonlab's."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from reference import cpus, distance, random_batches, train_on_devices, values

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.config import TrainConfig
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.schedule import ScheduleKVStore
from gluonlab.kvstores.sharded import ShardedKVStore
from gluonlab.training.buckets import BucketedTrainer
from gluonlab.training.loop import train

STORES = [*ALGORITHMS, "sharded-optimizer"]
OPTIMIZERS = {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.01}}
BATCHES = random_batches([7, 9, 8, 7, 3], shape=(1, 4, 4), classes=4)


def small_net(ctxs):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(7, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(nd.zeros((1, 1, 4, 4), ctx=ctxs[0]))
    return net


def trained(trainer_class, store, optimizer, ctxs, batches=BATCHES):
    """The net and its trainer after one step per batch."""
    net = small_net(ctxs)
    trainer = trainer_class(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=store)
    train_on_devices(net, trainer, ctxs, batches)
    return net, trainer


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("trainer_class", [gluon.Trainer, BucketedTrainer])
def test_every_store_gives_the_parameters_of_device_under_the_trainer(name, optimizer, trainer_class):
    ctxs, store = cpus(3), make_kvstore(name)
    expected, _ = trained(gluon.Trainer, make_kvstore("device"), optimizer, ctxs)
    net, _ = trained(trainer_class, store, optimizer, ctxs)
    assert distance(values(net), values(expected)) < 1e-5
    for ctx in ctxs[1:]:  # replicas are alike to the bit
        assert all(np.array_equal(a, b) for a, b in zip(values(net, ctx), values(net, ctxs[0])))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_store_runs_the_transfers_of_its_schedule_itself(name):
    """A store that handed the work to another one would run none. Chunks without an element need no transfer."""
    store = make_kvstore(name)
    size = 1000
    arrays = [nd.ones((size,), ctx=ctx) for ctx in cpus(4)]
    for turn in (1, 2):
        store.pushpull("weight", arrays)
        assert store.transfers_run == turn * make_schedule(name, 4).transfers
    assert (arrays[3].asnumpy() == 16).all()


def test_the_sharded_optimizer_runs_its_two_halves():
    store = make_kvstore("sharded-optimizer")
    trained(gluon.Trainer, store, "sgd", cpus(3))
    parameters = 4
    assert store.transfers_run == parameters * len(BATCHES) * make_schedule("sharded", 3).transfers


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adam", 2)])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_the_sharded_optimizer_keeps_a_share_of_the_state_on_each_device(optimizer, copies, devices):
    ctxs, store = cpus(devices), make_kvstore("sharded-optimizer")
    _, trainer = trained(BucketedTrainer, store, optimizer, ctxs)
    kept = dict.fromkeys(ctxs, 0)
    for update in store._updates.values():
        for owned in update.shards:
            for array in owned.arrays():
                kept[array.context] += array.size
    whole = copies * sum(bucket.weights[0].size for bucket in trainer.buckets)
    assert sum(kept.values()) == whole
    assert max(kept.values()) - whole / devices < copies * len(trainer.buckets)
    assert all(not updater.states for updater in trainer._updaters)  # and nothing beside it


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("trainer_class", [gluon.Trainer, BucketedTrainer])
def test_saved_states_of_the_sharded_optimizer_go_on_where_they_stopped(optimizer, trainer_class, tmp_path):
    ctxs, states, params = cpus(2), str(tmp_path / "states"), str(tmp_path / "params")
    expected, _ = trained(trainer_class, ShardedKVStore(), optimizer, ctxs)
    net, trainer = trained(trainer_class, ShardedKVStore(), optimizer, ctxs, BATCHES[:3])
    trainer.save_states(states)
    net.save_parameters(params)
    resumed = small_net(ctxs)
    resumed.load_parameters(params, ctx=ctxs)
    trainer = trainer_class(resumed.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=ShardedKVStore())
    trainer.load_states(states)
    train_on_devices(resumed, trainer, ctxs, BATCHES[3:])
    assert all(np.array_equal(a, b) for a, b in zip(values(resumed), values(expected)))


def test_states_of_another_number_of_devices_are_refused(tmp_path):
    states = str(tmp_path / "states")
    trained(gluon.Trainer, ShardedKVStore(), "adam", cpus(2))[1].save_states(states)
    _, trainer = trained(gluon.Trainer, ShardedKVStore(), "adam", cpus(3))
    with pytest.raises(KVStoreError, match="does not fit key 0 on 3 devices"):
        trainer.load_states(states)


@pytest.mark.parametrize("name", STORES)
def test_one_device_needs_no_schedule_and_still_trains(name):
    expected, _ = trained(gluon.Trainer, None, "sgd", cpus(1))
    net, _ = trained(BucketedTrainer, make_kvstore(name), "sgd", cpus(1))
    assert all(np.array_equal(a, b) for a, b in zip(values(net), values(expected)))


def test_an_order_changes_who_plays_which_rank_and_not_the_sum():
    ctxs = cpus(4)
    store = ScheduleKVStore("ring", order=(0, 3, 2, 1))
    assert store.schedule(4).steps[0][0][:2] == (0, 3)
    arrays = [nd.full((5,), rank, ctx=ctx) for rank, ctx in enumerate(ctxs)]
    store.pushpull(0, arrays)
    assert all((array.asnumpy() == 6).all() for array in arrays)


def test_lists_of_keys_and_separate_outputs_work_as_in_mxnets_stores():
    ctxs = cpus(2)
    values_ = [[nd.full((3,), key + rank + 1.0, ctx=ctx) for rank, ctx in enumerate(ctxs)] for key in range(2)]
    for store in (make_kvstore("device"), make_kvstore("ring")):
        outs = [[nd.zeros((3,), ctx=ctx) for ctx in ctxs] for _ in range(2)]
        store.broadcast([0, 1], [value[0] for value in values_], outs)
        store.pushpull([0, 1], values_, out=outs)
        assert [[float(out[0].asscalar()) for out in outs_of] for outs_of in outs] == [[3, 3], [5, 5]]
        assert [float(value[1][0].asscalar()) for value in values_] == [2, 3]  # as they were


def test_a_key_may_come_with_other_arrays():
    store = make_kvstore("sharded")
    for size in (3, 4, 3):
        arrays = [nd.ones((size,), ctx=ctx) for ctx in cpus(2)]
        store.pushpull(0, arrays)
        assert all((array.asnumpy() == 2).all() for array in arrays)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([nd.ones((3,), ctx=mx.cpu(0)), nd.ones((3,), ctx=mx.cpu(0))], "each rank needs a device of its own"),
        ([nd.ones((3,), ctx=mx.cpu(0)), nd.ones((4,), ctx=mx.cpu(1))], "must be alike"),
        ([nd.ones((3,), ctx=mx.cpu(0)), nd.ones((3,), ctx=mx.cpu(1), dtype="float64")], "must be alike"),
        ([nd.sparse.zeros("row_sparse", (3, 1), ctx=ctx) for ctx in cpus(2)], "sparse"),
    ],
)
def test_what_cannot_be_summed_is_refused_and_left_alone(arrays, message):
    with pytest.raises(KVStoreError, match=message):
        make_kvstore("ring").pushpull("weight", arrays)
    assert all((array.asnumpy() == array.asnumpy().flat[0]).all() for array in arrays)


def test_optimizers_that_look_at_whole_parameters_are_refused():
    with pytest.raises(KVStoreError, match=r"LAMB does not allow: choose one of AdaDelta, .*, or another kvstore"):
        trained_with = small_net(cpus(2))
        BucketedTrainer(trained_with.collect_params(), "lamb", kvstore=make_kvstore("sharded-optimizer")).prepare()


def test_gradient_compression_and_sparse_gradients_are_refused():
    with pytest.raises(KVStoreError, match="'ring' cannot compress gradients"):
        make_kvstore("ring").set_gradient_compression({"type": "2bit"})
    embedding = nn.Embedding(10, 3, sparse_grad=True)
    embedding.initialize(ctx=cpus(2))
    trainer = gluon.Trainer(embedding.collect_params(), "sgd", kvstore=make_kvstore("ring"))
    with pytest.raises(ValueError, match="sparse gradients"):
        trainer.step(1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["device", *STORES])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_store_trains_the_digits_as_well_as_device(name, optimizer, empty_cwd):
    settings = {"sgd": {"lr": 0.1, "momentum": 0.9}, "adam": {"lr": 0.002}}[optimizer]
    with pytest.warns(UserWarning, match="stand in for GPUs"):
        assert train(TrainConfig(gpus=3, kvstore=name, epochs=10, optimizer=optimizer, **settings)).accuracy >= 0.96
