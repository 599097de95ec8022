"""A training loop that uses only arrays and measures validation accuracy after each epoch."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from typing import Any, Callable, Deque, Generator, Iterable, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.config.option_checks import LARGEST_NUMBER, real_number_check, whole_number_check
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.sets.dataset import Dataset, Split
from gluonlab.data.sets.from_gluon_datasets import require_dataset
from gluonlab.devices import check_device_list
from gluonlab.divergence_checks import check_loss
from gluonlab.engine.nd_and_np_arrays import nd_semantics
from gluonlab.errors import ModelError
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.plain_text import format_decimals
from gluonlab.renamed import RenamedMember
from gluonlab.runs.run_result import usual_speed
from gluonlab.scratch.data_parallel import (
    Allreduce,
    Replica,
    allreduce,
    get_params,
    replica_devices,
    split_batch,
    train_batch,
)
from gluonlab.scratch.lenet import CLASSES, IMAGE_SHAPE, Params, lenet

# The loss of a step is read this many steps later, so that no step waits and the queue stays short.
LOSS_DELAY = 8

Batch = Tuple[nd.NDArray, nd.NDArray]  # images (n, 1, 28, 28), labels (n,)


class Epoch(NamedTuple):
    """Result of an epoch. ``seconds`` and ``images_per_second`` exclude the evaluation."""

    epoch: int
    loss: float
    seconds: float
    images_per_second: float
    val_accuracy: float

    def __str__(self) -> str:
        speed = f"{self.seconds:.2f} s    {self.images_per_second:,.0f} images/s"
        accuracy = f"val accuracy {self.val_accuracy:.4f}"
        return f"epoch {self.epoch:>2}    {speed}  loss {format_decimals(self.loss, 4)}  {accuracy}"


class TrainingResult(NamedTuple):
    """Results of all epochs, and the parameters on each device."""

    epochs: List[Epoch]
    replicas: List[Replica]

    @property
    def val_accuracy(self) -> float:
        """The fraction of correctly classified validation images after the last epoch."""
        return self.epochs[-1].val_accuracy

    @property
    def images_per_second(self) -> float:
        """The typical speed of the epochs (`gluonlab.runs.run_result.usual_speed`)."""
        return usual_speed(self.epochs)


for _owner in (Epoch, TrainingResult):
    # mypy allows only fields and methods in the body of a NamedTuple
    setattr(_owner, "accuracy", RenamedMember("val_accuracy", "accuracy"))  # noqa: B010


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
) -> TrainingResult:
    """Train a copy of ``params`` on each device.

    Args:
        dataset: A gluonlab data set, or a pair of Gluon data sets (train, test).
        params: The initial parameters.
        ctxs: The devices, without duplicates.
        global_batch_size: Images per step on all devices.
        lr: Learning rate for the whole batch.
        epochs: Number of epochs.
        seed: Seed for the order of the images.
        allreduce: Function that replaces arrays with their sum.
        report: Function that is called after each epoch.

    Raises:
        ConfigError: For an invalid number.
        DataError: For an invalid data set.
        ModelError: If LeNet does not support the images.
        DeviceError: For an invalid list of devices.
        DivergedError: If the loss is not finite or is too large to recover.
    """
    dataset, ctxs = require_dataset(dataset), check_device_list(ctxs)
    whole_number_check(1)("global_batch_size", global_batch_size)
    whole_number_check(1)("epochs", epochs)
    real_number_check(0, LARGEST_NUMBER, above_minimum=True)("lr", lr)
    _check_dataset_fits(dataset)
    enable_peer_access(ctxs)
    replicas = [get_params(params, ctx) for ctx in ctxs]
    loader = _whole_batches(dataset.train, global_batch_size, seed)
    result = TrainingResult([], replicas)
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        # closing ends the loader's thread, even if the epoch fails
        with closing(_unpack_batches(loader)) as batches:
            loss = train_epoch(batches, replicas, lr, allreduce)
        seconds = time.perf_counter() - start
        val_accuracy = accuracy(dataset.test, replicas, global_batch_size)
        result.epochs.append(Epoch(epoch, loss, seconds, len(dataset.train) / seconds, val_accuracy))
        report(result.epochs[-1])
    return result


@nd_semantics()
def train_epoch(
    batches: Iterable[Batch], replicas: Sequence[Replica], lr: float, allreduce: Allreduce = allreduce
) -> float:
    """Train on each batch, wait for all updates, and return the mean loss of the images.

    Raises DivergedError soon after a loss that is not finite or is too large to recover.
    """
    total, seen = 0.0, 0
    unread: Deque[Tuple[List[nd.NDArray], int]] = deque()  # the losses of a batch, and its number of images
    for images, labels in batches:
        unread.append((train_batch(images, labels, replicas, lr, allreduce), len(images)))
        seen += len(images)
        if len(unread) > LOSS_DELAY:
            total += _wait_for_loss_sum(*unread.popleft())
    total += sum(_wait_for_loss_sum(*batch) for batch in unread)
    nd.waitall()  # wait for the last updates, because the caller measures the time
    return total / seen


@nd_semantics()
def accuracy(split: Split, replicas: Sequence[Replica], global_batch_size: int = 256) -> float:
    """Return the fraction of a split's images that the network classifies correctly.

    Each device counts its correct predictions in an array. The counts are read only at the end, as
    in exercise 4 of the chapter.
    """
    ctxs = replica_devices(replicas)
    correct = [nd.zeros((1,), ctx=ctx, dtype="int32") for ctx in ctxs]
    with closing(_unpack_batches(_whole_batches(split, global_batch_size, shuffle=False))) as batches:
        for images, labels in batches:
            for count, x, y, replica in zip(correct, *split_batch(images, labels, ctxs), replicas):
                scores = lenet(x, replica.params)
                # NaN scores must not count as correct, but their argmax is also a class.
                finite = nd.contrib.isfinite(scores).min(axis=1).astype("int32")
                count += ((scores.argmax(axis=1).astype("int32") == y) * finite).sum()
    return int(_sum_parts(correct)) / len(split)


def _whole_batches(split: Split, global_batch_size: int, seed: int = 0, shuffle: bool = True) -> Loader:
    """Return a loader of undivided batches in host memory, as in the chapter.

    The training devices are not passed to the loader, because it would split the batches for them.
    """
    return Loader(split, [mx.cpu()], global_batch_size, seed, shuffle=shuffle)


def _unpack_batches(loader: Loader) -> "Generator[Batch, None, None]":
    """Yield each batch as (images, labels). The loader yields two lists of one shard each."""
    with closing(iter(loader)) as batches:
        for (images,), (labels,) in batches:
            yield images, labels


def _wait_for_loss_sum(losses: Sequence[nd.NDArray], images: int) -> float:
    """Wait for the sum of a batch's losses, check that the mean is valid, and return the sum.

    ``losses``: the sum on each device. ``images``: the number of images in the batch.
    """
    loss = _sum_parts(losses)
    check_loss("the loss", loss / images)
    return loss


def _sum_parts(parts: Sequence[nd.NDArray]) -> float:
    return float(sum(part.asscalar() for part in parts))


def _check_dataset_fits(dataset: Dataset) -> None:
    """Raise ModelError if LeNet does not support the images' shape or the number of classes."""
    if dataset.image_shape != IMAGE_SHAPE or len(dataset.classes) != CLASSES:
        shape = "x".join(map(str, dataset.image_shape))
        raise ModelError(
            f"{dataset.name} has images of shape {shape} in {len(dataset.classes)} classes, but this LeNet needs "
            f"images of shape 1x28x28 in {CLASSES} classes: choose another data set, or use gluonlab run"
        )
