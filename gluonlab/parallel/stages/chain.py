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
from mxnet.gluon import nn

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


def check_count(
    model: str, layers: Sequence[gluon.HybridBlock], possible: Sequence[int], stages: int
) -> None:
    """Raise ModelError unless `possible_cuts` are enough for so many stages."""
    if len(possible) >= stages - 1:
        return
    many, why = len(layers), ""
    if len(possible) < many - 1:
        places = ", ".join(map(str, possible)) or "none"
        why = (
            f" (it can be cut in front of these layers: {places}; at the others parameters are "
            "used on both sides, or several arrays go over the cut)"
        )
    fewer = "fewer stages, " if len(possible) else ""
    raise ModelError(
        f"{model} is a chain of {many} layer{'s' * (many != 1)}, which cannot be cut into "
        f"{stages}{why}: choose {fewer}--split data, or another network"
    )


def check_cuts(model: str, layers: Sequence[gluon.HybridBlock], cuts: Sequence[int]) -> None:
    """Raise ModelError unless the chain can be cut in front of the layers with these numbers.

    The numbers are in order, from 1 on: a part has one layer at least.
    """
    last = len(layers) - 1
    check_count(model, layers, range(1, len(layers)), len(cuts) + 1)
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


def possible_cuts(layers: Sequence[gluon.HybridBlock]) -> List[int]:
    """The numbers of the layers in front of which a chain can be cut.

    One array goes over a cut, and no parameter is used on both sides of it.
    """
    value, bounds = mx.sym.var(INPUT), [0]
    for number, layer in enumerate(layers[:-1], start=1):
        value = layer(value)
        if len(value.list_outputs()) == 1:
            bounds.append(number)
    last_user: Dict[str, int] = {}  # the stretch between bounds that is the last to use a parameter
    stretches = list(zip(bounds, [*bounds[1:], len(layers)]))
    names = [set(run(layers[a:b], mx.sym.var(INPUT)).list_inputs()) - {INPUT} for a, b in stretches]
    for number, own in enumerate(names):
        last_user.update(dict.fromkeys(own, number))
    cuts, reaches = [], 0
    for number, own in enumerate(names):
        if number > reaches:
            cuts.append(bounds[number])
        reaches = max([reaches, *(last_user[name] for name in own)])
    return cuts


def in_stretches(
    layers: Sequence[gluon.HybridBlock], cuts: Sequence[int]
) -> List[gluon.HybridBlock]:
    """The layers between cuts, each stretch as one layer."""
    stretches = []
    for begin, end in zip([0, *cuts], [*cuts, len(layers)]):
        stretch = layers[begin]
        if end - begin > 1:
            stretch = nn.HybridSequential(prefix="")  # takes no name
            stretch.add(*layers[begin:end])
        stretches.append(stretch)
    return stretches


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
