"""A network's graph cut in front of its BatchNorm layers, so that devices can meet in between.

Stage 0 ends where the first layers' images are made; the layers themselves begin stage 1, with mean
and variance as inputs, and so on. A layer that normalises by given numbers is one kernel on a GPU,
forward and backward, and its backward leaves the two sums of which the rest of the gradient is made
(`gluonlab.parallel.data.shared_statistics`).
"""

from __future__ import annotations

from itertools import chain
from typing import Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx

from gluonlab.errors import ModelError
from gluonlab.models.graphs import Entry, Node, new_node, parsed, to_symbol
from gluonlab.parallel.data.sync_bn import Statistics, is_batch_norm, statistics_of

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


class Stage(NamedTuple):
    """A part of a network's graph. Its outputs: ``gives``, then ``heads``."""

    graph: mx.sym.Symbol
    gives: List[str]  # values for later stages, in which variables have these names
    layers: List[Layer]  # whose data it gives
    heads: List[int]  # places in the list of the whole graph's outputs


def check_graph(graph: mx.sym.Symbol) -> None:
    """Raise ModelError for a BatchNorm of another axis or kind, or whose statistics are taken.

    `gluonlab.parallel.data.sync_bn.check_network` looks at layers; operators may be called without
    one.
    """
    whole = parsed(graph)
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


def cut(graph: mx.sym.Symbol) -> List[Stage]:
    """The stages of a graph, in which BatchNorm layers are given the batch's statistics."""
    old = parsed(graph)
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
        stage = _Builder(nodes, crossing)
        for i, node in enumerate(nodes):
            if node["op"] != "null" and stage_of[i] == number:
                stage.take(i, layers.get(i))
        gives = {name: entry for entry, name in crossing.items() if stage_of[entry[0]] == number}
        ending = [layer for layer in layers.values() if layer.data in gives]
        heads = [place for place, (i, _, _) in enumerate(old["heads"]) if stage_of[i] == number]
        entries = [stage.given(*entry) for entry in gives.values()]
        entries += [stage.entry(*old["heads"][place][:2]) for place in heads]
        part = to_symbol(stage.nodes, entries, old["attrs"])
        stages.append(Stage(part, list(gives), ending, heads))
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


class _Builder:
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
            new = new_node(
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
            entry = self._append(new_node("_copy", name, [entry]))
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
