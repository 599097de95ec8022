"""Small trainings for the tests of kvstores."""

from itertools import accumulate

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.process_group_store import GroupKVStore
from support.devices import device
from support.process_group import run_in_threads
from support.reference import random_batches, train_on_devices

# without multi_ring: it is the store of synthesized, and its schedule behind a switch is ring
STORES = [*ALGORITHMS, "synthesized", "sharded-optimizer"]
OPTIMIZERS = {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.01}}
BATCHES = random_batches([7, 9, 8, 7, 3], shape=(1, 4, 4), classes=4)


def make_small_net(ctxs):
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="net_")
    # Fixed names: the files of gluon.Trainer depend on the order of names, and dense10 precedes
    # dense9.
    with net.name_scope():
        net.add(nn.Dense(7, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(nd.zeros((1, 1, 4, 4), ctx=ctxs[0]))
    return net


def train_small_net(trainer_class, store, optimizer, ctxs, batches=BATCHES):
    """Return the net and its trainer after one step per batch."""
    net = make_small_net(ctxs)
    trainer = trainer_class(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=store)
    train_on_devices(net, trainer, ctxs, batches)
    return net, trainer


def rank_devices(group, counts):
    """Return the devices of a rank, which no other rank has; ``counts``: of each rank."""
    begin = sum(counts[: group.rank])
    return [device(begin + number) for number in range(counts[group.rank])]


def sum_over_processes(counts, turns, name="device", compress=None, together=True, anew=False):
    """Sum arrays over made-up processes in several rounds.

    Args:
        counts: the number of devices of each process.
        turns: the values of all devices, ``turns[round][key][device]``.
        name: the kvstore of each process.
        compress: the compression of gradients.
        together: whether one call sums all keys.
        anew: whether each round has new arrays.

    Returns:
        For each process ``(sums[round][key][device], group.sums)``.
    """
    begins = [0, *accumulate(counts)]

    def work(group):
        ctxs, arrays, sums = rank_devices(group, counts), None, []
        store = GroupKVStore(make_kvstore(name, ctxs), group, compress=compress)
        assert (store.rank, store.num_workers) == (group.rank, len(counts))
        for numbers in turns:
            if arrays is None or anew:
                arrays = [
                    [nd.zeros(device_values.shape[1:], ctx, device_values.dtype) for ctx in ctxs]
                    for device_values in numbers
                ]
            for key_arrays, device_values in zip(arrays, numbers):
                for array, own in zip(key_arrays, device_values[begins[group.rank] :]):
                    array[:] = nd.array(own, dtype=array.dtype)
            if together:
                store.pushpull(list(range(len(arrays))), arrays)
            else:
                for key, key_arrays in enumerate(arrays):
                    store.pushpull(key, key_arrays, priority=-key)
            sums.append([[array.asnumpy() for array in key_arrays] for key_arrays in arrays])
        return sums, group.sums

    return run_in_threads(len(counts), work)
