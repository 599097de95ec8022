"""One batch on several devices: split, compute, sum the gradients, update every replica.

The losses of a shard are added, not averaged, and the update divides by the size of the whole
batch. So every image counts the same however the batch was cut, and k devices make the update that
one device would make, up to the order of summation.
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
    """The parameters on one device, and the gradient of each.

    ``param.grad`` makes a new object over the same memory every time it is asked for. Here it is
    asked once, so that an allreduce that prepares itself for the arrays it is given knows them
    again in the next batch.
    """

    params: Params
    grads: List[nd.NDArray]


def get_params(params: Params, ctx: mx.Context) -> Replica:
    """A copy of ``params`` on the device ``ctx``, with gradients, which are zero at first."""
    copies = [param.copyto(ctx) for param in params]
    for param in copies:
        param.attach_grad()
    return Replica(copies, [param.grad for param in copies])


def allreduce(data: List[nd.NDArray]) -> None:
    """Replace arrays of equal shape, one on each device, by their sum.

    This is the star of `gluonlab.collectives.algorithms`: the first device receives all arrays and
    sends the sum back, while the others wait.
    """
    total, *others = data
    for other in others:
        total += other.as_in_context(total.ctx)
    for other in others:
        total.copyto(other)


def split_batch(
    images: nd.NDArray, labels: nd.NDArray, ctxs: Sequence[mx.Context]
) -> Tuple[List[nd.NDArray], List[nd.NDArray]]:
    """Images (n, ...) and labels (n,) -> their shards, each on its device, as even as possible.

    With fewer images than devices the lists are shorter than ``ctxs``: the last devices get no
    shard. Raises DataError when there is not one label for each image.
    """
    if len(images) != len(labels):
        raise DataError(
            f"{len(images)} images came with {len(labels)} labels: give one label per image"
        )
    return shard(images, ctxs), shard(labels, ctxs)


def train_batch(
    images: nd.NDArray,
    labels: nd.NDArray,
    replicas: Sequence[Replica],
    lr: float,
    allreduce: Allreduce = allreduce,
) -> List[nd.NDArray]:
    """Train on one batch; the sum of each shard's losses (1,).

    Nothing waits: the devices work while the next batch is prepared.

    ``allreduce`` is called for one parameter after the other, with its gradients on all devices.
    """
    xs, ys = split_batch(images, labels, devices_of(replicas))
    with autograd.record():
        shards = zip(xs, ys, replicas)
        losses = [cross_entropy(lenet(x, replica.params), y).sum() for x, y, replica in shards]
    autograd.backward(losses)  # of all devices before anybody waits, so that they run side by side
    # had no shard: its gradients of the batch before must not count again
    for idle in replicas[len(xs) :]:
        for grad in idle.grads:
            grad[:] = 0
    for grads in zip(*[replica.grads for replica in replicas]):
        allreduce(list(grads))
    for replica in replicas:
        sgd(replica, lr, len(images))
    return losses


def sgd(replica: Replica, lr: float, global_batch_size: int) -> None:
    """One step down the gradient, which is a sum over ``global_batch_size`` images."""
    for param, grad in zip(replica.params, replica.grads):
        param -= lr / global_batch_size * grad


def devices_of(replicas: Sequence[Replica]) -> List[mx.Context]:
    """The device of each replica."""
    return [replica.params[0].ctx for replica in replicas]
