"""The sharded optimizer: its share of the state, and what becomes of it."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.covering import pairwise
from support.devices import contexts
from support.kvstore_runs import BATCHES, OPTIMIZERS, small_net, trained
from support.reference import distance, train_on_devices, values

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.sharded import ShardedKVStore
from gluonlab.update.trainer import BucketedTrainer


def test_the_sharded_optimizer_runs_its_two_halves():
    store = make_kvstore("sharded-optimizer")
    trained(gluon.Trainer, store, "sgd", contexts(3))
    parameters = 4
    assert store.transfers_run == parameters * len(BATCHES) * make_schedule("sharded", 3).transfers


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adam", 2)])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_the_sharded_optimizer_keeps_a_share_of_the_state_on_each_device(
    optimizer, copies, devices
):
    ctxs, store = contexts(devices), make_kvstore("sharded-optimizer")
    _, trainer = trained(BucketedTrainer, store, optimizer, ctxs)
    kept = dict.fromkeys(ctxs, 0)
    for update in store._updates.values():
        for owned in (shard for shards in update.shards.values() for shard in shards):
            for array in owned.arrays():
                kept[array.context] += array.size
    whole = copies * sum(bucket.weights[0].size for bucket in trainer.buckets)
    assert sum(kept.values()) == whole
    assert max(kept.values()) - whole / devices < copies * len(trainer.buckets)
    assert all(not updater.states for updater in trainer._updaters)  # and nothing beside it


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("trainer_class", [gluon.Trainer, BucketedTrainer])
def test_saved_states_of_the_sharded_optimizer_go_on_where_they_stopped(
    optimizer, trainer_class, tmp_path
):
    ctxs, states, params = contexts(2), str(tmp_path / "states"), str(tmp_path / "params")
    expected, _ = trained(trainer_class, ShardedKVStore(), optimizer, ctxs)
    net, trainer = trained(trainer_class, ShardedKVStore(), optimizer, ctxs, BATCHES[:3])
    trainer.save_states(states)
    net.save_parameters(params)
    resumed = small_net(ctxs)
    resumed.load_parameters(params, ctx=ctxs)
    trainer = trainer_class(
        resumed.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=ShardedKVStore()
    )
    trainer.load_states(states)
    train_on_devices(resumed, trainer, ctxs, BATCHES[3:])
    assert all(np.array_equal(a, b) for a, b in zip(values(resumed), values(expected)))


@pytest.mark.parametrize("loaded", [False, True])
def test_the_sharded_optimizers_state_goes_along_when_arrays_are_replaced(loaded, tmp_path):
    """cast() gives the parameters new arrays; what was loaded long before must not come back
    then.
    """
    ctxs, results = contexts(2), []
    for store in (make_kvstore("device"), ShardedKVStore()):
        net, trainer = trained(gluon.Trainer, store, "adam", ctxs, BATCHES[:2])
        if loaded:
            trainer.save_states(str(tmp_path / "states"))
            trainer.load_states(str(tmp_path / "states"))
        train_on_devices(net, trainer, ctxs, BATCHES[2:3])
        net.cast("float64")
        net.cast("float32")
        train_on_devices(net, trainer, ctxs, BATCHES[3:])
        results.append(values(net))
    assert distance(results[1], results[0]) < 1e-5


def convolutions(ctxs):
    """Weights that have buckets of their own, small enough to be moved together."""
    mx.random.seed(4)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(8, 3, padding=1),
        nn.Conv2D(8, 3, padding=1),
        nn.Activation("tanh"),
        nn.Conv2D(16, 3),
        nn.Dense(4),
    )
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(nd.zeros((1, 1, 4, 4), ctx=ctxs[0]))
    return net


@pairwise(devices=[2, 3], optimizer=list(OPTIMIZERS), clip_norm=[None, 0.1])
def test_buckets_that_are_moved_together_are_updated_as_alone(optimizer, devices, clip_norm):
    found, calls = [], []
    for store, bucket_bytes in (
        ("device", 4 * 2**20),
        ("sharded-optimizer", 0),
        ("sharded-optimizer", 4 * 2**20),
    ):
        ctxs = contexts(devices)
        net = convolutions(ctxs)
        params = {**OPTIMIZERS[optimizer], "learning_rate": 0.01}
        trainer = BucketedTrainer(
            net.collect_params(),
            optimizer,
            params,
            make_kvstore(store),
            bucket_bytes=bucket_bytes,
            clip_norm=clip_norm,
        )
        train_on_devices(net, trainer, ctxs, BATCHES)
        found += [values(net, ctx) for ctx in ctxs]
        calls.append(len(trainer._calls))
    assert max(distance(one, found[0]) for one in found[1:]) < 1e-5
    assert calls[1] > calls[2] == 1


def test_states_of_keys_that_are_updated_together_are_saved_and_go_on(tmp_path):
    path, half, nets = str(tmp_path / "states"), len(BATCHES) // 2, []
    for split in (False, True):
        ctxs = contexts(2)
        net = convolutions(ctxs)
        trainer = BucketedTrainer(
            net.collect_params(), "adam", {"learning_rate": 0.01}, make_kvstore("sharded-optimizer")
        )
        train_on_devices(net, trainer, ctxs, BATCHES[:half] if split else BATCHES)
        if split:
            trainer.save_states(path)
            trainer = BucketedTrainer(
                net.collect_params(),
                "adam",
                {"learning_rate": 0.01},
                make_kvstore("sharded-optimizer"),
            )
            trainer.load_states(path)
            train_on_devices(net, trainer, ctxs, BATCHES[half:])
        nets.append(values(net))
    assert all(np.array_equal(a, b) for a, b in zip(*nets))


def test_a_key_is_always_updated_in_the_same_company():
    store, ctxs = make_kvstore("sharded-optimizer"), contexts(2)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    grads, weights = (
        [[nd.ones((5,), ctx=ctx) for ctx in ctxs] for _ in range(3)] for _ in range(2)
    )
    store.pushpull(["a", "b"], grads[:2], out=weights[:2])
    with pytest.raises(
        KVStoreError,
        match="key 'b' cannot be updated after keys 'a', 'b': give the same keys in every call",
    ):
        store.pushpull("b", grads[1], out=weights[1])
    store.pushpull("c", grads[2], out=weights[2])
    assert [array.asnumpy()[0] for of_key in weights for array in of_key] == pytest.approx(
        [1 - 0.1 * 2] * 6
    )


def test_optimizers_that_look_at_whole_parameters_are_refused():
    with pytest.raises(
        KVStoreError, match=r"LAMB does not allow: choose one of AdaDelta, .*, or another kvstore"
    ):
        trained_with = small_net(contexts(2))
        BucketedTrainer(
            trained_with.collect_params(), "lamb", kvstore=make_kvstore("sharded-optimizer")
        ).prepare()
