"""GroupKVStore: sums over the devices of some processes, under kvstore calls and trainers."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import device
from support.kvstore_runs import after_pushpull
from support.process_group import in_processes
from support.reference import distance, random_batches

from gluonlab.data.loading.shards import shard
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.group_store import GroupKVStore
from gluonlab.models import get_model
from gluonlab.update.trainer import BucketedTrainer

LOCAL = ["device", "local", "ring", "sharded", "tree", "hierarchical"]
SHAPES = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4
)


def own_devices(group, counts):
    """As many devices as ``counts`` says, which no other process has."""
    begin = sum(counts[: group.rank])
    return [device(begin + number) for number in range(counts[group.rank])]


def store_on(group, name, ctxs):
    return GroupKVStore(make_kvstore(name, ctxs), group)


@settings(max_examples=10)
@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda all: sum(all) <= 8),
    shapes=SHAPES,
    dtypes=st.lists(st.sampled_from(["float32", "float64", "float16"]), min_size=4, max_size=4),
    name=st.sampled_from(LOCAL),
    together=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_sum_over_all_devices_of_all_processes_is_on_each(
    counts, shapes, dtypes, name, together, seed
):
    """Twice, with other numbers in the same arrays; in one call or a call for each key."""
    random = np.random.RandomState(seed)
    given = [
        [
            [random.uniform(-1, 1, (sum(counts), *shape)).astype(dtype)]
            for shape, dtype in zip(shapes, dtypes)
        ]
        for _ in range(2)
    ]

    def work(group):
        ctxs = own_devices(group, counts)
        store, begin, found = store_on(group, name, ctxs), sum(counts[: group.rank]), []
        assert (store.rank, store.num_workers) == (group.rank, len(counts))
        arrays = [
            [nd.zeros(shape, ctx=ctx, dtype=dtype) for ctx in ctxs]
            for shape, dtype in zip(shapes, dtypes)
        ]
        for numbers in given:
            for of_key, [every] in zip(arrays, numbers):
                for place, array in enumerate(of_key):
                    array[:] = nd.array(every[begin + place], dtype=array.dtype)
            found.append(after_pushpull(store, arrays, together))
        return found

    by_process = in_processes(len(counts), work)
    for turn, numbers in enumerate(given):
        for key, [every] in enumerate(numbers):
            sums = [array for process in by_process for array in process[turn][key]]
            assert len(sums) == sum(counts)
            assert all(np.array_equal(array, sums[0]) for array in sums)  # bits, on every device
            tolerance = 2e-2 if every.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(
                sums[0], every.astype("float64").sum(axis=0), rtol=tolerance, atol=tolerance
            )


def test_a_call_moves_one_flat_array_for_each_type():
    """LeNet's gradients, although Conv2D and Dense call their types otherwise, and buckets
    differ.
    """

    nets = []
    for ctxs in ([device(0), device(1)], [device(2), device(3)]):
        nets.append(get_model("lenet", 10, ctxs))
        nets[-1].initialize(mx.init.Xavier(), ctx=ctxs)
        nets[-1](nd.zeros((1, 1, 28, 28), ctx=ctxs[0]))

    def work(group):
        ctxs, net = own_devices(group, [2, 2]), nets[group.rank]
        trainer = BucketedTrainer(
            net.collect_params(), "sgd", {}, kvstore=store_on(group, "device", ctxs)
        )
        buckets, _ = len(trainer.buckets), group.sums.clear()
        for _ in range(3):
            for param in net.collect_params().values():
                for grad in param.list_grad():
                    grad[:] = 1
            trainer.apply(4)
        return buckets, group.sums, sum(bucket.size for bucket in trainer.buckets)

    for buckets, sums, elements in in_processes(2, work):
        assert sums == [(elements, "float32")] * 3
        assert buckets >= 1


def network(ctxs, seed):
    """With frozen parameters, and parameters that other processes begin with otherwise."""
    mx.random.seed(seed)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, in_channels=1, activation="tanh"),
        nn.BatchNorm(in_channels=4, use_global_stats=True),
        nn.Flatten(),
        nn.Dense(5, in_units=64, activation="tanh"),
        nn.Dense(3, in_units=5),
    )
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net[3].bias.grad_req = "null"
    net[3].bias.set_data(nd.full((5,), 0.1 * seed))
    return net


BATCHES = random_batches([9, 7, 12, 8], shape=(1, 6, 6), classes=3)


def trained(net, trainer, ctxs, rank=0, size=1):
    """A step for each batch; every process takes a part of it, cut among its devices."""
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
    """All begin as rank 0, what is frozen included; clipping is BucketedTrainer's."""
    ours = trainer is BucketedTrainer
    settings = {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01}
    clip = {"clip_norm": 0.2} if ours else {"update_on_kvstore": False}
    alone = network([device()], seed=1)
    begin = [param.data().asnumpy() for param in alone.collect_params().values()]
    [expected] = trained(
        alone, trainer(alone.collect_params(), "sgd", settings, kvstore="device", **clip),
        [device()],
    )  # fmt: skip
    nets = [
        network([device(sum(counts[:rank]) + i) for i in range(counts[rank])], seed=rank + 1)
        for rank in range(2)
    ]

    def work(group):
        ctxs, net = own_devices(group, counts), nets[group.rank]
        made = trainer(
            net.collect_params(), "sgd", settings, kvstore=store_on(group, "device", ctxs), **clip
        )
        if not ours:  # it would ask for rank 0's parameters in its first step, after backward
            made._init_kvstore()
            made._init_params()
        return trained(net, made, ctxs, group.rank, group.size)

    replicas = [replica for process in in_processes(2, work) for replica in process]
    assert distance(expected, begin) > 0.01
    for replica in replicas:
        assert distance(replica, expected) <= 1e-5
        assert all(np.array_equal(one, other) for one, other in zip(replica, replicas[0]))


def test_what_updates_or_sums_over_processes_itself_is_no_local_store():
    def work(group):
        for local, cause in (
            (make_kvstore("sharded-optimizer"), "updates the weights"),
            (GroupKVStore(make_kvstore("ring"), group), "sums over processes itself"),
        ):
            with pytest.raises(KVStoreError, match=f"{cause}.*choose .*'device'"):
                GroupKVStore(local, group)

    in_processes(2, work)
