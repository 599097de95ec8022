"""Small runs that the tests of the kvstores share."""

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

from gluonlab.collectives.algorithms import ALGORITHMS
from support.reference import random_batches, train_on_devices

# multi_ring is the same store as synthesised, and behind a switch the schedule of ring
STORES = [*ALGORITHMS, "synthesised", "sharded-optimizer"]
OPTIMIZERS = {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.01}}
BATCHES = random_batches([7, 9, 8, 7, 3], shape=(1, 4, 4), classes=4)


def small_net(ctxs):
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="net_")
    # the same names every time: gluon.Trainer's files go by their order, and dense10 is before
    # dense9
    with net.name_scope():
        net.add(nn.Dense(7, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(nd.zeros((1, 1, 4, 4), ctx=ctxs[0]))
    return net


def trained(trainer_class, store, optimizer, ctxs, batches=BATCHES):
    """The net and its trainer after one step per batch."""
    net = small_net(ctxs)
    trainer = trainer_class(
        net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=store
    )
    train_on_devices(net, trainer, ctxs, batches)
    return net, trainer


def after_pushpull(store, arrays, together):
    """What a store's pushpull leaves in ``arrays[key][device]``, as numpy arrays.

    ``together``: all keys in one call, or else one call for each.
    """
    if together:
        store.pushpull(list(range(len(arrays))), arrays)
    else:
        for key, of_key in enumerate(arrays):
            store.pushpull(key, of_key, priority=-key)
    return [[array.asnumpy() for array in of_key] for of_key in arrays]
