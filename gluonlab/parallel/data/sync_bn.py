"""BatchNorm over the whole batch: for which layers, and in which networks.

MXNet's SyncBatchNorm waits inside an operator until all devices have come that far, averages their
means whatever the sizes of their shards, and so is wrong for unequal ones and hangs for ever when a
device has none. Here nothing waits: a network is cut in front of its BatchNorm layers
(`cut`), and between the stages mean and variance of the whole batch are
made of those of the devices (`gluonlab.parallel.data.sync_bn_statistics`), all of which MXNet's
engine orders like any other work.

One graph of all devices (``group2ctx``), in which the statistics are sums and backward follows by
differentiation, would be the other way. On GPUs each of its sums is a launch, 1,380 in a step of a
ResNet-18 on two instead of 461. On two CPU devices of one thread it took 1.5 (resnet18), 5.1
(resnet8) and 5.3 times (cifar_resnet20) as long, in turns in one process on an AMD EPYC, shares of
8 to 32 images of 32x32, medians of 10 pairs: backward goes through the pooling that made each sum.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import contrib, nn

from gluonlab.errors import ModelError
from gluonlab.models.symbol_graph import Entry, Node, make_node, parse_graph, to_symbol

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
    for node in _nodes(parse_graph(graph)):
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


# The network's graph, cut in front of its BatchNorm layers, so that devices can meet in between.
# Stage 0 ends where the first layers' images are made; the layers themselves begin stage 1, with
# mean and variance as inputs, and so on. A layer that normalises by given numbers is one kernel on
# a GPU, forward and backward, and its backward leaves the two sums of which the rest of the
# gradient is made (`gluonlab.parallel.data.sync_bn_statistics`).

# whose statistics nothing here shares
OTHER_OPERATORS = ("BatchNorm_v1", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")


class Layer(NamedTuple):
    """A BatchNorm layer whose statistics the devices share.

    Strings name variables and parameters.
    """

    number: int  # among the layers of the whole graph
    name: str
    data: str  # what it normalises: a value that goes from one stage to the next
    gamma: Optional[str]  # a parameter; None for ones
    beta: str
    running: Statistics
    epsilon: float

    @property
    def told(self) -> Tuple[str, str, str, str]:
        """Gamma, beta, mean and variance (with epsilon) that it is given, variables of its own."""
        own = f"{self.name}@"
        return own + "gamma", own + "beta", own + "mean", own + "variance"


class GraphStage(NamedTuple):
    """A part of a network's graph. Its outputs: ``gives``, then ``heads``."""

    graph: mx.sym.Symbol
    gives: List[str]  # values for later stages, in which variables have these names
    layers: List[Layer]  # whose data it gives
    heads: List[int]  # places in the list of the whole graph's outputs


def check_graph(graph: mx.sym.Symbol) -> None:
    """Raise ModelError for a BatchNorm of another axis or kind, or whose statistics are taken.

    `check_network` looks at layers; operators may be called without
    one.
    """
    whole = parse_graph(graph)
    nodes = whole["nodes"]
    for node in nodes:
        axis = node.get("attrs", {}).get("axis", "1")
        if is_batch_norm(node) and axis != "1":
            raise ModelError(
                f"sync_bn: {node['name']} is a BatchNorm over axis {axis}: "
                "leave sync_bn out, or have channels in axis 1"
            )
        if node["op"] in OTHER_OPERATORS:
            raise ModelError(
                f"sync_bn: {node['name']} is a {node['op']}: leave sync_bn out, or take BatchNorm"
            )
    for source, output, _ in chain(whole["heads"], *(node["inputs"] for node in nodes)):
        if output > 0 and is_batch_norm(nodes[source]):
            name = nodes[source]["name"]
            raise ModelError(
                f"sync_bn: the network takes mean or variance from {name}: "
                "leave sync_bn out, or take its images alone"
            )


def cut(graph: mx.sym.Symbol) -> List[GraphStage]:
    """The stages of a graph, in which BatchNorm layers are given the batch's statistics."""
    old = parse_graph(graph)
    nodes = old["nodes"]
    stage_of: List[int] = []
    for node in nodes:
        last = max((stage_of[i] for i, _, _ in node["inputs"]), default=0)
        stage_of.append(last + is_batch_norm(node))
    places = [i for i, node in enumerate(nodes) if is_batch_norm(node)]
    layers = {place: _layer(nodes, place, number) for number, place in enumerate(places)}
    # (node, output) -> the name of what goes to a later stage
    crossing: Dict[Tuple[int, int], str] = {}
    for i, node in enumerate(nodes):
        for place, (source, output, _) in enumerate(node["inputs"]):
            is_data = i in layers and place == 0
            if is_data or (nodes[source]["op"] != "null" and stage_of[source] < stage_of[i]):
                crossing[source, output] = _name(nodes, source, output)
    stages = []
    for number in range(max(stage_of) + 1):
        stage = _StageBuilder(nodes, crossing)
        for i, node in enumerate(nodes):
            if node["op"] != "null" and stage_of[i] == number:
                stage.take(i, layers.get(i))
        gives = {name: entry for entry, name in crossing.items() if stage_of[entry[0]] == number}
        ending = [layer for layer in layers.values() if layer.data in gives]
        heads = [place for place, (i, _, _) in enumerate(old["heads"]) if stage_of[i] == number]
        entries = [stage.given(*entry) for entry in gives.values()]
        entries += [stage.entry(*old["heads"][place][:2]) for place in heads]
        part = to_symbol(stage.nodes, entries, old["attrs"])
        stages.append(GraphStage(part, list(gives), ending, heads))
    return stages


def _name(nodes: List[Node], node: int, output: int) -> str:
    return f"{nodes[node]['name']}@{node}.{output}"  # two nodes may have the same name


def _layer(nodes: List[Node], place: int, number: int) -> Layer:
    node = nodes[place]
    attrs = node.get("attrs", {})
    (source, output, _), (gamma, _, _), (beta, _, _) = node["inputs"][:3]
    return Layer(
        number=number,
        name=f"{node['name']}@{place}",
        data=_name(nodes, source, output),
        gamma=None if attrs.get("fix_gamma", "True") == "True" else nodes[gamma]["name"],
        beta=nodes[beta]["name"],
        running=statistics_of(nodes, node),
        epsilon=float(attrs.get("eps", 1e-3)),
    )


class _StageBuilder:
    """The nodes of one stage."""

    def __init__(self, nodes: List[Node], crossing: Dict[Tuple[int, int], str]) -> None:
        self._old, self._crossing = nodes, crossing
        self.nodes: List[Node] = []
        self._places: Dict[int, int] = {}  # node of the whole graph -> its place here
        self._variables: Dict[str, int] = {}

    def take(self, i: int, layer: "Layer | None") -> None:
        """A node of the whole graph."""
        node = self._old[i]
        if layer is None:
            inputs = [self.entry(source, output) for source, output, _ in node["inputs"]]
            new = {**node, "inputs": inputs}
        else:
            inputs = [self._variable(name) for name in (layer.data, *layer.told)]
            new = make_node(
                "BatchNorm", node["name"], inputs, use_global_stats=True, fix_gamma=False, eps=0.0
            )
        self._places[i] = self._append(new)[0]

    def entry(self, source: int, output: int) -> Entry:
        """What a node here takes."""
        if source in self._places:
            return [self._places[source], output, 0]
        if self._old[source]["op"] == "null":
            return self._variable(self._old[source]["name"], self._old[source])
        return self._variable(self._crossing[source, output])

    def given(self, source: int, output: int) -> Entry:
        """What goes to later stages."""
        entry = self.entry(source, output)
        if self.nodes[entry[0]]["op"] == "null":  # no stage has a variable among its outputs
            name = f"{_name(self._old, source, output)}_copy"
            entry = self._append(make_node("_copy", name, [entry]))
            self._places[source] = entry[0]
        return entry

    def _variable(self, name: str, node: "Node | None" = None) -> Entry:
        if name not in self._variables:
            new = node or {"op": "null", "name": name, "inputs": []}
            self._variables[name] = self._append(new)[0]
        return [self._variables[name], 0, 0]

    def _append(self, node: Node) -> Entry:
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0, 0]
