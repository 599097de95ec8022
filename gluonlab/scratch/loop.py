"""A whole training by hand, with the exact accuracy on all test images after each epoch."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from typing import Any, Callable, Deque, Generator, Iterable, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.config.option_types import LARGEST_RATE, real_number_check, whole_number_check
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.sets.dataset import Dataset, Split
from gluonlab.data.sets.gluon_datasets import required_dataset
from gluonlab.devices import check_device_list
from gluonlab.engine.np_compatibility import nd_semantics
from gluonlab.errors import ModelError
from gluonlab.finite_numbers import check_loss
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.plain_text import format_decimals
from gluonlab.runs.run_result import usual_speed
from gluonlab.scratch.data_parallel import (
    Allreduce,
    Replica,
    allreduce,
    devices_of,
    get_params,
    split_batch,
    train_batch,
)
from gluonlab.scratch.lenet import CLASSES, IMAGE_SHAPE, Params, lenet

# steps after which a loss is read: no step waits for it, and no more than these are queued
LATE = 8

Batch = Tuple[nd.NDArray, nd.NDArray]  # images (n, 1, 28, 28), labels (n,)


class Epoch(NamedTuple):
    """One pass over the training images; its times are those of training alone."""

    epoch: int
    loss: float
    seconds: float
    images_per_second: float
    accuracy: float

    def __str__(self) -> str:
        speed = f"{self.seconds:.2f} s    {self.images_per_second:,.0f} images/s"
        accuracy = f"test accuracy {self.accuracy:.4f}"
        return f"epoch {self.epoch:>2}    {speed}  loss {format_decimals(self.loss, 4)}  {accuracy}"


class Trained(NamedTuple):
    """What a training leaves: its epochs, and the parameters on each device."""

    epochs: List[Epoch]
    replicas: List[Replica]

    @property
    def accuracy(self) -> float:
        """The fraction of test images that the network gets right after the last epoch."""
        return self.epochs[-1].accuracy

    @property
    def images_per_second(self) -> float:
        """As `gluonlab.runs.run_result.usual_speed` has it."""
        return usual_speed(self.epochs)


@nd_semantics()
def train(
    dataset: Any,
    params: Params,
    ctxs: Sequence[mx.Context],
    global_batch_size: int = 256,
    lr: float = 0.2,
    epochs: int = 10,
    seed: int = 0,
    allreduce: Allreduce = allreduce,
    report: Callable[[Epoch], None] = print,
) -> Trained:
    """Train a copy of ``params`` on each device; ``seed`` decides the order of the images.

    ``dataset``: a data set of gluonlab, or two of Gluon, (train, test). ``report`` is called after
    each epoch. Raises ConfigError for an impossible number, DataError for what is no data set,
    ModelError when the images do not fit LeNet, DeviceError for what is not a list of devices, each
    of them once, and DivergedError when the loss is no longer a number, or beyond recovery.
    """
    dataset, ctxs = required_dataset(dataset), check_device_list(ctxs)
    whole_number_check(1)("global_batch_size", global_batch_size)
    whole_number_check(1)("epochs", epochs)
    real_number_check(0, LARGEST_RATE, above_minimum=True)("lr", lr)
    _check_fit(dataset)
    enable_peer_access(ctxs)
    replicas = [get_params(params, ctx) for ctx in ctxs]
    loader = _whole_batches(dataset.train, global_batch_size, seed)
    trained = Trained([], replicas)
    for epoch in range(1, epochs + 1):
        began = time.perf_counter()
        # its thread ends with the epoch, however that ends
        with closing(_pairs(loader)) as batches:
            loss = train_epoch(batches, replicas, lr, allreduce)
        seconds = time.perf_counter() - began
        right = accuracy(dataset.test, replicas, global_batch_size)
        trained.epochs.append(Epoch(epoch, loss, seconds, len(dataset.train) / seconds, right))
        report(trained.epochs[-1])
    return trained


@nd_semantics()
def train_epoch(
    batches: Iterable[Batch],
    replicas: Sequence[Replica],
    lr: float,
    allreduce: Allreduce = allreduce,
) -> float:
    """Train on each batch, wait until all is done, and return the mean loss of the images.

    Raises DivergedError, soon after it happened, when a loss is no longer a number, or beyond
    recovery.
    """
    total, seen = 0.0, 0
    unread: Deque[Tuple[List[nd.NDArray], int]] = deque()  # losses, and how many images they are of
    for images, labels in batches:
        unread.append((train_batch(images, labels, replicas, lr, allreduce), len(images)))
        seen += len(images)
        if len(unread) > LATE:
            total += _read(*unread.popleft())
    total += sum(_read(*batch) for batch in unread)
    nd.waitall()  # for the last updates: a clock is read next
    return total / seen


@nd_semantics()
def accuracy(split: Split, replicas: Sequence[Replica], global_batch_size: int = 256) -> float:
    """The fraction of a split's images that the network gets right; each counts once.

    The devices count, as integers, and are asked once: the chapter's exercise 4.
    """
    ctxs = devices_of(replicas)
    correct = [nd.zeros((1,), ctx=ctx, dtype="int32") for ctx in ctxs]
    with closing(_pairs(_whole_batches(split, global_batch_size, shuffle=False))) as batches:
        for images, labels in batches:
            for count, x, y, replica in zip(correct, *split_batch(images, labels, ctxs), replicas):
                scores = lenet(x, replica.params)
                # the argmax of NaNs would be some class, too
                numbers = nd.contrib.isfinite(scores).min(axis=1).astype("int32")
                count += ((scores.argmax(axis=1).astype("int32") == y) * numbers).sum()
    return int(_sum(correct)) / len(split)


def _whole_batches(
    split: Split, global_batch_size: int, seed: int = 0, shuffle: bool = True
) -> Loader:
    """Batches as the chapter has them: whole, in the host's memory.

    (Given the devices, Loader would split them itself.)
    """
    return Loader(split, [mx.cpu()], global_batch_size, seed, shuffle=shuffle)


def _pairs(loader: Loader) -> "Generator[Batch, None, None]":
    """Each batch as (images, labels) instead of as two lists of one shard."""
    with closing(iter(loader)) as batches:
        for (images,), (labels,) in batches:
            yield images, labels


def _read(losses: Sequence[nd.NDArray], images: int) -> float:
    """The sum of the losses of a whole batch, when it is known."""
    loss = _sum(losses)
    check_loss("the loss", loss / images)
    return loss


def _sum(parts: Sequence[nd.NDArray]) -> float:
    return float(sum(part.asscalar() for part in parts))


def _check_fit(dataset: Dataset) -> None:
    if dataset.image_shape != IMAGE_SHAPE or len(dataset.classes) != CLASSES:
        shape = "x".join(map(str, dataset.image_shape))
        raise ModelError(
            f"{dataset.name} has images of {shape} in {len(dataset.classes)} classes, "
            f"and the LeNet by hand takes 1x28x28 in {CLASSES}: "
            "choose another data set, or a network of gluonlab.run"
        )
