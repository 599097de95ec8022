"""Comparison with PyTorch: its optimizers, and whole steps of LeNet and ResNet-18."""

import copy
import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.devices import contexts
from support.reference import identity, random_batches
from support.steps import train_steps
from support.updates import assert_close, run_updates

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.optimizers.optimizer_registry import make_optimizer
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.training_loss import make_loss
from gluonlab.training.learning_rate_schedule import LearningRates

pytestmark = pytest.mark.torch

STEPS, WARMUP, MOMENTUM, WD, LIMIT, SMOOTHING = 10, 4, 0.9, 5e-4, 0.5, 0.1
# learning rates; with larger ones, rounding decides on the path of resnet18
HIGHEST = {"lenet": 0.2, "resnet18": 0.01}
MOMENTA = {"sgd": {"momentum": 0.9}, "nag": {"momentum": 0.9}}
THEIRS = {
    "sgd": ("SGD", {"momentum": 0.9}),
    "nag": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {"eps": 1e-6}),
    "adam": ("Adam", {}),
}


def rate(step, highest=0.2):
    """Return the rate: linear up to the highest in step WARMUP, then a cosine to 0 after the end."""
    if step <= WARMUP:
        return highest * step / WARMUP
    return highest * (1 + math.cos(math.pi * (step - WARMUP - 1) / (STEPS - WARMUP))) / 2


@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("name", THEIRS)
def test_an_optimizer_is_pytorchs(name, wd):
    import torch

    random = np.random.RandomState(0)
    start = random.standard_normal((4, 6))
    steps = [(random.standard_normal((4, 6)) * (step != 2), rate(step)) for step in range(1, STEPS + 1)]
    cls, options = THEIRS[name]
    weight = torch.nn.Parameter(torch.tensor(start))
    theirs, expected = getattr(torch.optim, cls)([weight], lr=1.0, weight_decay=wd, **options), []
    for grad, lr in steps:
        theirs.param_groups[0]["lr"], weight.grad = lr, torch.tensor(grad)
        theirs.step()
        expected.append(weight.detach().numpy().copy())
    assert_close(run_updates(make_optimizer(name, {"wd": wd, **MOMENTA.get(name, {})}), start, steps), expected, start)


def pytorchs_losses(net, batches, dtype, lr, nesterov):
    """Train; return the mean loss of each batch."""
    import torch

    net = net.to(dtype).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=MOMENTUM, weight_decay=WD, nesterov=nesterov)
    criterion, losses = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING), []
    for step, (images, labels) in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = rate(step, lr)
        optimizer.zero_grad()
        loss = criterion(net(torch.tensor(images, dtype=dtype)), torch.tensor(labels, dtype=torch.long))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), LIMIT)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def our_losses(net, batches, ctxs, lr, optimizer, store="device", sync_bn=False):
    rates = LearningRates(lr, STEPS, "cosine", warmup_steps=WARMUP)
    settings = {"learning_rate": lr, "momentum": MOMENTUM, "wd": WD, "lr_scheduler": rates}
    optimizer, params = make_optimizer(optimizer, settings), net.collect_params()
    trainer = BucketedTrainer(params, optimizer, None, make_kvstore(store), clip_norm=LIMIT)
    step = DataParallelStep(net, make_loss(SMOOTHING), trainer, ctxs, identity, sync_bn=sync_bn)
    losses = train_steps(step, batches, ctxs)
    return np.array([sum(shards) / len(images) for shards, (images, _) in zip(losses, batches)])


def make_equal_nets(name, shape, ctxs):
    """Return our network and PyTorch's with the same parameters."""
    import torch

    from benchmarks.torch_jobs import NETWORKS

    mx.random.seed(1)
    net = get_model(name, 10)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *shape), ctx=ctxs[0]))
    theirs = NETWORKS[name]()
    own = [param.data(ctxs[0]).asnumpy() for param in net.collect_params().values() if param.grad_req != "null"]
    with torch.no_grad():
        for param, value in zip(theirs.parameters(), own):
            assert param.shape == value.shape
            param.copy_(torch.tensor(value))
    assert len(own) == len(list(theirs.parameters()))
    return net, theirs


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["sgd", "nag"])
@pytest.mark.parametrize("k, store", [(1, "device"), (2, "device"), (3, "sharded-optimizer")])
def test_lenet_has_pytorchs_losses(k, store, optimizer):
    import torch

    ctxs, batches = contexts(k), random_batches([64, 64, 61, 64, 64, 64, 2, 64, 64, 64], seed=4)
    net, theirs = make_equal_nets("lenet", (1, 28, 28), ctxs)
    lr = HIGHEST["lenet"]
    expected = pytorchs_losses(theirs, batches, torch.float32, lr, optimizer == "nag")
    assert np.abs(our_losses(net, batches, ctxs, lr, optimizer, store) - expected).max() <= 1e-5


@pytest.mark.long
@pytest.mark.parametrize("k, optimizer", [(1, "sgd"), (1, "nag"), (2, "sgd")])
def test_resnet18_is_no_further_from_float64_than_twice_pytorch(k, optimizer):
    import torch

    ctxs, batches = contexts(k), random_batches([32] * STEPS, seed=5, shape=(3, 32, 32))
    net, theirs = make_equal_nets("resnet18", (3, 32, 32), ctxs)
    lr, nesterov = HIGHEST["resnet18"], optimizer == "nag"
    exact = pytorchs_losses(copy.deepcopy(theirs), batches, torch.float64, lr, nesterov)
    pytorchs = np.abs(pytorchs_losses(theirs, batches, torch.float32, lr, nesterov) - exact)
    ours = np.abs(our_losses(net, batches, ctxs, lr, optimizer, sync_bn=k > 1) - exact)
    assert ours.max() <= 2 * pytorchs.max()
