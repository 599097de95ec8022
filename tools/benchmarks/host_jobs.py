"""Worker jobs that measure the processor time of the host to queue a step.

Steps are queued one after the other, as in training, but behind a gate that holds the devices until
a block of steps is queued. So neither computing nor waiting is timed. A step that is queued alone,
after the devices have become idle, costs 1.2 to 1.6 times as much, since its code has left the
caches.

The processor time of the calling thread is measured. Wall time would include the time in which
other threads keep the caller from its core.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from gluonlab.bench import training_job
from gluonlab.bench.harness.interleaved_rounds import Call
from gluonlab.bench.worker_main import Job
from gluonlab.bench.workloads import CLASSES
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.augmentation import to_float
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.sets.dataset_registry import load_dataset
from gluonlab.devices import devices as find_devices
from gluonlab.engine.engine_hold import EngineHold
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.training.loss_meter import READ_EVERY, AsyncLossMeter

SHAPE = (1, 12, 12)
BATCHES = 256  # per epoch
SGD = {"learning_rate": 0.01}
STEP_PARTS = ("forward", "backward", "allreduce", "update")
BLOCK_STEPS = 16  # steps that are queued before the devices compute them
PATIENCE_S = 60.0  # for queueing a block, which takes some milliseconds


def make(kind: str, device_count: int, devices: Optional[str] = None) -> Job:
    """Return a job that measures the host's microseconds per step and device.

    ``kind``: "gluonlab", or "gluon" for Gluon's own loop. ``devices``: their names; by default
    ``device_count`` CPU devices.
    """
    ctxs = find_devices(devices or f"cpu*{device_count}", threads=1)
    return {"gluonlab": _make_gluonlab_job, "gluon": _make_gluon_job}[kind](ctxs)


def tiny_net(ctxs: Sequence[mx.Context]) -> nn.HybridSequential:
    """Return a tiny network with LeNet's eight parameters: (n, 1, 12, 12) -> (n, 10)."""
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(2, 3), nn.MaxPool2D(2, 2), nn.Activation("relu"), nn.Conv2D(2, 3), nn.MaxPool2D(2, 2),
        nn.Activation("relu"), nn.Flatten(), nn.Dense(4, activation="relu"), nn.Dense(CLASSES),
    )  # fmt: skip
    net.initialize(ctx=list(ctxs))
    net.hybridize(static_alloc=True, static_shape=True)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0])).wait_to_read()  # its shapes are known from here on
    return net


def _make_gluonlab_job(ctxs: List[mx.Context]) -> Job:
    net, loss = tiny_net(ctxs), gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = BucketedTrainer(net.collect_params(), "sgd", SGD, kvstore=make_kvstore("device"))
    step = DataParallelStep(net, loss, trainer, ctxs, to_float)
    batches, log = _repeat_batches(ctxs), AsyncLossMeter(ctxs)
    batch = next(batches)

    def run(steps: int) -> Dict[str, float]:
        began = time.perf_counter()
        medians = [
            *_median_part_seconds(lambda: (queue for _, queue in step.phases(batch)), steps, batch.xs),
            *_median_part_seconds(lambda: [lambda: step(batch)], steps, batch.xs),
            _measure_loader_and_log(batches, step, log, steps),
        ]
        return _job_numbers(began, [*STEP_PARTS, "total", "loader"], medians, len(ctxs))

    return run


def _make_gluon_job(ctxs: List[mx.Context]) -> Job:
    net, loss = tiny_net(ctxs), gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize(static_alloc=True, static_shape=True)
    # The update on the devices, as gluonlab's: with it in the store, allreduce and update could not
    # be told apart.
    trainer = gluon.Trainer(net.collect_params(), "sgd", SGD, kvstore=make_kvstore("device"), update_on_kvstore=False)
    xs, ys = next(_repeat_batches(ctxs))
    xs = [to_float(nd, x) for x in xs]
    losses: List[nd.NDArray] = []

    def forward() -> None:
        with autograd.record():
            losses[:] = [loss(net(x), y) for x, y in zip(xs, ys)]

    def step_parts() -> List[Call]:
        return [forward, lambda: autograd.backward(losses), trainer.allreduce_grads, lambda: trainer.update(len(ctxs))]

    def step() -> None:
        forward()
        autograd.backward(losses)
        trainer.step(len(ctxs))

    def run(steps: int) -> Dict[str, float]:
        began = time.perf_counter()
        medians = [*_median_part_seconds(step_parts, steps, xs), *_median_part_seconds(lambda: [step], steps, xs)]
        return _job_numbers(began, [*STEP_PARTS, "total"], medians, len(ctxs))

    return run


def _repeat_batches(ctxs: List[mx.Context]) -> Iterator[Any]:
    """Yield batches of one image per device, without end."""
    dataset = load_dataset("synthetic", samples=BATCHES * len(ctxs), shape=SHAPE, classes=CLASSES)
    loader = Loader(dataset.train, ctxs, len(ctxs), raw=True, resident_bytes=2**30)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _median_part_seconds(parts: Callable[[], Iterable[Call]], steps: int, images: Sequence[nd.NDArray]) -> List[float]:
    """Return the median processor seconds of each part of a step, called one after the other.

    ``images``: the inputs of the first operation on each device. The medians are over blocks of
    steps. The time between two parts counts only for the whole step.
    """
    blocks = []
    for _ in range(max(1, steps // BLOCK_STEPS)):
        gate = EngineHold(images, PATIENCE_S)
        times = [_call_seconds(parts()) for _ in range(BLOCK_STEPS)]
        gate.release()
        nd.waitall()
        assert gate.held_until_release, "the devices started before the block was queued"
        blocks.append([statistics.mean(column) for column in zip(*times)])
    return [statistics.median(column) for column in zip(*blocks)]


def _call_seconds(parts: Iterable[Call]) -> List[float]:
    """Return the processor seconds of this thread for each call."""
    seconds = []
    for part in parts:
        started = time.thread_time()
        part()
        seconds.append(time.thread_time() - started)
    return seconds


def _measure_loader_and_log(batches: Iterator[Any], step: DataParallelStep, log: AsyncLossMeter, steps: int) -> float:
    """Return the median processor seconds per step to fetch a batch and log its losses.

    The log reads once in READ_EVERY steps, so the median is over blocks of READ_EVERY steps.
    """
    blocks = []
    for _ in range(max(1, steps // READ_EVERY)):
        seconds = 0.0
        for _ in range(READ_EVERY):
            started = time.thread_time()
            batch = next(batches)
            seconds += time.thread_time() - started
            losses = step(batch)
            nd.waitall()
            started = time.thread_time()
            log.append(losses, batch.size)
            seconds += time.thread_time() - started
        blocks.append(seconds / READ_EVERY)
    return statistics.median(blocks)


def _job_numbers(began: float, names: List[str], medians_s: List[float], device_count: int) -> Dict[str, float]:
    per_device_us = {name: seconds * 1e6 / device_count for name, seconds in zip(names, medians_s)}
    return {"seconds": time.perf_counter() - began, **per_device_us}


class Layer(NamedTuple):
    """A convolution or dense layer: its multiply-adds per image.

    ``data_gradient``: whether backward computes a gradient for its input.
    """

    multiply_adds: int
    data_gradient: bool = True


def conv_layer(channels_in: int, channels_out: int, kernel: int, side_out: int, data_gradient: bool = True) -> Layer:
    """Return a convolution with a square kernel and a square output of ``side_out``."""
    return Layer(side_out**2 * channels_out * channels_in * kernel**2, data_gradient)


def dense_layer(units_in: int, units_out: int) -> Layer:
    """Return a dense layer."""
    return Layer(units_in * units_out)


LENET = (
    conv_layer(1, 20, 3, side_out=26, data_gradient=False),  # nobody asks for the gradient of the images
    conv_layer(20, 50, 5, side_out=9),
    dense_layer(50 * 4 * 4, 128),
    dense_layer(128, CLASSES),
)


def training_flops(layers: Sequence[Layer]) -> int:
    """Return operations of forward and backward per image; a multiply-add counts as two.

    Backward has twice forward's work: the weights' gradient and the input's.
    """
    return sum(2 * layer.multiply_adds * (3 if layer.data_gradient else 2) for layer in layers)


SIDE = 1024
BATCH_SIZE = 64


def make_efficiency() -> Job:
    """Return a job that measures GFLOP/s of ``sgemm`` and ``lenet`` on one device of one thread."""
    train = training_job.make_training_job("lenet", device_count=1, threads=1, global_batch_size=BATCH_SIZE)
    left, right = nd.random.uniform(shape=(SIDE, SIDE)), nd.random.uniform(shape=(SIDE, SIDE))

    def run(steps: int) -> Dict[str, float]:
        products = max(1, steps // 2)  # a product takes about as long as two steps
        sgemm_s = _sgemm_s(left, right, products)
        lenet_s = train(steps)["seconds"]
        return {
            "seconds": sgemm_s + lenet_s,
            "sgemm": products * 2 * SIDE**3 / sgemm_s / 1e9,
            "lenet": steps * BATCH_SIZE * training_flops(LENET) / lenet_s / 1e9,
        }

    return run


def _sgemm_s(left: nd.NDArray, right: nd.NDArray, count: int) -> float:
    nd.waitall()
    started = time.perf_counter()
    for _ in range(count):
        nd.dot(left, right)
    nd.waitall()
    return time.perf_counter() - started
