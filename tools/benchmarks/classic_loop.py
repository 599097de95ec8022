"""The classic lab's loop: Gluon layer by layer, as a course teaches it, on two devices."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterator, List, Optional, Sequence

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from benchmarks.frameworks import images_and_labels
from gluonlab.bench.worker_main import Job
from gluonlab.bench.workloads import CLASSES, LEARNING_RATE, TASKS


def lenet() -> nn.Sequential:
    """The lab's network, neither compiled nor initialized."""
    net = nn.Sequential()
    net.add(
        nn.Conv2D(channels=20, kernel_size=3, activation="relu"),
        nn.MaxPool2D(pool_size=2, strides=2),
        nn.Conv2D(channels=50, kernel_size=5, activation="relu"),
        nn.MaxPool2D(pool_size=2, strides=2),
        nn.Flatten(),
        nn.Dense(128, activation="relu"),
        nn.Dense(CLASSES),
    )
    return net


def train_batch(
    batch: Any, ctxs: Sequence[mx.Context], net: gluon.Block, loss: gluon.Block, trainer: gluon.Trainer
) -> None:
    """Train on an mx.io.DataBatch: split, forward on each device, backward by loss, update."""
    images, labels = batch.data[0], batch.label[0]
    xs = gluon.utils.split_and_load(images, ctxs)
    ys = gluon.utils.split_and_load(labels, ctxs)
    with autograd.record():
        losses = [loss(net(x), y) for x, y in zip(xs, ys)]
    for device_loss in losses:
        device_loss.backward()
    trainer.step(images.shape[0])


def make(device_count: int, devices: Optional[str] = None) -> Job:
    """Return a job that runs the loop on CPU devices with MXNet's defaults, without gluonlab's
    tuning.

    ``devices``, as ``gpu:0,1``: use these instead, and sum the gradients there, as in a course on
    GPUs.
    """
    kind, _, numbers = (devices or "cpu:" + ",".join(map(str, range(device_count)))).partition(":")
    ctxs: List[mx.Context] = [mx.Context(kind, int(number)) for number in numbers.split(",")]
    net, loss = lenet(), gluon.loss.SoftmaxCrossEntropyLoss()
    net.collect_params().initialize(ctx=ctxs)
    store = "device" if kind == "gpu" else "local"
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE}, kvstore=store)
    task = TASKS["lenet"]
    batches = _repeat_epochs(mx.io.NDArrayIter(*images_and_labels(task), task.global_batch_size))

    def run(steps: int) -> Dict[str, float]:
        started = time.perf_counter()
        for _ in range(steps):
            train_batch(next(batches), ctxs, net, loss, trainer)
        nd.waitall()
        return {"seconds": time.perf_counter() - started}

    return run


def _repeat_epochs(iterator: mx.io.NDArrayIter) -> Iterator[Any]:
    while True:  # an epoch after the other
        iterator.reset()
        yield from iterator
