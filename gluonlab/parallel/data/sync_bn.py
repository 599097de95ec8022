"""Sync BatchNorm: divides a network's graph into stages at its BatchNorm layers.

`split_at_batch_norm` cuts the graph in front of its BatchNorm layers. Between two stages, the mean
and variance of the whole batch are computed from the means and variances of the devices
(`gluonlab.parallel.data.sync_bn_statistics`). MXNet's engine schedules this computation like any
other operation, and no call waits for the result.

Two alternatives were rejected:

- MXNet's SyncBatchNorm waits inside an operator until all devices have reached the operator. The
  operator averages the devices' means regardless of the sizes of their shards. So the result is
  wrong for unequal shards, and training hangs forever if some device has no shard.
- One graph for all devices (``group2ctx``), which contains the sums over devices. On GPUs each sum
  is a kernel launch. A step of a ResNet-18 on two GPUs has 1,380 launches instead of 461. On two
  CPU devices with one thread each, such a step took 1.5 times (resnet18), 5.1 times (resnet8) and
  5.3 times (cifar_resnet20) as long. The factors are medians of 10 pairs of runs, interleaved in
  one process on an AMD EPYC, with shards of 8 to 32 images of 32x32 pixels.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import contrib, nn

from gluonlab.errors import ModelError
from gluonlab.models.symbol_graph import Entry, Node, make_node, parse_graph, to_symbol

# BatchNorm blocks whose operator is not BatchNorm.
UNSUPPORTED_BLOCKS = (nn.BatchNormReLU, contrib.nn.SyncBatchNorm)
NATIVE_SYNC_BN = "_contrib_SyncBatchNorm"  # the only operator of MXNet that waits for other devices


class RunningStatisticsNames(NamedTuple):
    """Names of a BatchNorm layer's running statistics, and their momentum."""

    running_mean: str
    running_var: str
    momentum: float


def check_native_sync_bn(graph: mx.sym.Symbol, name: str, copies: int) -> None:
    """Raise ModelError for MXNet's own SyncBatchNorm, if several devices could deadlock in it.

    Work is queued for one device after the other. So a device may wait for another device's work
    that has not been queued yet. In evaluation, devices do not wait for each other.

    Args:
        graph: Graph of the network, with or without the loss.
        name: Name of the network.
        copies: Number of replicas of the network.
    """
    for node in _iterate_nodes(parse_graph(graph)):
        attrs = node.get("attrs", {})
        devices = int(attrs.get("ndev", 1))
        if node["op"] == NATIVE_SYNC_BN and (copies > 1 or devices > 1) and not _uses_global_stats(attrs):
            raise ModelError(
                f"{name} contains a SyncBatchNorm ({node['name']}, num_devices={devices}), which can block "
                "forever while it waits for other devices: use nn.BatchNorm, and set --sync-bn"
            )


def _iterate_nodes(graph: Dict[str, Any]) -> Iterator[Node]:
    """Yield the nodes of a graph and of its subgraphs, such as the body of a loop."""
    for node in graph["nodes"]:
        yield node
        for inner in node.get("subgraphs", ()):
            yield from _iterate_nodes(inner)


def _uses_global_stats(attrs: Dict[str, str]) -> bool:
    return attrs.get("use_global_stats", "False").lower() in ("true", "1")


def check_network(net: gluon.Block, name: str) -> None:
    """Raise ModelError if a network has no BatchNorm, or a BatchNorm that cannot be synchronized.

    The shapes of the network's parameters may still be unknown.
    """
    batch_layers = [layer for layer in _iterate_blocks(net) if _uses_batch_statistics(layer)]
    if not batch_layers:
        raise ModelError(f"--sync-bn: {name} has no BatchNorm layers: omit --sync-bn, or choose another model")
    for layer in batch_layers:
        if isinstance(layer, contrib.nn.SyncBatchNorm):
            raise ModelError(
                f"--sync-bn: {name} contains MXNet's SyncBatchNorm, which is not supported: use nn.BatchNorm instead"
            )
        if isinstance(layer, UNSUPPORTED_BLOCKS):
            kind = type(layer).__name__
            raise ModelError(
                f"--sync-bn: {name} contains a {kind}, which is not supported: omit --sync-bn, or choose another model"
            )
        if layer._kwargs["axis"] != 1:
            raise ModelError(
                f"--sync-bn: {name} contains a BatchNorm on axis {layer._kwargs['axis']}, but only axis 1 is "
                "supported: omit --sync-bn, or choose another model"
            )


def _uses_batch_statistics(layer: gluon.Block) -> bool:
    return isinstance(layer, (nn.BatchNorm, *UNSUPPORTED_BLOCKS)) and not layer._kwargs.get("use_global_stats", False)


def _iterate_blocks(block: gluon.Block) -> Iterator[gluon.Block]:
    yield block
    for child in block._children.values():
        yield from _iterate_blocks(child)


def is_batch_norm(node: Node) -> bool:
    """Return True for a BatchNorm that uses batch statistics (not ``use_global_stats``)."""
    return bool(node["op"] == "BatchNorm" and not _uses_global_stats(node.get("attrs", {})))


def running_statistics_names(nodes: List[Node], node: Node) -> RunningStatisticsNames:
    """Return the names and the momentum of a BatchNorm node's running statistics."""
    mean, variance = (nodes[entry[0]]["name"] for entry in node["inputs"][3:5])
    return RunningStatisticsNames(mean, variance, float(node.get("attrs", {}).get("momentum", 0.9)))


# Stage 0 ends with the inputs of the first BatchNorm layers. Stage 1 starts with these layers, and
# its inputs include their means and variances. The next stages follow in the same way. A layer that
# normalizes by given statistics is one kernel on a GPU in forward, and one in backward. Its
# backward computes the two sums from which `gluonlab.parallel.data.sync_bn_statistics` completes
# the gradient.

# Operators whose statistics are not synchronized.
UNSUPPORTED_OPERATORS = ("BatchNorm_v1", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")


class BatchNormLayer(NamedTuple):
    """A BatchNorm layer with synchronized statistics."""

    number: int  # index of the layer in the whole graph
    name: str
    data: str  # name of the layer's input, which is an output of the previous stage
    gamma: Optional[str]  # name of the parameter; None if gamma is fixed to 1
    beta: str  # name of the parameter
    running: RunningStatisticsNames
    epsilon: float

    @property
    def input_names(self) -> Tuple[str, str, str, str]:
        """Names of the variables gamma, beta, mean and variance (with epsilon) of the layer."""
        prefix = f"{self.name}@"
        return prefix + "gamma", prefix + "beta", prefix + "mean", prefix + "variance"


class GraphStage(NamedTuple):
    """A part of a network's graph. The outputs are ``boundary_names``, followed by ``heads``."""

    graph: mx.sym.Symbol
    boundary_names: List[str]  # outputs that later stages read, under these names
    layers: List[BatchNormLayer]  # BatchNorm layers whose inputs are outputs of this stage
    heads: List[int]  # outputs of the whole graph that this stage computes, by index


def check_graph(graph: mx.sym.Symbol) -> None:
    """Raise ModelError for a BatchNorm operator that sync BatchNorm does not support.

    Axes other than 1, other kinds of BatchNorm, and networks that read the mean or variance
    returned by BatchNorm are not supported. `check_network` only checks blocks, but a network can
    also call operators directly.
    """
    json_graph = parse_graph(graph)
    nodes = json_graph["nodes"]
    for node in nodes:
        axis = node.get("attrs", {}).get("axis", "1")
        if is_batch_norm(node) and axis != "1":
            raise ModelError(
                f"sync_bn: {node['name']} is a BatchNorm on axis {axis}, but only axis 1 is supported: "
                "omit sync_bn, or move the channels to axis 1"
            )
        if node["op"] in UNSUPPORTED_OPERATORS:
            raise ModelError(
                f"sync_bn: {node['name']} is a {node['op']}, which is not supported: omit sync_bn, or use BatchNorm"
            )
    for source, output, _ in chain(json_graph["heads"], *(node["inputs"] for node in nodes)):
        if output > 0 and is_batch_norm(nodes[source]):
            name = nodes[source]["name"]
            raise ModelError(
                f"sync_bn: the model uses the mean or variance that {name} returns, which is not supported: "
                "omit sync_bn, or use only the normalized output of this layer"
            )


def split_at_batch_norm(graph: mx.sym.Symbol) -> List[GraphStage]:
    """Split a graph into stages before its BatchNorms.

    In a stage, a BatchNorm reads its mean and variance as inputs.
    """
    old = parse_graph(graph)
    nodes = old["nodes"]
    stage_of: List[int] = []
    for node in nodes:
        last = max((stage_of[i] for i, _, _ in node["inputs"]), default=0)
        stage_of.append(last + is_batch_norm(node))
    indices = [i for i, node in enumerate(nodes) if is_batch_norm(node)]
    layers = {i: _batch_norm_layer(nodes, i, number) for number, i in enumerate(indices)}
    crossing: Dict[Tuple[int, int], str] = {}  # (node, output) -> name in later stages
    for i, node in enumerate(nodes):
        for position, (source, output, _) in enumerate(node["inputs"]):
            is_data = i in layers and position == 0
            if is_data or (nodes[source]["op"] != "null" and stage_of[source] < stage_of[i]):
                crossing[source, output] = _value_name(nodes, source, output)
    stages = []
    for number in range(max(stage_of) + 1):
        builder = _StageBuilder(nodes, crossing)
        for i, node in enumerate(nodes):
            if node["op"] != "null" and stage_of[i] == number:
                builder.append_node(i, layers.get(i))
        boundary = {name: entry for entry, name in crossing.items() if stage_of[entry[0]] == number}
        next_layers = [layer for layer in layers.values() if layer.data in boundary]
        heads = [head for head, (i, _, _) in enumerate(old["heads"]) if stage_of[i] == number]
        entries = [builder.boundary_entry(*entry) for entry in boundary.values()]
        entries += [builder.input_entry(*old["heads"][head][:2]) for head in heads]
        graph_stage = to_symbol(builder.nodes, entries, old["attrs"])
        stages.append(GraphStage(graph_stage, list(boundary), next_layers, heads))
    return stages


def _value_name(nodes: List[Node], node: int, output: int) -> str:
    return f"{nodes[node]['name']}@{node}.{output}"  # two nodes may have the same name


def _batch_norm_layer(nodes: List[Node], index: int, number: int) -> BatchNormLayer:
    """Return the layer at node ``index``, which is BatchNorm number ``number`` in the graph."""
    node = nodes[index]
    attrs = node.get("attrs", {})
    (source, output, _), (gamma, _, _), (beta, _, _) = node["inputs"][:3]
    return BatchNormLayer(
        number=number,
        name=f"{node['name']}@{index}",
        data=_value_name(nodes, source, output),
        gamma=None if attrs.get("fix_gamma", "True") == "True" else nodes[gamma]["name"],
        beta=nodes[beta]["name"],
        running=running_statistics_names(nodes, node),
        epsilon=float(attrs.get("eps", 1e-3)),
    )


class _StageBuilder:
    """Builder of the graph of one stage."""

    def __init__(self, nodes: List[Node], crossing: Dict[Tuple[int, int], str]) -> None:
        self._old, self._crossing = nodes, crossing
        self.nodes: List[Node] = []
        self._new_index: Dict[int, int] = {}  # by index of the node in the whole graph
        self._variables: Dict[str, int] = {}

    def append_node(self, i: int, layer: "BatchNormLayer | None") -> None:
        """Append node i of the unsplit graph to this stage.

        ``layer``: describes the node if it is a BatchNorm; otherwise None.
        """
        node = self._old[i]
        if layer is None:
            inputs = [self.input_entry(source, output) for source, output, _ in node["inputs"]]
            new = {**node, "inputs": inputs}
        else:
            inputs = [self._get_variable(name) for name in (layer.data, *layer.input_names)]
            new = make_node("BatchNorm", node["name"], inputs, use_global_stats=True, fix_gamma=False, eps=0.0)
        self._new_index[i] = self._append(new)[0]

    def input_entry(self, source: int, output: int) -> Entry:
        """Return the entry of a node's output that this stage reads.

        The entry is the output of an earlier node in this stage, or a variable. ``source``: index
        of the node in the unsplit graph. ``output``: number of the node's output.
        """
        if source in self._new_index:
            return [self._new_index[source], output, 0]
        if self._old[source]["op"] == "null":
            return self._get_variable(self._old[source]["name"], self._old[source])
        return self._get_variable(self._crossing[source, output])

    def boundary_entry(self, source: int, output: int) -> Entry:
        """Return the entry of a node's output that later stages read."""
        entry = self.input_entry(source, output)
        if self.nodes[entry[0]]["op"] == "null":  # a variable cannot be an output itself
            name = f"{_value_name(self._old, source, output)}_copy"
            entry = self._append(make_node("_copy", name, [entry]))
            self._new_index[source] = entry[0]
        return entry

    def _get_variable(self, name: str, node: "Node | None" = None) -> Entry:
        """Return the entry of a variable in this stage. The first call appends the variable.

        ``node``: the variable's node in the unsplit graph; None for a new variable.
        """
        if name not in self._variables:
            new = node or {"op": "null", "name": name, "inputs": []}
            self._variables[name] = self._append(new)[0]
        return [self._variables[name], 0, 0]

    def _append(self, node: Node) -> Entry:
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0, 0]
