"""Small runs that the tests of the kvstores share."""

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

# multi_ring is the same store as synthesised, and behind a switch the schedule of ring
STORES = [*ALGORITHMS, "synthesised", "sharded-optimizer"]
OPTIMIZERS = {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.01}}
BATCHES = random_batches([7, 9, 8, 7, 3], shape=(1, 4, 4), classes=4)


def make_small_net(ctxs):
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="net_")
    # the same names every time: gluon.Trainer's files go by their order, and dense10 is before
    # dense9
    with net.name_scope():
        net.add(nn.Dense(7, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(nd.zeros((1, 1, 4, 4), ctx=ctxs[0]))
    return net


def train_small_net(trainer_class, store, optimizer, ctxs, batches=BATCHES):
    """The net and its trainer after one step per batch."""
    net = make_small_net(ctxs)
    trainer = trainer_class(
        net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=store
    )
    train_on_devices(net, trainer, ctxs, batches)
    return net, trainer


def rank_devices(group, counts):
    """As many devices as ``counts`` says, which no other process has."""
    begin = sum(counts[: group.rank])
    return [device(begin + number) for number in range(counts[group.rank])]


def sum_over_processes(counts, turns, name="device", compress=None, together=True, anew=False):
    """What each process has after each turn, and the sums that its group has made.

    Args:
        counts: the devices of each process, which are numbered on from process to process.
        turns: what each device of all has in each turn: arrays ``turns[turn][key][device]``.
        together: all keys are summed in one call, or else in one call each.
        anew: every turn has new arrays.

    Returns:
        For each process ``(found[turn][key][device], group.sums)``.
    """
    begins = [0, *accumulate(counts)]

    def work(group):
        ctxs, arrays, found = rank_devices(group, counts), None, []
        store = GroupKVStore(make_kvstore(name, ctxs), group, compress=compress)
        assert (store.rank, store.num_workers) == (group.rank, len(counts))
        for numbers in turns:
            if arrays is None or anew:
                arrays = [
                    [nd.zeros(every.shape[1:], ctx, every.dtype) for ctx in ctxs]
                    for every in numbers
                ]
            for of_key, every in zip(arrays, numbers):
                for array, own in zip(of_key, every[begins[group.rank] :]):
                    array[:] = nd.array(own, dtype=array.dtype)
            if together:
                store.pushpull(list(range(len(arrays))), arrays)
            else:
                for key, of_key in enumerate(arrays):
                    store.pushpull(key, of_key, priority=-key)
            found.append([[array.asnumpy() for array in of_key] for of_key in arrays])
        return found, group.sums

    return run_in_threads(len(counts), work)
