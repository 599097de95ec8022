"""How often a step launches, waits and copies: what the schedule says, and nothing besides the
network's own work.
"""

import json
import re

import mxnet as mx
import numpy as np
import pytest
from gpus.commands import HERE, run_python
from gpus.counts import COUNTED, STORES, count_gluon_operations, count_operations
from gpus.machines import v100s
from gpus.simulated import counting, delays
from mxnet import nd
from mxnet.gluon import nn
from support.processes import REPOSITORY

from gluonlab.bucketed_trainer.buckets import GPU_BUCKET_BYTES
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.collectives.algorithms import ALGORITHMS, HALVES, make_schedule
from gluonlab.config import TrainConfig
from gluonlab.data.loading.augmentation import Augment
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.sets.dataset import ArraySplit
from gluonlab.kvstores.sharded_optimizer import ShardedKVStore
from gluonlab.training.plan import make_plan

GPUS = [mx.gpu(device) for device in range(8)]
SHAPE = (1, 4, 4)
MIB = 2**20


def dense(ctxs, widths=(24, 24, 24, 10)):
    net = nn.HybridSequential()
    for width in widths:
        net.add(nn.Dense(width, activation="relu"))
    net.initialize(ctx=ctxs)
    for ctx in ctxs:
        net(nd.zeros((1, *SHAPE), ctx=ctx))
    return net


@pytest.fixture(scope="module", autouse=True)
def train_once():
    """MXNet takes scratch memory for a GPU when it first trains there, and keeps it."""
    count_operations(dense(GPUS), GPUS, "ring", SHAPE)


def count_in_process(folder, gpus, *options):
    """What counts.py prints as JSON, of a process of its own in which nothing is computed."""
    machine = v100s(gpus, computes=False, promises_peers=True)
    command = [f"{HERE}/counts.py", "--json", "--gpus", str(gpus), *options]
    process = run_python(machine, folder, *command, timeout=600)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def numbers_in(cells):
    return [int(cell.replace(",", "")) for cell in cells]


def count_transfers(name, world_size):
    """Its additions, and its messages: all that one rank sends another in a step."""
    schedule = make_schedule(name, world_size)
    additions = sum(transfer.op == "add" for step in schedule.steps for transfer in step)
    return additions, sum(len({(transfer.src, transfer.dst) for transfer in step}) for step in schedule.steps)


@pytest.mark.parametrize("world_size", [3, 4, 8])
@pytest.mark.parametrize("store", [*sorted(ALGORITHMS), "sharded-optimizer"])
def test_beyond_the_networks_own_work_are_the_schedules_additions_and_messages(store, world_size):
    """The network's own work is that of as many devices alone, each with all of the update."""
    own = count_operations(dense(GPUS[:1]), GPUS[:1], None, SHAPE, bucket_bytes=2400)
    result = count_operations(dense(GPUS[:world_size]), GPUS[:world_size], store, SHAPE, bucket_bytes=2400)
    additions, messages = count_transfers("sharded" if store == "sharded-optimizer" else store, world_size)
    assert result.buckets == own.buckets >= 3
    assert result.launches - world_size * own.launches <= result.buckets * additions
    assert 0 < result.copies_direct <= result.buckets * messages
    assert result.copies_staged == 0
    waits = result.stream_synchronizations - world_size * own.stream_synchronizations
    assert waits <= result.buckets * (additions + messages)


def test_one_kernel_adds_three_arrays_to_a_fourth():
    """Each of 8 devices adds 7 parts to its own: by 3 kernels."""
    own, result = (
        count_operations(dense(GPUS[:n]), GPUS[:n], store, SHAPE) for n, store in ((1, None), (8, "sharded"))
    )
    assert result.launches - 8 * own.launches == 8 * 3


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory):
    """Counts of a step of ResNet-50 on 8 GPUs, by store.

    Nothing is computed, in a process of its own.
    """
    return count_in_process(tmp_path_factory.mktemp("machine"), 8)


def test_resnet50_under_a_ring_costs_little_more_than_the_device_store_once_did(resnet50):
    """It had 560 launches and 858 synchronizations, in 26 buckets of 4 MiB."""
    ring = resnet50["ring"]
    assert ring["buckets"] == 4
    assert ring["launches"] <= 1.3 * 560 and ring["stream_synchronizations"] <= 1.3 * 858
    assert all(counts["copies_staged"] == 0 for counts in resnet50.values())


def test_the_page_has_these_counts(resnet50):
    """python tests/gpus/counts.py, as its first lines say, prints the rows."""
    text = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_-]+)` \|((?: [\d,]+ → [\d,]+ \|){5})$", text, re.MULTILINE)
    documented = {store: numbers_in(re.findall(r"→ ([\d,]+)", cells)) for store, cells in rows}
    now = {store: [counts[name] for name in ("buckets", *COUNTED)] for store, counts in resnet50.items()}
    assert set(documented) == set(STORES)
    assert documented == now


@pytest.mark.parametrize("world_size", [2, 8])
@pytest.mark.parametrize("store", [*sorted(ALGORITHMS), "sharded-optimizer"])
def test_under_gluons_trainer_each_parameter_costs_additions_and_messages(store, world_size):
    """On top of what the devices do alone; the owners of a sharded optimizer update each parameter
    by itself.
    """
    own = count_gluon_operations(dense(GPUS[:1]), GPUS[:1], None, SHAPE)
    result = count_gluon_operations(dense(GPUS[:world_size]), GPUS[:world_size], store, SHAPE)
    sharded = store == "sharded-optimizer"
    additions, messages = count_transfers("sharded" if sharded else store, world_size)
    updates = world_size if sharded else 0
    if (store, world_size) == ("bidirectional_ring", 2):
        messages *= 2  # both rings are the same pair, and their chunks no neighbors
    assert result.buckets == own.buckets == 8
    assert result.launches - world_size * own.launches <= result.buckets * (additions + updates)
    assert 0 < result.copies_direct <= result.buckets * messages
    assert result.copies_staged == 0
    waits = result.stream_synchronizations - world_size * own.stream_synchronizations
    assert waits <= result.buckets * (additions + messages + updates)


@pytest.mark.parametrize("name", sorted(HALVES))
@pytest.mark.parametrize("world_size", [4, 8])
def test_a_sharded_optimizer_that_keeps_gradients_sends_neighboring_chunks_together(name, world_size):
    """One message for each pair of devices and step, as where gradients are summed in place."""
    ctxs, sizes = GPUS[:world_size], (64, 40)
    grads, weights = ([[nd.ones((size,), ctx=ctx) for ctx in ctxs] for size in sizes] for _ in range(2))
    store = ShardedKVStore(name)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    for _ in range(2):  # the first one makes its memory
        with counting() as happened:
            store.pushpull([0, 1], grads, out=weights)
    schedules = [half(world_size) for half in HALVES[name]]
    messages = sum(len({(t.src, t.dst) for t in step}) for schedule in schedules for step in schedule.steps)
    assert happened.copies_direct <= messages * len(sizes) + len(sizes)
    assert all((array.asnumpy() == 1 - 2 * world_size).all() for of_key in weights for array in of_key)
    assert all((array.asnumpy() == 1).all() for of_key in grads for array in of_key)


def test_the_page_has_the_counts_of_gluons_trainer(tmp_path_factory):
    """python tests/gpus/counts.py --gluon --model resnet8 prints the columns, on machines of 2 and
    8 GPUs.
    """
    text = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_-]+)` \|((?: [\d,]+ \|){6})$", text, re.MULTILINE)
    documented = {store: numbers_in(cells.split("|")[:-1]) for store, cells in rows}
    folders = {gpus: tmp_path_factory.mktemp("machine") for gpus in (2, 8)}
    result = [count_in_process(folder, gpus, "--gluon", "--model", "resnet8") for gpus, folder in folders.items()]
    assert all(counts["copies_staged"] == 0 for of_stores in result for counts in of_stores.values())
    now = {store: [of[store][name] for of in result for name in COUNTED[:3]] for store in STORES}
    assert documented == now


def test_buckets_are_large_on_gpus_and_small_on_cpu_devices():
    for ctxs, most in ((GPUS[:2], GPU_BUCKET_BYTES), ([mx.cpu(0), mx.cpu(1)], 4 * MIB)):
        trainer = BucketedTrainer(dense(ctxs).collect_params(), "sgd", {}, "device")
        assert trainer.bucket_bytes == most and len(trainer.buckets) == 1
        plan = make_plan(TrainConfig(devices=[str(ctx) for ctx in ctxs]))
        assert plan.settings()["bucket_bytes"] == most and plan.config.bucket_bytes is None


@pytest.mark.parametrize(("store", "least"), [("device", 4), ("ring", 1)])
def test_the_device_store_has_a_bucket_for_each_gpu_to_sum(store, least):
    """Each is summed on one GPU, and others would have nothing to do; those of a schedule are cut
    up for all.
    """
    net = dense(GPUS[:4], (1024, 1024, 1024, 1024, 1024))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {}, store)
    assert least <= len(trainer.buckets) <= 2 * least - 1
    options = BucketedTrainer(
        dense(GPUS[:4], (1024, 1024, 1024)).collect_params(), "sgd", {}, store, bucket_bytes=GPU_BUCKET_BYTES
    )
    assert len(options.buckets) == 1
    nd.waitall()  # what still copies weights when a store goes keeps its memory a little longer


def test_convolutions_and_dense_layers_share_a_bucket():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.Dense(3))
    net.initialize(ctx=GPUS[:2])
    for ctx in GPUS[:2]:
        net(nd.zeros((1, *SHAPE), ctx=ctx))
    assert len(BucketedTrainer(net.collect_params(), "sgd", {}, "ring").buckets) == 1


@pytest.mark.parametrize("prefetch", [0, 2])
def test_streamed_batches_come_from_pinned_memory_as_they_are(prefetch):
    random = np.random.RandomState(0)
    split = ArraySplit(
        random.randint(0, 256, (103, 1, 6, 6)).astype("uint8"), random.randint(0, 10, 103).astype("int32")
    )
    loader = Loader(split, GPUS[:3], 16, shuffle=False, raw=True, prefetch=prefetch)
    for _ in range(2):  # the second epoch fills the buffers of the first
        with counting() as happened:
            batches = list(loader)
        assert (happened.copies_from_pageable, happened.copies_from_pinned) == (0, 7 * 3 * 2)
        for place, held in enumerate((split.images, split.labels)):
            assert (
                np.concatenate([shard.asnumpy() for batch in batches for shard in tuple(batch)[place]]) == held
            ).all()


def test_crops_and_flips_come_from_pinned_memory_as_they_are():
    """Rows and columns for each shard, beside its images and labels; the buffers are used again and
    again.
    """
    random = np.random.RandomState(0)
    split = ArraySplit(
        random.randint(1, 256, (103, 1, 6, 5)).astype("uint8"), random.randint(0, 10, 103).astype("int32")
    )
    ours, theirs = (Loader(split, ctxs, 16, raw=True, augment=Augment(2, True)) for ctxs in (GPUS[:3], [mx.cpu()]))
    for _ in range(2):
        with delays(300, seed=1), counting() as happened:
            batches = list(ours)
        assert (happened.copies_from_pageable, happened.copies_from_pinned) == (0, 7 * 3 * 4)
        for (xs, _), (expected, _) in zip(batches, theirs):
            assert (np.concatenate([x.asnumpy() for x in xs]) == expected[0].asnumpy()).all()


def test_two_iterations_side_by_side_do_not_write_into_each_others_memory():
    """Image i is full of the number i, which is its label."""
    labels = np.arange(60, dtype="int32")
    split = ArraySplit(np.tile(labels.astype("uint8").reshape(-1, 1, 1, 1), (1, 1, 6, 6)), labels)
    loader = Loader(split, GPUS[:2], 6, raw=True)
    pairs = list(zip(iter(loader), iter(loader)))
    for xs, ys in (batch for pair in pairs for batch in pair):
        for images, numbers in zip(xs, ys):
            assert (images.asnumpy() == numbers.asnumpy().reshape(-1, 1, 1, 1)).all()
    assert len(pairs) > 2
