"""A network as a chain of layers, each of which takes what the one before gives.

Where a block is nothing but its children, one after the other, its layers are theirs: those of a
HybridSequential, and of gluoncv's networks, which are `features` and then `output`. A block that
does more than that, such as a residual one, is one layer. Which is the case is not believed but
seen: the graph of the children in a row must be that of the block.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx
from mxnet import gluon

from gluonlab.errors import ModelError
from gluonlab.models.graphs import parsed

INPUT = "gluonlab_chain"


def layers_of(net: gluon.HybridBlock) -> List[gluon.HybridBlock]:
    """The layers of a network's chain; the network itself where it is none."""
    children = list(net._children.values())
    if not children or not _is_chain(net, children):
        return [net]
    return [layer for child in children for layer in layers_of(child)]


def run(layers: Sequence[gluon.HybridBlock], value: Any) -> Any:
    """What the layers make of a value, a symbol or an array, one after the other."""
    for layer in layers:
        value = layer(value)
    return value


def check_cuts(model: str, layers: Sequence[gluon.HybridBlock], cuts: Sequence[int]) -> None:
    """Raise ModelError unless the chain can be cut in front of the layers with these numbers.

    The numbers are in order, from 1 on: a part has one layer at least.
    """
    last = len(layers) - 1
    if last < len(cuts):
        raise ModelError(
            f"{model} is a chain of {len(layers)} layer{'s' * (len(layers) != 1)}, "
            f"which cannot be cut into {len(cuts) + 1}: choose fewer stages, or another network"
        )
    shown = ",".join(map(str, cuts))
    if list(cuts) != sorted(set(cuts)) or not all(1 <= cut <= last for cut in cuts):
        raise ModelError(
            f"--cut {shown}: give numbers from 1 to {last}, each larger than the one before; "
            f"the layers of {model}: {numbered(layers)}"
        )
    for cut in cuts:
        if len(run(layers[:cut], mx.sym.var(INPUT)).list_outputs()) > 1:
            raise ModelError(
                f"--cut {shown}: layer {cut} of {model}, {name_of(layers[cut])}, takes several "
                "arrays, and one is all that goes over a cut: cut elsewhere"
            )


def numbered(layers: Sequence[gluon.HybridBlock]) -> str:
    """``0 conv0, 1 pool0, 2 relu0``"""
    return ", ".join(f"{number} {name_of(layer)}" for number, layer in enumerate(layers))


def name_of(layer: gluon.HybridBlock) -> str:
    """A layer's name without those of the blocks that it is in."""
    return str(layer.name).rsplit("_", 1)[-1]


def _is_chain(net: gluon.HybridBlock, children: Sequence[gluon.HybridBlock]) -> bool:
    value = mx.sym.var(INPUT)
    try:
        return _shape_of(run(children, value)) == _shape_of(net(value))
    except (TypeError, ValueError, AttributeError, AssertionError, mx.base.MXNetError):
        return False  # a child takes something else than what the one before gives


def _shape_of(graph: mx.sym.Symbol) -> Tuple[Any, ...]:
    """A graph without names of operators and versions of entries, which count what was made."""
    whole = parsed(graph)
    nodes: List[Dict[str, Any]] = whole["nodes"]
    return (
        [
            (
                node["op"],
                [entry[:2] for entry in node["inputs"]],
                node.get("attrs"),
                node["op"] == "null" and node["name"],
            )
            for node in nodes
        ],
        [head[:2] for head in whole["heads"]],
    )
