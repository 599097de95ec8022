"""Predictions between backward and step change no bit of the update, on any devices."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mxnet import autograd, nd
from mxnet.gluon import nn
from support.devices import contexts
from support.examples import examples
from support.reference import arrays_equal

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.optimizers import OPTIMIZERS
from gluonlab.optimizers.optimizer_registry import ELEMENT_WISE, MXNET_ELEMENT_WISE

CHANNELS, SIZE = 8, 6  # oneDNN arranges 8 channels, or a multiple, in blocks
KINDS = list(dict.fromkeys([*MXNET_ELEMENT_WISE, *(kind.cls for kind in OPTIMIZERS.values())]))
KINDS.remove(mx.optimizer.Adamax)  # divides 0 by 0 here


def train(kind, k, kvstore, predicting, compiled):
    """Return the parameters of each device. ``predicting[step]``: devices that predict before it."""
    ctxs, random = contexts(k), np.random.RandomState(0)
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(2 * CHANNELS, 3, in_channels=CHANNELS), nn.Activation("relu"))
    net.add(nn.Conv2D(CHANNELS, 3, in_channels=2 * CHANNELS))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    if compiled:
        net.hybridize()
    options = {"wd": 0.01, "learning_rate": 0.01, **({"momentum": 0.9} if "momentum" in vars(kind()) else {})}
    trainer = BucketedTrainer(net.collect_params(), kind(**options), kvstore=kvstore)
    for numbers in predicting:
        images = random.uniform(-1, 1, (k, 2, CHANNELS, SIZE, SIZE)).astype("float32")
        with autograd.record():
            losses = [(net(nd.array(x, ctx=ctx)) ** 2).sum() for x, ctx in zip(images, ctxs)]
        autograd.backward(losses)
        for device in numbers & set(range(k)):
            net(nd.array(images[device], ctx=ctxs[device])).wait_to_read()
        trainer.step(2 * k)
    return [[param.data(ctx).asnumpy() for param in net.collect_params().values()] for ctx in ctxs]


@pytest.mark.parametrize("kind", KINDS)
@examples(1, 4)
@given(
    k=st.integers(1, 3),
    store=st.sampled_from(["device", "ring", "sharded-optimizer"]),
    predicting=st.lists(st.sets(st.integers(0, 2)), min_size=2, max_size=4),
    compiled=st.booleans(),
)
@example(k=2, store="device", predicting=[{0}, {0}, {0}], compiled=False)
def test_no_bit_depends_on_the_devices_that_predict(kind, k, store, predicting, compiled):
    if kind not in ELEMENT_WISE and store == "sharded-optimizer":
        store = "ring"
    [expected, *_] = train(kind, k, store, [set()] * len(predicting), compiled)
    for replica in train(kind, k, store, predicting, compiled):
        assert arrays_equal(replica, expected)
