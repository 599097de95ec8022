"""Data parallelism over processes: whatever part of a batch each has, the update is that of all."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import device
from support.examples import examples
from support.process_group import run_in_threads
from support.reference import identity, parameter_arrays, random_batches, relative_distance, train_on_one_device

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import Batch, shard
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.parallel.data.strategy import DataParallelStep

SHAPE = (1, 3, 3)


def made(ctxs):
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=9, activation="tanh"), nn.Dense(4, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    return net


@pytest.mark.cpu_only("MXNet keeps scratch memory for each thread, which counts as left over")
@examples(4, 5)
@given(
    counts=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
)
def test_the_gradients_of_all_devices_add_up_to_those_of_the_batch(counts, sizes):
    """Also where the batch is smaller than the number of devices, or of processes: whoever has no
    shard adds nothing, after steps in which it had one.
    """
    batches = random_batches([sum(counts), *sizes], shape=SHAPE, classes=4)
    places = [range(counts[0]), range(counts[0], sum(counts))]
    ctxs_of = [[device(place) for place in of_process] for of_process in places]
    nets = []
    for ctxs in ctxs_of:
        # names as in a process of its own: trainers sort parameters by name
        with mx.name.NameManager():
            nets.append(made(ctxs))

    def work(group):
        ctxs, net = ctxs_of[group.rank], nets[group.rank]
        store = GroupKVStore(make_kvstore("ring"), group)
        trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        step = DataParallelStep(net, loss, trainer, ctxs, identity, group=group)
        for images, labels in batches:
            own = np.array_split(np.arange(len(images)), group.size)[group.rank]
            xs, ys = (shard(nd.array(array[own]), ctxs) for array in (images, labels))
            step(Batch(xs, ys, len(images)))
        return [parameter_arrays(net, ctx) for ctx in ctxs]

    expected = train_on_one_device(made([device()]), batches, "sgd", learning_rate=0.1)
    for process in run_in_threads(2, work):
        for replica in process:
            assert relative_distance(replica, expected) <= 1e-5
