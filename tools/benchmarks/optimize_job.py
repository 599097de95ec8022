"""Worker job that trains a tutorial's network by a plain Gluon loop on one CPU device."""

from __future__ import annotations

import itertools
import time
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from benchmarks.optimize import TASKS, Task
from gluonlab.bench.worker_main import Job
from gluonlab.devices import devices as find_devices
from gluonlab.errors import RunError
from gluonlab.models.optimize_network import optimize

CLASSES = 10


def _make_sequence(*layers: gluon.HybridBlock) -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def mnist_cnn() -> nn.HybridSequential:
    """Return MXNet's network for 28x28 digits: 20 and 50 channels, tanh, max pooling."""
    return _make_sequence(
        nn.Conv2D(20, kernel_size=(5, 5), activation="tanh"),
        nn.MaxPool2D(pool_size=(2, 2), strides=(2, 2)),
        nn.Conv2D(50, kernel_size=(5, 5), activation="tanh"),
        nn.MaxPool2D(pool_size=(2, 2), strides=(2, 2)),
        nn.Dense(500, activation="tanh"),
        nn.Dense(CLASSES, activation="tanh"),
    )


def lenet() -> nn.HybridSequential:
    """Return d2l's LeNet for 28x28 images: 6 and 16 channels, sigmoid, average pooling."""
    return _make_sequence(
        nn.Conv2D(channels=6, kernel_size=5, padding=2, activation="sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Conv2D(channels=16, kernel_size=5, activation="sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Dense(120, activation="sigmoid"),
        nn.Dense(84, activation="sigmoid"),
        nn.Dense(CLASSES),
    )


def lenet_with_batch_norm() -> nn.HybridSequential:
    """Return d2l's LeNet for 28x28 images with BatchNorm before each activation."""
    return _make_sequence(
        nn.Conv2D(6, kernel_size=5), nn.BatchNorm(), nn.Activation("sigmoid"), nn.AvgPool2D(pool_size=2, strides=2),
        nn.Conv2D(16, kernel_size=5), nn.BatchNorm(), nn.Activation("sigmoid"), nn.AvgPool2D(pool_size=2, strides=2),
        nn.Dense(120), nn.BatchNorm(), nn.Activation("sigmoid"), nn.Dense(84), nn.BatchNorm(),
        nn.Activation("sigmoid"), nn.Dense(CLASSES),
    )  # fmt: skip


def _nin_block(channels: int, kernel: int, strides: int, padding: int) -> nn.HybridSequential:
    return _make_sequence(
        nn.Conv2D(channels, kernel, strides, padding, activation="relu"),
        nn.Conv2D(channels, kernel_size=1, activation="relu"),
        nn.Conv2D(channels, kernel_size=1, activation="relu"),
    )


def nin() -> nn.HybridSequential:
    """Return d2l's NiN: its last convolutions have a channel for each class."""
    return _make_sequence(
        _nin_block(96, kernel=11, strides=4, padding=0), nn.MaxPool2D(pool_size=3, strides=2),
        _nin_block(256, kernel=5, strides=1, padding=2), nn.MaxPool2D(pool_size=3, strides=2),
        _nin_block(384, kernel=3, strides=1, padding=1), nn.MaxPool2D(pool_size=3, strides=2), nn.Dropout(0.5),
        _nin_block(CLASSES, kernel=3, strides=1, padding=1), nn.GlobalAvgPool2D(), nn.Flatten(),
    )  # fmt: skip


class Inception(gluon.HybridBlock):  # type: ignore[misc]
    """A block of four paths, whose channels are concatenated."""

    def __init__(self, c1: int, c2: Tuple[int, int], c3: Tuple[int, int], c4: int) -> None:
        super().__init__()
        with self.name_scope():
            self.p1 = nn.Conv2D(c1, kernel_size=1, activation="relu")
            self.p2 = _make_sequence(
                nn.Conv2D(c2[0], kernel_size=1, activation="relu"),
                nn.Conv2D(c2[1], kernel_size=3, padding=1, activation="relu"),
            )
            self.p3 = _make_sequence(
                nn.Conv2D(c3[0], kernel_size=1, activation="relu"),
                nn.Conv2D(c3[1], kernel_size=5, padding=2, activation="relu"),
            )
            self.p4 = _make_sequence(
                nn.MaxPool2D(pool_size=3, strides=1, padding=1), nn.Conv2D(c4, kernel_size=1, activation="relu")
            )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Return the concatenated outputs of all paths."""
        return F.concat(self.p1(x), self.p2(x), self.p3(x), self.p4(x), dim=1)


def _halving_pool() -> nn.MaxPool2D:
    return nn.MaxPool2D(pool_size=3, strides=2, padding=1)


def googlenet() -> nn.HybridSequential:
    """Return d2l's GoogLeNet: nine Inception blocks."""
    return _make_sequence(
        nn.Conv2D(64, kernel_size=7, strides=2, padding=3, activation="relu"), _halving_pool(),
        nn.Conv2D(64, kernel_size=1, activation="relu"), nn.Conv2D(192, kernel_size=3, padding=1, activation="relu"),
        _halving_pool(), Inception(64, (96, 128), (16, 32), 32), Inception(128, (128, 192), (32, 96), 64),
        _halving_pool(), Inception(192, (96, 208), (16, 48), 64), Inception(160, (112, 224), (24, 64), 64),
        Inception(128, (128, 256), (24, 64), 64), Inception(112, (144, 288), (32, 64), 64),
        Inception(256, (160, 320), (32, 128), 128), _halving_pool(), Inception(256, (160, 320), (32, 128), 128),
        Inception(384, (192, 384), (48, 128), 128), nn.GlobalAvgPool2D(), nn.Dense(CLASSES),
    )  # fmt: skip


NETWORKS = {made.__name__: made for made in (mnist_cnn, lenet, lenet_with_batch_norm, nin, googlenet)}
SEED = 0
CHECKED_STEPS = 4  # steps whose losses are compared
TOLERANCE = 1e-4  # relative: rewrites change rounding errors only


class Training:
    """A network, its data and its optimizer, with the same first parameters and batches each time.

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
            (nd.array(random.rand(*task.batch), ctx=ctx), nd.array(random.randint(0, CLASSES, task.batch[0]), ctx=ctx))
            for _ in range(task.batches)
        )
        self._net = NETWORKS[task.network]()
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
        check_same_losses(task, first_losses(task, ctx, False), first_losses(task, ctx, True))
    training = Training(task, ctx, optimized)

    def run(steps: int) -> Dict[str, float]:
        started = time.perf_counter()
        for _ in range(steps):
            training.step()
        nd.waitall()
        return {"seconds": time.perf_counter() - started}

    return run


def first_losses(task: Task, ctx: mx.Context, optimized: bool) -> List[float]:
    """Return the mean losses of the first steps of a training."""
    training = Training(task, ctx, optimized)
    return [float(training.step().mean().asscalar()) for _ in range(CHECKED_STEPS)]


def check_same_losses(task: Task, plain: List[float], optimized: List[float]) -> None:
    """Raise RunError if the losses differ by more than rounding errors."""
    if not np.allclose(optimized, plain, rtol=TOLERANCE, atol=0):
        raise RunError(f"{task.title}: the optimized model has the losses {optimized}, but the plain model {plain}")
