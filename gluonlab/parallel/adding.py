"""Graphs in a form in which MXNet adds gradients rightly to those that are there.

Bound with grad_req "add", many operators add wrongly to what is there where their input is the
argument itself: `+` counts it twice, an average that is broadcast loses it. Their gradients are
right; so a parameter goes to them by way of a product with 1, which adds rightly.
"""

from __future__ import annotations

from typing import Container, Dict, List

import mxnet as mx

from gluonlab.models.graphs import Entry, Node, new_node, parsed, to_symbol

# What was tried and found right, and is what nearly all parameters go to.
ADD_RIGHTLY = (
    "Convolution",
    "Deconvolution",
    "FullyConnected",
    "BatchNorm",
    "LayerNorm",
    "Embedding",
)


def adding_rightly(graph: mx.sym.Symbol, params: Container[str]) -> mx.sym.Symbol:
    """The same function of the same arguments; ``graph`` itself where nothing is to be changed."""
    old = parsed(graph)
    nodes: List[Node] = []
    places: List[int] = []  # node of the old graph -> its node in the new one
    products: Dict[int, Entry] = {}

    def by_product(source: int) -> Entry:
        if source not in products:
            name = f"{old['nodes'][source]['name']}@times_1"
            nodes.append(new_node("_mul_scalar", name, [[places[source], 0, 0]], scalar=1.0))
            products[source] = [len(nodes) - 1, 0, 0]
        return products[source]

    for node in old["nodes"]:
        entries = []
        for source, output, version in node["inputs"]:
            taken = old["nodes"][source]
            direct = (
                taken["op"] == "null" and taken["name"] in params and node["op"] not in ADD_RIGHTLY
            )
            entries.append(by_product(source) if direct else [places[source], output, version])
        nodes.append({**node, "inputs": entries})
        places.append(len(nodes) - 1)
    heads = [[places[i], output, version] for i, output, version in old["heads"]]
    return to_symbol(nodes, heads, old["attrs"]) if products else graph
