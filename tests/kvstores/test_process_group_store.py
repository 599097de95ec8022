"""GroupKVStore: sums over the devices of some processes, whole and in float16."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import nn
from support.devices import device
from support.kvstore_runs import rank_devices, sum_over_processes
from support.process_group import run_in_threads
from support.reference import random_batches, relative_distance

from gluonlab.bucketed_trainer.loss_scale import SkipNotFinite
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import shard
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, SummingGroup
from gluonlab.models import get_model

LOCAL = ["device", "local", "ring", "sharded", "tree", "hierarchical"]
SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4)


def store_on(group, ctxs, compress=None):
    return GroupKVStore(make_kvstore("device", ctxs), group, compress=compress)


@settings(max_examples=10)
@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda all: sum(all) <= 8),
    shapes=SHAPES,
    dtypes=st.lists(st.sampled_from(["float32", "float64", "float16"]), min_size=4, max_size=4),
    name=st.sampled_from(LOCAL),
    together=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_sum_over_all_devices_of_all_processes_is_on_each(counts, shapes, dtypes, name, together, seed):
    random, kinds = np.random.RandomState(seed), list(zip(shapes, dtypes))
    turns = [[random.uniform(-1, 1, (sum(counts), *shape)).astype(dtype) for shape, dtype in kinds] for _ in range(2)]
    by_process = sum_over_processes(counts, turns, name, together=together)
    for turn, numbers in enumerate(turns):
        for key, every in enumerate(numbers):
            sums = [array for found, _ in by_process for array in found[turn][key]]
            assert len(sums) == sum(counts)
            assert all(np.array_equal(array, sums[0]) for array in sums)  # bits, on every device
            tolerance = 2e-2 if every.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(sums[0], every.astype("float64").sum(axis=0), rtol=tolerance, atol=tolerance)


def test_a_call_moves_one_flat_array_for_each_type():
    nets = []  # Conv2D and Dense name their types differently
    for ctxs in ([device(0), device(1)], [device(2), device(3)]):
        nets.append(get_model("lenet", 10, ctxs))
        nets[-1].initialize(mx.init.Xavier(), ctx=ctxs)
        nets[-1](nd.zeros((1, 1, 28, 28), ctx=ctxs[0]))

    def work(group):
        ctxs, net = rank_devices(group, [2, 2]), nets[group.rank]
        trainer = BucketedTrainer(net.collect_params(), "sgd", {}, kvstore=store_on(group, ctxs))
        buckets, _ = len(trainer.buckets), group.sums.clear()
        for _ in range(3):
            for param in net.collect_params().values():
                for grad in param.list_grad():
                    grad[:] = 1
            trainer.apply(4)
        return buckets, group.sums, sum(bucket.size for bucket in trainer.buckets)

    for buckets, sums, elements in run_in_threads(2, work):
        assert sums == [(elements, "float32")] * 3
        assert buckets >= 1


def make_net(ctxs, seed):
    """Return a net with frozen parameters and layers numbered from 0, as in a process of its own."""
    mx.random.seed(seed)
    with mx.name.NameManager():
        net = nn.HybridSequential()
        net.add(nn.Conv2D(4, 3, in_channels=1, activation="tanh"), nn.BatchNorm(in_channels=4, use_global_stats=True))
        net.add(nn.Flatten(), nn.Dense(5, in_units=64, activation="tanh"), nn.Dense(3, in_units=5))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net[3].bias.grad_req = "null"
    net[3].bias.set_data(nd.full((5,), 0.1 * seed))
    return net


BATCHES = random_batches([9, 7, 12, 8], shape=(1, 6, 6), classes=3)


def train(net, trainer, ctxs, rank=0, size=1):
    """Train one process of ``size`` on its part of each batch; return the parameters by device."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in BATCHES:
        places = np.array_split(np.arange(len(images)), size)[rank]
        xs, ys = (shard(nd.array(array[places]), ctxs) for array in (images, labels))
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(xs, ys)]
        autograd.backward(losses)
        trainer.step(len(images))
    return [[param.data(ctx).asnumpy() for param in net.collect_params().values()] for ctx in ctxs]


@pytest.mark.cpu_only("MXNet keeps scratch memory for each thread, which counts as left over")
@pytest.mark.parametrize("counts", [[2, 2], [1, 2]], ids=str)
@pytest.mark.parametrize("trainer", [BucketedTrainer, gluon.Trainer])
def test_a_trainer_makes_the_updates_of_one_process_with_all_devices(trainer, counts):
    ours = trainer is BucketedTrainer
    settings = {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01}
    clip = {"clip_norm": 0.2} if ours else {"update_on_kvstore": False}
    alone = make_net([device()], seed=1)
    begin = [param.data().asnumpy() for param in alone.collect_params().values()]
    single = trainer(alone.collect_params(), "sgd", settings, kvstore="device", **clip)
    [expected] = train(alone, single, [device()])
    nets = [make_net([device(sum(counts[:rank]) + i) for i in range(counts[rank])], seed=rank + 1) for rank in range(2)]

    def work(group):
        ctxs, net = rank_devices(group, counts), nets[group.rank]
        made = trainer(net.collect_params(), "sgd", settings, kvstore=store_on(group, ctxs), **clip)
        if not ours:  # it would ask for rank 0's parameters in its first step, after backward
            made._init_kvstore()
            made._init_params()
        return train(net, made, ctxs, group.rank, group.size)

    replicas = [replica for process in run_in_threads(2, work) for replica in process]
    assert relative_distance(expected, begin) > 0.01
    for replica in replicas:
        assert relative_distance(replica, expected) <= 1e-5
        assert all(np.array_equal(one, other) for one, other in zip(replica, replicas[0]))


# --- compress rounds only what processes send each other


@settings(max_examples=10)
@given(
    size=st.integers(2, 3),
    devices=st.integers(1, 2),
    shapes=SHAPES,
    dtype=st.sampled_from(["float32", "float64"]),
    exponent=st.integers(-6, 3),
    seed=st.integers(0, 2**16),
)
def test_sums_are_those_of_numpys_float16_to_the_bit(size, devices, shapes, dtype, exponent, seed):
    # The group of the tests adds in float64 and rounds once, as a sum of two float16 is rounded anyway.
    random = np.random.RandomState(seed)

    def draw(shape):
        return (random.uniform(-9, 9, (size * devices, *shape)).astype(dtype) * 10.0**exponent).astype(dtype)

    turns = [[draw(shape) for shape in shapes] for _ in range(2)]
    by_process = sum_over_processes([devices] * size, turns, compress="fp16")
    for found, sums in by_process:
        assert [kind for _, kind in sums] == ["float16"] * 2  # one flat array for each turn
        for numbers, of_turn in zip(turns, found):
            for every, on_devices in zip(numbers, of_turn):
                sent = every.reshape(size, devices, *every.shape[1:]).sum(axis=1).astype("float16")
                total = sent.astype("float64").sum(axis=0).astype("float16").astype(dtype)
                for array in on_devices:
                    assert array.dtype == dtype and np.array_equal(array, total)


@pytest.mark.parametrize("compress", ["fp16", "2bit:0.5"])
def test_whole_numbers_and_broadcasts_are_exact(compress):
    def work(group):
        [ctx] = rank_devices(group, [1, 1])
        store = store_on(group, [ctx], compress)
        begin = nd.array([1 / 3, 1e30, 1e-30], ctx)
        store.broadcast("begin", begin, begin)
        counts = nd.array([2**20 + 1, group.rank], ctx, dtype="int32")
        halves = nd.array([0.25, group.rank], ctx, dtype="float16")
        store.pushpull(["counts", "halves"], [[counts], [halves]])
        return begin.asnumpy(), counts.asnumpy(), halves.asnumpy(), group.sums[-2:]

    for begin, counts, halves, sums in run_in_threads(2, work):
        assert np.array_equal(begin, np.array([1 / 3, 1e30, 1e-30], "float32"))
        assert (counts.tolist(), halves.tolist()) == ([2**21 + 2, 1], [0.5, 1.0])
        assert sorted(sums) == [(2, "float16"), (2, "int32")]


@pytest.mark.parametrize("compress", [None, "fp16"])
def test_all_processes_skip_a_step_whose_sum_overflows_float16(compress):
    def work(group):
        ctxs = rank_devices(group, [1, 1])
        net = gluon.nn.Dense(2, in_units=3)
        net.initialize(init.One(), ctx=ctxs)
        scale = SkipNotFinite()
        store, params = store_on(group, ctxs, compress), net.collect_params()
        trainer = BucketedTrainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store, loss_scale=scale)
        for grad in (4e4, 1.0):
            for param in net.collect_params().values():
                param.list_grad()[0][:] = grad
            trainer.apply(2)
        return net.weight.data(ctxs[0]).asnumpy(), scale.skipped

    for weight, skipped in run_in_threads(2, work):  # the sums are 80,000 and 2
        assert skipped == (compress == "fp16")
        assert (weight == 1 - 1 - (0 if skipped else 4e4)).all()


# --- mistakes


def make_group(servers=0):
    group = SummingGroup(0, 2)
    group.servers = servers
    return group


def make_store(name="device", group=None, **options):
    return GroupKVStore(make_kvstore(name), group or make_group(), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_store("sharded-optimizer"), "updates the weights.*choose .*'device'"),
        (lambda: GroupKVStore(make_store("ring"), make_group()), "sums over processes itself.*choose .*'dev"),
        (lambda: make_store(compress="fp16"), "a group cannot send that: it is possible with Horovod"),
        (lambda: make_store(compress="fp16", group=SINGLE_PROCESS), "a process alone cannot send that"),
        (lambda: make_store(compress="4bit"), "^compress 4bit: give 2bit:THRESHOLD, such as .*, or fp16"),
        (lambda: make_store(compress="2bit:-1"), "^compress 2bit:-1: .*give a number"),
        (lambda: make_store(compress="2bit:nan"), "^compress 2bit:nan: "),
        (
            lambda: make_store(compress="2bit:0.5", on_servers=True, group=make_group(servers=1)),
            "^compress 2bit:0.5 and on_servers contradict each other: .*: leave one of them out$",
        ),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(call, message):
    with pytest.raises(KVStoreError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
