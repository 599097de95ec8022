"""Training of a tutorial's network by a plain Gluon loop, on one CPU device with one thread."""

from __future__ import annotations

import itertools
import time
from typing import Dict, List

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from gluonlab.bench.optimize import networks
from gluonlab.bench.optimize.tasks import TASKS, Task
from gluonlab.bench.worker import Job
from gluonlab.devices import devices as find_devices
from gluonlab.errors import RunError
from gluonlab.models.optimize import optimize

SEED = 0
CHECKED = 4  # steps whose losses are compared
TOLERANCE = 1e-4  # relative: rewrites change rounding errors only


class Training:
    """A network, its data and its optimizer. Each has the same first parameters and batches.

    Args:
        task: the network and its images, which are random, as are the labels.
        ctx: the device.
        optimized: whether `gluonlab.optimize` rewrites the network.
    """

    def __init__(self, task: Task, ctx: mx.Context, optimized: bool) -> None:
        random = np.random.RandomState(SEED)
        mx.random.seed(SEED)
        np.random.seed(SEED)  # some of Gluon's initializers draw from it
        self._batches = itertools.cycle(
            (
                nd.array(random.rand(*task.batch), ctx=ctx),
                nd.array(random.randint(0, networks.CLASSES, task.batch[0]), ctx=ctx),
            )
            for _ in range(task.batches)
        )
        self._net = getattr(networks, task.network)()
        self._net.initialize(mx.init.Xavier(), ctx=ctx)
        self._net.hybridize(static_alloc=True)
        self._net(nd.zeros(task.batch, ctx=ctx)).wait_to_read()  # parameters get their shapes
        if optimized:
            optimize(self._net, task.batch)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        sgd = {"learning_rate": task.learning_rate}
        self._trainer = gluon.Trainer(self._net.collect_params(), "sgd", sgd)
        mx.random.seed(SEED)  # for Dropout, whatever was drawn before

    def step(self) -> nd.NDArray:
        """Train on a batch; return its losses (batch size,), which may not be computed yet."""
        images, labels = next(self._batches)
        with autograd.record():
            losses = self._loss(self._net(images), labels)
        losses.backward()
        self._trainer.step(len(images))
        return losses


def make(network: str, optimized: bool) -> Job:
    """Return a job that trains a network of TASKS.

    Raises RunError if the losses of the optimized network are not those of the plain one.
    """
    task = TASKS[network]
    [ctx] = find_devices("cpu*1", threads=1)
    if optimized:
        check(task, first_losses(task, ctx, False), first_losses(task, ctx, True))
    training = Training(task, ctx, optimized)

    def run(steps: int) -> Dict[str, float]:
        began = time.perf_counter()
        for _ in range(steps):
            training.step()
        nd.waitall()
        return {"seconds": time.perf_counter() - began}

    return run


def first_losses(task: Task, ctx: mx.Context, optimized: bool) -> List[float]:
    """Return the mean losses of the first steps of a training."""
    training = Training(task, ctx, optimized)
    return [float(training.step().mean().asscalar()) for _ in range(CHECKED)]


def check(task: Task, plain: List[float], optimized: List[float]) -> None:
    """Raise RunError if the losses differ by more than rounding errors."""
    if not np.allclose(optimized, plain, rtol=TOLERANCE, atol=0):
        raise RunError(
            f"{task.title}: the optimized network has the losses {optimized}, and the plain one "
            f"{plain}"
        )
