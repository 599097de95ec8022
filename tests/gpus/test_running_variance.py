"""BatchNorm's running variances on simulated GPUs, whose cuDNN divides by n - 1: those of CPU
devices, where MXNet divides by n.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.reference import identity, random_batches

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches, make_local_batch, shard
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep

SHAPE = (2, 2, 2)


def make_net(ctxs):
    """BatchNorm over images of four pixels, and then over one value for each image."""
    mx.random.seed(5)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 1, in_channels=2),
            nn.BatchNorm(in_channels=4),
            nn.GlobalAvgPool2D(),
            nn.BatchNorm(in_channels=4, momentum=0.5),
            nn.Dense(3, in_units=4),
        )
    net.initialize(mx.init.Normal(0.5), ctx=mx.cpu())
    net.collect_params().reset_ctx(ctxs)
    return net


def statistics_after(ctxs, sizes, cut=WHOLE_SHARDS, sync_bn=False):
    """All running statistics on each device, after an epoch of batches of these sizes, and another."""
    net = make_net(ctxs)
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, make_kvstore("device", ctxs))
    step = DataParallelStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, identity, cut, sync_bn)
    for _ in range(2):
        for images, labels in random_batches(sizes, shape=SHAPE, classes=3):
            xs, ys = shard(nd.array(images), ctxs), shard(nd.array(labels), ctxs)
            step(make_local_batch(xs, ys))
        nd.waitall()  # on the CPU it is backward that moves them, unknown to the engine
        step.statistics.average()
    names = [name for name in net.collect_params() if "running" in name]
    return [{name: net.collect_params()[name].data(ctx).asnumpy() for name in names} for ctx in ctxs]


@pytest.fixture(scope="module", autouse=True)
def scratch_memory():
    """MXNet keeps the scratch memory that its operators have once needed: it is there before the
    first test counts.
    """
    statistics_after([mx.gpu(device) for device in range(2)], [6, 6, 3])


@pytest.mark.parametrize(
    ("sizes", "cut", "sync_bn"),
    [
        ([6, 6, 3], WHOLE_SHARDS, False),  # at last a device has one image, and the second layer one value
        ([4, 4, 4, 1], WHOLE_SHARDS, False),  # and another none
        ([8, 8], Microbatches(count=2), False),
        ([6, 6, 3], WHOLE_SHARDS, True),
    ],
)
def test_running_statistics_are_those_of_cpu_devices(sizes, cut, sync_bn):
    cpus, gpus = ([kind(device) for device in range(2)] for kind in (mx.cpu, mx.gpu))
    expected = statistics_after(cpus, sizes, cut, sync_bn)
    result = statistics_after(gpus, sizes, cut, sync_bn)
    for one, other in zip(result, expected):
        for name in other:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-6, err_msg=name)
