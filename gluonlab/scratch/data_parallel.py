"""Data-parallel training on one batch, written with arrays only.

The batch is split over the devices. Each device computes the gradients of its shard. The gradients
are summed, and each replica is updated.

The losses of a shard are summed, not averaged, and the update divides by the size of the whole
batch. Therefore, every image has the same weight, however the batch is split. As a result, k
devices compute the same update as one device, except for rounding errors due to another order of
summation.
"""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, nd

from gluonlab.data.loading.split_batch import shard
from gluonlab.errors import DataError
from gluonlab.scratch.lenet import Params, cross_entropy, lenet

Allreduce = Callable[[List[nd.NDArray]], None]


class Replica(NamedTuple):
    """The parameters on one device, and their gradients.

    Each access to ``param.grad`` returns a new object for the same memory. ``grads`` stores the
    object of a single access, so that an allreduce with prepared operations recognizes the arrays
    in the next batch.
    """

    params: Params
    grads: List[nd.NDArray]


def get_params(params: Params, ctx: mx.Context) -> Replica:
    """Copy ``params`` to the device ``ctx``, with gradients of zero."""
    copies = [param.copyto(ctx) for param in params]
    for param in copies:
        param.attach_grad()
    return Replica(copies, [param.grad for param in copies])


def allreduce(data: List[nd.NDArray]) -> None:
    """Replace arrays of equal shape, one on each device, with their sum.

    This is the algorithm ``star`` of `gluonlab.collectives.algorithms`: the first device receives
    all arrays and sends the sum back, while the other devices wait.
    """
    total, *others = data
    for other in others:
        total += other.as_in_context(total.ctx)
    for other in others:
        total.copyto(other)


def split_batch(
    images: nd.NDArray, labels: nd.NDArray, ctxs: Sequence[mx.Context]
) -> Tuple[List[nd.NDArray], List[nd.NDArray]]:
    """Split images (n, ...) and labels (n,) evenly into shards, and copy each to its device.

    If there are fewer images than devices, the last devices get no shard, and the lists are shorter
    than ``ctxs``. Raises DataError if the number of labels differs from the number of images.
    """
    if len(images) != len(labels):
        raise DataError(f"got {len(images)} images but {len(labels)} labels: pass one label per image")
    return shard(images, ctxs), shard(labels, ctxs)


def train_batch(
    images: nd.NDArray, labels: nd.NDArray, replicas: Sequence[Replica], lr: float, allreduce: Allreduce = allreduce
) -> List[nd.NDArray]:
    """Train on one batch, and return the sum of each shard's losses as an array of shape (1,).

    The function does not wait, so the devices work while the next batch is prepared. ``allreduce``
    is called once per parameter, with the parameter's gradients on all devices.
    """
    xs, ys = split_batch(images, labels, replica_devices(replicas))
    with autograd.record():
        shards = zip(xs, ys, replicas)
        losses = [cross_entropy(lenet(x, replica.params), y).sum() for x, y, replica in shards]
    autograd.backward(losses)  # a single call for all devices, so that they run in parallel
    # A device without a shard must not add its gradients of the previous batch again.
    for idle_replica in replicas[len(xs) :]:
        for grad in idle_replica.grads:
            grad[:] = 0
    for grads in zip(*[replica.grads for replica in replicas]):
        allreduce(list(grads))
    for replica in replicas:
        sgd(replica, lr, len(images))
    return losses


def sgd(replica: Replica, lr: float, global_batch_size: int) -> None:
    """Update the parameters with gradients that are summed over ``global_batch_size`` images."""
    for param, grad in zip(replica.params, replica.grads):
        param -= lr / global_batch_size * grad


def replica_devices(replicas: Sequence[Replica]) -> List[mx.Context]:
    """Return the device of each replica."""
    return [replica.params[0].ctx for replica in replicas]
