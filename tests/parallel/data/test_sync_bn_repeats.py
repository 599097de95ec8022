"""The same batch gives the same losses again and again, on any number of devices, whatever lay in
memory before.

Arrays that go to another device are copied into memory that has been used before. MXNet keeps the
order in which oneDNN left such memory, for a shape that was another one's, and could garble what is
written there.
"""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.completed import make_initialized_net
from support.devices import devices
from support.examples import examples
from support.reference import random_batches, relative_distance
from support.steps import make_step, train_steps

REPEATS = 4
NARROW = ["mobilenet0.25", "mobilenet0.5", "mobilenetv2_0.25", "mobilenetv2_0.5", "cifar_resnet20_v2"]


def repeated(net, batch, ctxs):
    """The losses of the same batch, four times at a vanishing rate, and the last time's
    gradients.
    """
    params = net.collect_params()
    step = make_step(net, ctxs, sync_bn=True, learning_rate=1e-12)
    losses = [sum(of_devices) for of_devices in train_steps(step, [batch] * REPEATS, ctxs)]
    trained = [param for param in params.values() if param.grad_req != "null"]
    return losses, [param.grad(ctxs[0]).asnumpy() for param in trained]


def pointwise(channels, wide):
    """As at the end of a MobileNet: so few pixels that arrays of channels are as large as those of
    images.
    """
    net = nn.HybridSequential()
    shapes = ((channels, 3, 1), (channels, 3, channels), (wide, 1, 1))
    for out, kernel, groups in shapes:
        options = dict(strides=1 + (kernel > 1), padding=kernel // 2, groups=groups)
        net.add(nn.Conv2D(out, kernel, use_bias=False, **options), nn.BatchNorm())
        net.add(nn.HybridLambda(lambda F, x: F.clip(x, 0, 6)))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    return net


def at_its_start(make, shape, ctxs):
    mx.random.seed(0)
    net = make()
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *shape), ctx=ctxs[0]))
    return net


@examples(4, 6)
@given(
    k=st.integers(3, 5),
    channels=st.sampled_from([2, 3, 5, 8, 13, 40]),
    wide=st.sampled_from([7, 16, 90, 1280]),
    each=st.integers(2, 5),
)
@example(k=3, channels=40, wide=1280, each=4)
def test_the_same_batch_gives_the_losses_and_gradients_of_one_device(k, channels, wide, each):
    (batch,) = random_batches([k * each], shape=(3, 4, 4))
    found = []
    for count in (1, k):
        ctxs = devices(count, threads=1)
        net = at_its_start(lambda: pointwise(channels, wide), (3, 4, 4), ctxs)
        found.append(repeated(net, batch, ctxs))
    (expected, expected_grads), (losses, grads) = found
    assert losses == pytest.approx(expected, rel=1e-5)
    whole, expected_whole = (np.concatenate([g.ravel() for g in all_]) for all_ in (grads, expected_grads))
    assert relative_distance([whole], [expected_whole]) <= 1e-3


@pytest.mark.long
@pytest.mark.parametrize("k", [3, 4, 5])
@pytest.mark.parametrize("name", NARROW)
def test_gluoncvs_narrow_networks_give_the_losses_of_one_device(name, k):
    (batch,) = random_batches([16 * k], shape=(3, 32, 32))
    found = []
    for count in (1, k):
        ctxs = devices(count, threads=1)
        mx.random.seed(0)
        found.append(repeated(make_initialized_net(f"gluoncv:{name}", ctxs=ctxs), batch, ctxs)[0])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
