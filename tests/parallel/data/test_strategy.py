"""Data parallelism as a strategy: over processes, in phases, and on from a state."""

from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts, devices, runs_on_gpus
from support.examples import examples
from support.process_group import run_in_threads
from support.reference import arrays_equal, identity, parameter_arrays, random_batches, relative_distance, shard_batch

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Batch, Microbatches
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.optimizers.optimizer_registry import make_optimizer
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.mixed_precision import keep_float32
from gluonlab.parallel.training_loss import make_loss
from gluonlab.training.learning_rate_schedule import LearningRates

SHAPE = (1, 6, 6)
STORES = [name for name, kind in KVSTORES.items() if not kind.gpus_only]


def network(ctxs):
    mx.random.seed(5)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, activation="tanh"), nn.BatchNorm(), nn.Dense(5))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net


def make_strategy(
    ctxs,
    group=SINGLE_PROCESS,
    make_net=network,
    optimizer="sgd",
    store="device",
    clip_norm=None,
    loss_scale=None,
    **settings,
):
    rates = LearningRates(0.05, 20, "cosine", 2, 0.0, 0.1, ())
    plan = SimpleNamespace(
        ctxs=ctxs,
        make_optimizer=lambda: make_optimizer(optimizer, {"learning_rate": 0.05, "lr_scheduler": rates}),
        kvstore=make_kvstore(store, ctxs),
        bucket_bytes=None,
        postprocessing={"clip_norm": clip_norm, "loss_scale": loss_scale},
        microbatches=WHOLE_SHARDS,
        sync_bn=False,
        on_servers=False,
        compress=None,
        conversion=keep_float32,
        preprocess=identity,
    )
    vars(plan).update(settings)
    return data_parallel(make_net, make_loss(), plan, group)


def take_process_part(batch, ctxs, group):
    images, labels = (np.array_split(array, group.size)[group.rank] for array in batch)
    xs, ys = shard_batch((images, labels), ctxs) if len(images) else ([], [])
    return Batch(xs, ys, len(batch[0]))


def plain(ctxs):
    """A network without layers that look across a batch."""
    net = nn.HybridSequential()
    net.add(nn.Dense(7, activation="tanh", in_units=36), nn.Dense(5, in_units=7))
    net.initialize(mx.init.Zero(), ctx=ctxs)
    random = np.random.RandomState(1)
    for param in net.collect_params().values():
        param.set_data(nd.array(random.uniform(-0.5, 0.5, param.shape)))
    return net


def train_in_processes(device_counts, batches, **settings):
    """Return the parameters of each replica of each of the processes."""

    def train(group):
        ctxs = contexts(device_counts[group.rank])  # processes share devices
        with mx.name.NameManager():  # names as in a separate process: trainers sort parameters by name
            strategy = make_strategy(ctxs, group, plain, **settings)
        for batch in batches:
            strategy.step(take_process_part(batch, ctxs, group))
        return [parameter_arrays(strategy.net, ctx) for ctx in ctxs]

    return run_in_threads(len(device_counts), train)


@pytest.fixture(scope="module")
def scratch_of_threads():
    """MXNet keeps some bytes on each GPU for every thread that has computed there."""
    if runs_on_gpus():
        train_in_processes([2] * 4, random_batches([8], shape=SHAPE, classes=5))


@pytest.mark.usefixtures("scratch_of_threads")
@examples(4, 6)
@given(
    device_counts=st.lists(st.integers(1, 2), min_size=2, max_size=3),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    settings=st.sampled_from([{}, {"clip_norm": 0.1}, {"microbatches": Microbatches(2)}, {"store": "ring"}]),
)
def test_processes_some_without_an_image_make_the_update_of_one(device_counts, sizes, settings):
    batches = random_batches([*sizes, 1], shape=SHAPE, classes=5)
    alone = make_strategy(contexts(1), make_net=plain, **settings)
    for batch in batches:
        alone.step(shard_batch(batch, contexts(1)))

    for replicas in train_in_processes(device_counts, batches, **settings):
        assert all(relative_distance(replica, parameter_arrays(alone.net)) <= 1e-5 for replica in replicas)


def test_a_process_without_an_image_alone_divides_by_the_whole_batch():
    """Its gradients are zero, and so is the update, momentum apart."""
    strategy = make_strategy(contexts(2))
    strategy.step(shard_batch(random_batches([4], shape=SHAPE, classes=5)[0], contexts(2)))
    previous = parameter_arrays(strategy.net)
    assert strategy.step(Batch([], [], 4)) == []
    assert list(strategy.score(Batch([], [], 4))) == []
    assert arrays_equal(parameter_arrays(strategy.net), previous)


@pytest.mark.parametrize("cut", [WHOLE_SHARDS, Microbatches(3)])
@pytest.mark.parametrize("sync_bn", [False, True])
def test_running_the_phases_one_by_one_equals_a_step(cut, sync_bn):
    ctxs = devices(2, threads=1)
    batches = [shard_batch(batch, ctxs) for batch in random_batches((8, 5, 1), shape=SHAPE, classes=5)]
    one, other = (make_strategy(ctxs, microbatches=cut, sync_bn=sync_bn) for _ in range(2))
    for batch in batches:
        one.step(batch)
        names = []
        for name, queue in other.phases(batch):
            names.append(name)
            queue()
        rounds = max(map(len, ([cut.bounds(len(x)) for x in batch.xs])))
        assert names == ["forward", "backward"] * rounds + ["allreduce", "update"]
    assert all(arrays_equal(parameter_arrays(one.net, ctx), parameter_arrays(other.net, ctx)) for ctx in ctxs)


@examples(6, 10)
@given(
    k=st.integers(1, 3),
    store=st.sampled_from(STORES),
    optimizer=st.sampled_from(["sgd", "adam", "nag", "ftml"]),
    scaled=st.booleans(),
    steps=st.integers(0, 4),
)
def test_a_restored_strategy_trains_bit_identically(k, store, optimizer, scaled, steps):
    ctxs = devices(k, threads=1)
    batches = random_batches([7] * (steps + 3), shape=SHAPE, classes=5)

    def new():
        scale = LossScale(2.0**10, good_steps=2) if scaled else None
        return make_strategy(ctxs, optimizer=optimizer, store=store, loss_scale=scale)

    first, second = new(), new()
    for batch in batches[:steps]:
        first.step(shard_batch(batch, ctxs))
    nd.waitall()
    first.sync_running_statistics()
    state = first.state()
    for one, other in zip(first.net.collect_params().values(), second.net.collect_params().values()):
        other.set_data(one.data(ctxs[0]))
    second.restore(state)
    for strategy in (first, second):
        for batch in batches[steps:]:
            strategy.step(shard_batch(batch, ctxs))
        nd.waitall()
        strategy.sync_running_statistics()
    assert all(arrays_equal(parameter_arrays(first.net, ctx), parameter_arrays(second.net, ctx)) for ctx in ctxs)
    expected, state = first.state(), second.state()
    assert expected.loss_scale == state.loss_scale
    for one, other in zip(expected.optimizer.parameters, state.optimizer.parameters):
        assert one.updates == other.updates
        assert arrays_equal([a.asnumpy() for a in one.arrays], [a.asnumpy() for a in other.arrays])
