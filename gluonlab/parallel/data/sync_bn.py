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

from typing import Any, Dict, Iterator, List, NamedTuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import contrib, nn

from gluonlab.errors import ModelError
from gluonlab.models.graphs import Node, parsed

# operators of their own, which nothing here shares
OTHER_KINDS = (nn.BatchNormReLU, contrib.nn.SyncBatchNorm)
WAITS = "_contrib_SyncBatchNorm"  # the only operator of MXNet that does


class Statistics(NamedTuple):
    """What a BatchNorm layer's running statistics are called, and how slowly they move."""

    running_mean: str
    running_var: str
    momentum: float


def check_waits(graph: mx.sym.Symbol, name: str, copies: int) -> None:
    """Raise ModelError for an operator in which training would wait for other devices.

    ``graph``: of the network, or network and loss, ``name``, which trains as so many copies.
    Devices are given their work one after the other, and what another one waits for may be behind
    its own waiting. Nothing waits in evaluation.
    """
    for node in _nodes(parsed(graph)):
        attrs = node.get("attrs", {})
        devices = int(attrs.get("ndev", 1))
        if node["op"] == WAITS and (copies > 1 or devices > 1) and not _by_global(attrs):
            raise ModelError(
                f"{name} has a SyncBatchNorm ({node['name']}, num_devices={devices}), which waits "
                "inside its operator for other devices, perhaps forever: write nn.BatchNorm, and "
                "use sync_bn=True in TrainConfig, or --sync-bn, for statistics of the whole batch"
            )


def _nodes(graph: Dict[str, Any]) -> Iterator[Node]:
    """Yield the nodes of a graph, and of the graphs inside them, such as the body of a loop."""
    for node in graph["nodes"]:
        yield node
        for inner in node.get("subgraphs", ()):
            yield from _nodes(inner)


def _by_global(attrs: Dict[str, str]) -> bool:
    return attrs.get("use_global_stats", "False").lower() in ("true", "1")


def check_network(net: gluon.Block, name: str) -> None:
    """Raise ModelError for a network without a BatchNorm to share, or with an unusual one.

    Its shapes may be unknown.
    """
    looking = [layer for layer in _layers(net) if _looks_at_batch(layer)]
    if not looking:
        raise ModelError(
            f"--sync-bn: {name} has no BatchNorm layers: leave it out, or choose another network"
        )
    for layer in looking:
        if isinstance(layer, contrib.nn.SyncBatchNorm):
            raise ModelError(
                f"--sync-bn: {name} has a SyncBatchNorm of MXNet: write nn.BatchNorm instead"
            )
        if isinstance(layer, OTHER_KINDS):
            kind = type(layer).__name__
            raise ModelError(
                f"--sync-bn: {name} has a {kind}, not a BatchNorm: "
                "leave it out, or choose another network"
            )
        if layer._kwargs["axis"] != 1:
            raise ModelError(
                f"--sync-bn: {name} has a BatchNorm over another axis than 1: "
                "leave it out, or choose another network"
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
    return bool(node["op"] == "BatchNorm" and not _by_global(node.get("attrs", {})))


def statistics_of(nodes: List[Node], node: Node) -> Statistics:
    """What a BatchNorm's node says of its running statistics."""
    mean, variance = (nodes[entry[0]]["name"] for entry in node["inputs"][3:5])
    return Statistics(mean, variance, float(node.get("attrs", {}).get("momentum", 0.9)))
