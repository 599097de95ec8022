"""BatchNorm over the whole batch: for which layers, and in which networks.

MXNet's SyncBatchNorm waits inside an operator until all devices have come that far, averages their
means whatever the sizes of their shards, and so is wrong for unequal ones and hangs for ever when a
device has none. Here nothing waits: a network is cut in front of its BatchNorm layers
(`gluonlab.parallel.data.stages`), and between the stages mean and variance of the whole batch are
made of those of the devices (`gluonlab.parallel.data.shared_statistics`), all of which MXNet's
engine orders like any other work.

One graph of all devices (``group2ctx``), in which the statistics are sums and backward follows by
differentiation, would be the other way. On GPUs each of its sums is a launch, 1,380 in a step of a
ResNet-18 on two instead of 461. On two CPU devices of one thread it took 1.5 (resnet18), 5.1
(resnet8) and 5.3 times (cifar_resnet20) as long, in turns in one process on an AMD EPYC, shares of
8 to 32 images of 32x32, medians of 10 pairs: backward goes through the pooling that made each sum.
"""

from __future__ import annotations

from typing import Iterator, List, NamedTuple

from mxnet import gluon
from mxnet.gluon import contrib, nn

from gluonlab.errors import ModelError
from gluonlab.models.graphs import Node

# operators of their own, which nothing here shares
OTHER_KINDS = (nn.BatchNormReLU, contrib.nn.SyncBatchNorm)


class Statistics(NamedTuple):
    """What a BatchNorm layer's running statistics are called, and how slowly they move."""

    running_mean: str
    running_var: str
    momentum: float


def check_network(net: gluon.Block, name: str) -> None:
    """Raise ModelError for a network without a BatchNorm to share, or with an unusual one.

    Its shapes may be unknown.
    """
    looking = [layer for layer in _layers(net) if _looks_at_batch(layer)]
    if not looking:
        raise ModelError(
            f"--sync-bn: {name} has no BatchNorm layers: leave it out, or choose another --model"
        )
    for layer in looking:
        if isinstance(layer, OTHER_KINDS):
            kind = type(layer).__name__
            raise ModelError(
                f"--sync-bn: {name} has a {kind}, not a BatchNorm: "
                "leave it out, or choose another --model"
            )
        if layer._kwargs["axis"] != 1:
            raise ModelError(
                f"--sync-bn: {name} has a BatchNorm over another axis than 1: "
                "leave it out, or choose another --model"
            )


def _looks_at_batch(layer: gluon.Block) -> bool:
    return isinstance(layer, (nn.BatchNorm, *OTHER_KINDS)) and not layer._kwargs.get(
        "use_global_stats", False
    )


def _layers(block: gluon.Block) -> Iterator[gluon.Block]:
    yield block
    for child in block._children.values():
        yield from _layers(child)


def is_batch_norm(node: Node) -> bool:
    """Whether a node is a BatchNorm that looks at the batch (no ``use_global_stats``)."""
    return bool(
        node["op"] == "BatchNorm"
        and node.get("attrs", {}).get("use_global_stats", "False") not in ("True", "1")
    )


def statistics_of(nodes: List[Node], node: Node) -> Statistics:
    """What a BatchNorm's node says of its running statistics."""
    mean, variance = (nodes[entry[0]]["name"] for entry in node["inputs"][3:5])
    return Statistics(mean, variance, float(node.get("attrs", {}).get("momentum", 0.9)))
