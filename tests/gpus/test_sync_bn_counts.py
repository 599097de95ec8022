"""Counts of CUDA calls in steps with and without sync BatchNorm, on two simulated GPUs."""

import mxnet as mx
import pytest
from gpus.simulated import counting
from mxnet import nd

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.augmentation import make_input_transform
from gluonlab.data.loading.split_batch import make_local_batch
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete_initialization
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.training_loss import make_loss

SHAPE = (3, 32, 32)


def count_step(model, sync_bn, count=2):
    """(what one step takes, how many BatchNorm layers there are)."""
    ctxs = [mx.gpu(i) for i in range(count)]
    net = get_model(model, 10, ctxs)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    complete_initialization(net, model, SHAPE, 10)
    params = net.collect_params()
    trainer = BucketedTrainer(params, "sgd", {"learning_rate": 0.1, "momentum": 0.9}, make_kvstore("device", ctxs))
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input_transform(None), sync_bn=sync_bn)
    xs = [nd.zeros((1, *SHAPE), ctx, dtype="uint8") for ctx in ctxs]
    ys = [nd.zeros((1,), ctx, dtype="int32") for ctx in ctxs]
    step(make_local_batch(xs, ys))
    with counting() as happened:
        step(make_local_batch(xs, ys))
    return happened, sum(name.endswith("running_mean") for name in params)


@pytest.mark.parametrize(("model", "most"), [("resnet18", 600), ("resnet50", 1200)])
def test_launches_of_a_step_on_two_gpus(model, most):
    """A layer: one on each device forward and three backward, nine on the first for both; two or
    three more for all layers.
    """
    happened, layers = count_step(model, sync_bn=True)
    plain, _ = count_step(model, sync_bn=False)
    launches, without = (steps.launches + steps.fused_launches for steps in (happened, plain))
    assert launches <= most
    assert launches - without <= layers * (2 * 4 + 11) + 2 * (1 + -(-2 * layers // 60))
    assert happened.copies_staged == 0
