"""A batch gives the same losses each time, on any number of devices, whatever lay in memory before.

MXNet keeps the order in which oneDNN left reused memory, for another shape, and could garble what
is copied into it.
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


def repeat_batch(net, batch, ctxs):
    """Return the losses of repeated steps at a vanishing rate, and the last gradients."""
    step = make_step(net, ctxs, sync_bn=True, learning_rate=1e-12)
    losses = [sum(of_devices) for of_devices in train_steps(step, [batch] * REPEATS, ctxs)]
    trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
    return losses, np.concatenate([param.grad(ctxs[0]).asnumpy().ravel() for param in trained])


def make_pointwise_net(channels, wide, ctxs):
    """Make layers as at the end of a MobileNet: arrays of channels are as large as those of images."""
    mx.random.seed(0)
    net = nn.HybridSequential()
    shapes = ((channels, 3, 1), (channels, 3, channels), (wide, 1, 1))
    for out, kernel, groups in shapes:
        options = dict(strides=1 + (kernel > 1), padding=kernel // 2, groups=groups)
        net.add(nn.Conv2D(out, kernel, use_bias=False, **options), nn.BatchNorm())
        net.add(nn.HybridLambda(lambda F, x: F.clip(x, 0, 6)))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, 3, 4, 4), ctx=ctxs[0]))
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
    results = []
    for count in (1, k):
        ctxs = devices(count, threads=1)
        results.append(repeat_batch(make_pointwise_net(channels, wide, ctxs), batch, ctxs))
    (expected, expected_gradient), (losses, gradient) = results
    assert losses == pytest.approx(expected, rel=1e-5)
    assert relative_distance([gradient], [expected_gradient]) <= 1e-3


@pytest.mark.long
@pytest.mark.parametrize("k", [3, 4, 5])
@pytest.mark.parametrize("name", NARROW)
def test_gluoncvs_narrow_networks_give_the_losses_of_one_device(name, k):
    (batch,) = random_batches([16 * k], shape=(3, 32, 32))
    losses = []
    for count in (1, k):
        ctxs = devices(count, threads=1)
        mx.random.seed(0)
        losses.append(repeat_batch(make_initialized_net(f"gluoncv:{name}", ctxs=ctxs), batch, ctxs)[0])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
