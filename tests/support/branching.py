"""A network whose batches may use some branches only, and its reference training on one device."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

IN, OUT = 3, 4


class BranchingNet(gluon.Block):
    """The sum of some branches, each of which is a separate dense layer."""

    def __init__(self, branches):
        super().__init__()
        self.branches = nn.Sequential()
        self.branches.add(*[nn.Dense(OUT, in_units=IN, activation="tanh") for _ in range(branches)])

    def forward(self, x, used):
        total = self.branches[used[0]](x)
        for branch in used[1:]:
            total = total + self.branches[branch](x)
        return total


def make_branching_net(branches, ctxs):
    mx.random.seed(7)
    net = BranchingNet(branches)
    net.initialize(mx.init.Normal(0.5), ctx=ctxs)
    return net


def make_shards(step, devices, images=2, seed=0):
    """Return (images, targets) for each device, which depend on the step and the seed only."""
    random = np.random.RandomState((seed, step))
    return [
        (random.uniform(-1, 1, (images, IN)).astype("float32"), random.uniform(-1, 1, (images, OUT)).astype("float32"))
        for _ in range(devices)
    ]


def branch_losses(net, shards, uses, ctxs, scale=1.0):
    """Return the loss of each device that uses any branch. Call it in autograd.record()."""
    return [
        ((net(nd.array(x, ctx=ctx), used) - nd.array(y, ctx=ctx)) ** 2).sum() * scale
        for (x, y), used, ctx in zip(shards, uses, ctxs)
        if used
    ]


def backward(net, shards, uses, ctxs, scale=1.0):
    with autograd.record():
        losses = branch_losses(net, shards, uses, ctxs, scale)
    if losses:
        autograd.backward(losses)


def train_branches_on_one_device(branches, steps, optimizer, clip_norm=None):
    """Train with gluon.Trainer(ignore_stale_grad=True) on one device; return the network.

    The one device computes the shards of all devices in turn.
    """
    ctx = mx.cpu(0)
    net = make_branching_net(branches, [ctx])
    trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    for number, uses in enumerate(steps):
        shards = make_shards(number, len(uses))
        backward(net, shards, uses, [ctx] * len(uses))
        params = net.collect_params().values()
        fresh_grads = [param.grad() for param in params if param.data()._fresh_grad]
        size = sum(len(x) for x, _ in shards)
        if clip_norm is not None and fresh_grads:
            gluon.utils.clip_global_norm(fresh_grads, clip_norm * size)
        counts = trainer.optimizer._all_index_update_counts[0]
        ages = [counts.get(key, 0) for key, param in enumerate(trainer._params) if param.data()._fresh_grad]
        # MXNet would use an earlier learning rate for the parameters before the oldest one
        trainer.optimizer.num_update = max([trainer.optimizer.num_update, *(age + 1 for age in ages)])
        trainer.step(size, ignore_stale_grad=True)
    return net


def train_branches_on_devices(net, trainer, steps, ctxs):
    """Train in place with one device per shard."""
    for number, uses in enumerate(steps):
        shards = make_shards(number, len(uses))
        scale = trainer.loss_scale.value if getattr(trainer, "loss_scale", None) else 1.0
        backward(net, shards, uses, ctxs, scale)
        trainer.step(sum(len(x) for x, _ in shards), ignore_stale_grad=True)
