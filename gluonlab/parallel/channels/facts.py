"""What a graph says of its operators' channels: shapes, and who works on each channel alone."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Set, Tuple

import mxnet as mx

from gluonlab.models.graphs import Node, parsed
from gluonlab.parallel.channels.layout import Shape

BY_CHANNEL = {
    "Activation", "BlockGrad", "Cast", "Dropout", "Flatten", "Pooling", "_copy", "_div_scalar",
    "_maximum_scalar", "_minus_scalar", "_mul_scalar", "_plus_scalar", "_power_scalar", "abs",
    "amp_cast", "clip", "erf", "exp", "flatten", "hard_sigmoid", "identity", "log", "negative",
    "relu", "sigmoid", "softsign", "sqrt", "square", "tanh",
}  # fmt: skip
PLAIN_LEAKY = {"leaky", "elu", "selu", "gelu"}  # of LeakyReLU: neither weights nor random numbers
LAYERS = {"Convolution": "num_filter", "FullyConnected": "num_hidden"}


class Facts:
    """The ``nodes`` of a graph, their ``shapes`` by node and output, and how often each is used.

    ``inputs``: shapes from which all others follow. ``last_layers``: behind them comes no other.
    """

    def __init__(self, graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> None:
        whole = parsed(graph)
        self.nodes: List[Node] = whole["nodes"]
        self.heads, self.attrs = whole["heads"], whole["attrs"]
        self.shapes = _shapes(graph, inputs)
        self.uses = _uses(self.nodes)
        self.last_layers = _last_layers(self.nodes)

    def is_plain(self, node: Node) -> bool:
        """Whether a layer's weights are parameters of its own, and its channels in axis 1."""
        attrs = node.get("attrs", {})
        own = [entry[0] for entry in node["inputs"][1:]]
        return (
            all(self.nodes[i]["op"] == "null" and self.uses[i] == 1 for i in own)
            and attrs.get("layout", "NCHW") in ("NCW", "NCHW", "NCDHW", "None")
            and attrs.get("flatten", "True") == "True"
        )

    def is_by_channel(self, node: Node) -> bool:
        """Whether a node without parameters works on each channel by itself."""
        attrs = node.get("attrs", {})
        if node["op"] == "LeakyReLU":
            return attrs.get("act_type", "leaky") in PLAIN_LEAKY
        return node["op"] in BY_CHANNEL and len(node["inputs"]) == 1

    def params(self, node: Node) -> Tuple[str, Optional[str]]:
        """The names of a layer's weight, and of its bias if it has one."""
        names = [self.nodes[entry[0]]["name"] for entry in node["inputs"][1:]]
        return names[0], names[1] if len(names) > 1 else None

    def channels_of(self, place: int, output: int) -> int:
        """How many there are along axis 1."""
        shape = self.shapes[place, output]
        return shape[1] if len(shape) > 1 else 0

    def outputs(self, place: int) -> int:
        """How many outputs a node has."""
        return max(output for source, output in self.shapes if source == place) + 1


def _uses(nodes: Sequence[Node]) -> List[int]:
    uses = [0] * len(nodes)
    for node in nodes:
        for entry in node["inputs"]:
            uses[entry[0]] += 1
    return uses


def _last_layers(nodes: Sequence[Node]) -> Set[int]:
    """The layers behind which there is no other."""
    before = [False] * len(nodes)  # whether a layer comes after the node
    for place in range(len(nodes) - 1, -1, -1):
        for entry in nodes[place]["inputs"]:
            before[entry[0]] |= before[place] or nodes[place]["op"] in LAYERS
    return {i for i, node in enumerate(nodes) if node["op"] in LAYERS and not before[i]}


def _shapes(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> Dict[Tuple[int, int], Shape]:
    """The shape of every output of every node."""
    internals = graph.get_internals()
    _, shapes, _ = internals.infer_shape(**inputs)
    found: Dict[Tuple[int, int], Shape] = {}
    heads = parsed(internals)["heads"]
    for (place, output, *_), shape in zip(heads, shapes):
        found[place, output] = tuple(shape)
    return found
