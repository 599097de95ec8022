"""Stores made of schedules, by name and for links, under Gluon's own Trainer and gluonlab's."""

import functools
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.covering import pairwise
from support.devices import contexts
from support.kvstore_runs import BATCHES, OPTIMIZERS, STORES, make_small_net, train_small_net
from support.reference import arrays_equal, identity, parameter_arrays, relative_distance, shard_batch, train_on_devices

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.synthesis.precomputed_schedules import find_stored_schedules
from gluonlab.collectives.synthesis.schedule_search import SynthesizedSchedule
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE, make_for_links
from gluonlab.collectives.topology_file import schedules_file_text
from gluonlab.config import TrainConfig
from gluonlab.config.renamed_settings import RENAMED_KVSTORES
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.schedule_stores import ScheduleKVStore
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.training.loop import train

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


@functools.lru_cache(maxsize=None)
def parameters_under_device(optimizer):
    net, _ = train_small_net(gluon.Trainer, make_kvstore("device"), optimizer, contexts(3))
    return parameter_arrays(net)


@pairwise(name=STORES, optimizer=list(OPTIMIZERS), trainer_class=[gluon.Trainer, BucketedTrainer])
def test_every_store_gives_the_parameters_of_device_under_the_trainer(name, optimizer, trainer_class):
    ctxs, store = contexts(3), make_kvstore(name)
    net, _ = train_small_net(trainer_class, store, optimizer, ctxs)
    assert relative_distance(parameter_arrays(net), parameters_under_device(optimizer)) < 1e-5
    assert all(arrays_equal(parameter_arrays(net, ctx), parameter_arrays(net, ctxs[0])) for ctx in ctxs[1:])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_store_runs_the_transfers_of_its_schedule_itself(name):
    store, arrays = make_kvstore(name), [nd.ones((1000,), ctx=ctx) for ctx in contexts(4)]
    for turn in (1, 2):
        store.pushpull("weight", arrays)
        assert store.transfers_run == turn * make_schedule(name, 4).transfers
    assert (arrays[3].asnumpy() == 16).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_keys_of_one_call_are_summed_by_one_schedule(name):
    store, sizes, random = make_kvstore(name), (1, 700, 3, 4000), np.random.RandomState(0)
    values = [[random.randint(-99, 99, size).astype("float32") for _ in range(4)] for size in sizes]
    arrays = [[nd.array(value, ctx=ctx) for value, ctx in zip(of_key, contexts(4))] for of_key in values]
    for times in (1, 4):  # the second sums four times the first
        store.pushpull([5, 6, 7, "rest"], arrays, priority=-5)
        for value, of_key in zip(values, arrays):
            for array in of_key:
                np.testing.assert_array_equal(array.asnumpy(), times * sum(value))
    schedule = make_schedule(name, 4)
    alone = make_kvstore(name)
    for of_key in arrays:
        alone.pushpull("key", of_key)
        assert (of_key[0].asnumpy() % 16 == 0).all()  # four times the sum, four times
    assert schedule.transfers * 2 <= store.transfers_run < 2 * alone.transfers_run or schedule.chunks == 1


def test_keys_of_one_call_may_be_on_other_devices_unless_they_are_updated_together():
    arrays = [[nd.ones((3,), ctx=ctx) for ctx in contexts(k)] for k in (2, 3)]
    store = make_kvstore("sharded-optimizer")
    store.set_optimizer(mx.optimizer.SGD())
    weights = [[array.copy() for array in of_key] for of_key in arrays]
    with pytest.raises(
        KVStoreError,
        match="kvstore 'sharded-optimizer', key 'a' is on 2 devices, but key 'b' is on 3: use the same "
        "devices for all keys of a call",
    ):
        store.pushpull(["a", "b"], arrays, out=weights)
    assert all((array.asnumpy() == 1).all() for of_key in (*arrays, *weights) for array in of_key)
    make_kvstore("ring").pushpull(["a", "b"], arrays)
    assert [array.asnumpy()[0] for of_key in arrays for array in of_key] == [2, 2, 3, 3, 3]


@pytest.mark.parametrize("trainer_class", [gluon.Trainer, BucketedTrainer])
def test_gradients_are_added_over_several_backwards(trainer_class):
    ctxs, results = contexts(3), []
    for name in ("device", *STORES):
        net = make_small_net(ctxs)
        net.collect_params().setattr("grad_req", "add")
        updates = trainer_class is BucketedTrainer or name == "sharded-optimizer"
        settings = {"kvstore": make_kvstore(name), **({} if updates else {"update_on_kvstore": False})}
        trainer = trainer_class(net.collect_params(), "sgd", {"learning_rate": 0.1}, **settings)
        for batch in BATCHES[:3]:
            train_on_devices(net, SimpleNamespace(step=lambda batch_size: None), ctxs, [batch])
            train_on_devices(net, trainer, ctxs, [batch])
            net.collect_params().zero_grad()
        results.append(parameter_arrays(net))
    assert all(relative_distance(result, results[0]) < 1e-5 for result in results[1:])


def train_without_some_shards(store):
    """Return the parameters on the third device."""
    ctxs = contexts(3)
    net = make_small_net(ctxs)
    trainer = BucketedTrainer(net.collect_params(), "sgd", {}, make_kvstore(store))
    step = DataParallelStep(net, LOSS, trainer, ctxs, identity)
    for (images, labels), size in zip(BATCHES, [3, 2, 1, 2, 3]):
        step(shard_batch((images[:size], labels[:size]), ctxs))
    return parameter_arrays(net, ctxs[2])


@pytest.fixture(scope="module")
def parameters_without_some_shards():
    return train_without_some_shards("device")


@pytest.mark.parametrize("name", STORES)
def test_a_device_without_a_shard_adds_nothing(name, parameters_without_some_shards):
    assert relative_distance(train_without_some_shards(name), parameters_without_some_shards) < 1e-5


@pytest.fixture(scope="module")
def parameters_of_one_device():
    return parameter_arrays(train_small_net(gluon.Trainer, None, "sgd", contexts(1))[0])


@pytest.mark.parametrize("name", STORES)
def test_one_device_needs_no_schedule_and_still_trains(name, parameters_of_one_device):
    net, _ = train_small_net(BucketedTrainer, make_kvstore(name), "sgd", contexts(1))
    assert arrays_equal(parameter_arrays(net), parameters_of_one_device)


def test_an_order_changes_the_ranks_of_devices_and_not_the_sum():
    ctxs = contexts(4)
    store = ScheduleKVStore("ring", order=(0, 3, 2, 1))
    assert store.schedule(4).steps[0][0][:2] == (0, 3)
    arrays = [nd.full((5,), rank, ctx=ctx) for rank, ctx in enumerate(ctxs)]
    store.pushpull(0, arrays)
    assert all((array.asnumpy() == 6).all() for array in arrays)


def arrays_of(ctxs, sizes=(3, 3), dtypes=("float32", "float32")):
    return [nd.ones((size,), ctx, dtype) for size, ctx, dtype in zip(sizes, ctxs, dtypes)]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (lambda ctxs: arrays_of(ctxs, sizes=(3, 4)), "use the same shape and type"),
        (lambda ctxs: arrays_of(ctxs, dtypes=("float32", "float64")), "use the same shape and type"),
        (lambda ctxs: [nd.sparse.zeros("row_sparse", (3, 1), ctx=ctx) for ctx in ctxs], "sparse"),
    ],
)
def test_arrays_that_cannot_be_summed_are_refused_and_unchanged(arrays, message):
    arrays = arrays(contexts(2))
    with pytest.raises(KVStoreError, match=message):
        make_kvstore("ring").pushpull("weight", arrays)
    assert all((array.asnumpy() == array.asnumpy().flat[0]).all() for array in arrays)


CANNOT_STORE = r"cannot be written to {} on [cg]pu\({}\)"


@pytest.mark.parametrize(
    ("name", "outs", "message"),
    [
        ("ring", lambda ctxs: arrays_of(ctxs, (4, 4)), CANNOT_STORE.format(r"float32\[4\]", 0)),
        ("sharded-optimizer", lambda ctxs: arrays_of(ctxs[:1]), "2 arrays and 1 outputs"),
        ("sharded-optimizer", lambda ctxs: arrays_of(ctxs[::-1]), CANNOT_STORE.format(r"float32\[3\]", 1)),
        (
            "sharded-optimizer",
            lambda ctxs: arrays_of(ctxs, dtypes=("int32",) * 2),
            CANNOT_STORE.format(r"int32\[3\]", 0),
        ),
    ],
)
def test_outputs_that_do_not_fit_are_refused_and_unchanged(name, outs, message):
    store, ctxs = make_kvstore(name), contexts(2)
    outs = outs(ctxs)
    if name == "sharded-optimizer":
        store.set_optimizer(mx.optimizer.SGD())
    with pytest.raises(KVStoreError, match=message):
        store.pushpull("weight", [nd.full((3,), 2, ctx=ctx) for ctx in ctxs], out=outs)
    assert all((out.asnumpy() == 1).all() for out in outs)


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(10, 3, sparse_grad=True)
    embedding.initialize(ctx=contexts(2))
    trainer = gluon.Trainer(embedding.collect_params(), "sgd", kvstore=make_kvstore("ring"))
    with pytest.raises(ValueError, match="sparse gradients"):
        trainer.step(1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["device", *STORES])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_store_trains_the_digits_as_well_as_device(name, optimizer, empty_cwd):
    settings = {"sgd": {"lr": 0.03, "momentum": 0.9}, "adam": {"lr": 0.002}}[optimizer]
    with pytest.warns(UserWarning, match="are used instead"):
        config = TrainConfig(gpus=3, kvstore=name, epochs=10, optimizer=optimizer, **settings)
        assert train(config).val_accuracy >= 0.96


# --- stores whose schedules are made for links and chosen by size


@pairwise(
    sizes=[(1,), (7, 1000), (1_500_000,)],
    machine_and_count=[("p3.16xlarge", 8), ("p3.8xlarge", 4), (None, 5)],
    name=list(TOPOLOGY_AWARE),
)
def test_sums_are_exact_and_equal_on_all_devices(name, machine_and_count, sizes):
    machine, count = machine_and_count
    ctxs, random = contexts(count), np.random.RandomState(1)
    store = make_kvstore(name, ctxs, machine)
    values = [random.randint(-99, 99, (count, size)).astype("float32") for size in sizes]
    arrays = [[nd.array(row, ctx=ctx) for row, ctx in zip(value, ctxs)] for value in values]
    store.pushpull(list(range(len(sizes))), arrays)
    for value, of_key in zip(values, arrays):
        for array in of_key:
            np.testing.assert_array_equal(array.asnumpy(), value.sum(0))


def test_small_and_large_sums_take_the_schedule_that_is_cheapest_for_them():
    topology, ctxs = make_topology("p3.16xlarge"), contexts(8)
    steps = []
    for size in (100, 4_000_000):
        store = make_kvstore("synthesized", ctxs, "p3.16xlarge")
        store.pushpull(0, [nd.ones((size,), ctx=ctx) for ctx in ctxs])
        expected = make_for_links("synthesized", topology, 8).cheapest(4 * size)
        assert store.transfers_run == expected.transfers
        steps.append(len(expected.steps))
    assert steps == [len(result.schedule.steps) for result in find_stored_schedules(topology)] == [4, 5]


@pytest.mark.parametrize("old", RENAMED_KVSTORES)
def test_an_old_name_makes_the_same_store_with_a_warning(old):
    with pytest.warns(DeprecationWarning, match=f"^kvstore {old!r} is now {RENAMED_KVSTORES[old]!r}$") as warned:
        assert make_kvstore(old).type == RENAMED_KVSTORES[old]
    assert [warning.filename for warning in warned] == [__file__]


def test_more_devices_than_stored_schedules_are_refused():
    with pytest.raises(KVStoreError, match="there is no stored schedule for the 9 devices"):
        make_kvstore("synthesized").placement(contexts(9))


@pytest.fixture
def users_file(tmp_path):
    """Return a topology file with a schedule that sums on device 2 in one chunk, and the schedule."""
    placed = make_schedule("star", 3).placed([2, 0, 1])
    topology = make_topology("g4dn.12xlarge", 3)
    text = schedules_file_text(topology, [SynthesizedSchedule(placed, 9.0, 1.0)])
    (tmp_path / "f.json").write_text(text, encoding="utf-8")
    return tmp_path / "f.json", placed


@pytest.mark.parametrize("name", ["synthesized", "auto"])
def test_schedules_of_a_users_file_sum(users_file, name):
    (path, placed), ctxs = users_file, contexts(3)
    store = make_kvstore(name, ctxs, str(path))
    arrays = [nd.full((5,), 2**rank, ctx=ctx) for rank, ctx in enumerate(ctxs)]
    store.pushpull(0, arrays)
    assert all((array.asnumpy() == 7).all() for array in arrays)
    schedules = store.schedules(ctxs).schedules
    if name == "synthesized":
        assert [schedule.steps for schedule in schedules] == [placed.steps]
        assert store.transfers_run == placed.transfers
        assert store.placement(ctxs).reason == f"by the links of {path}"
