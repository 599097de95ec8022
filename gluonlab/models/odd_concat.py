"""Channels are put side by side by MXNet itself where oneDNN cannot cut them apart again.

oneDNN keeps images in blocks of up to 16 channels. Where a part of a concatenation does not fill its blocks, MXNet's backward
through oneDNN ends in "could not construct a sub-memory", or in the end of the process, and forward may ask for more memory than
there is: it depends on the order in which the neighbours have left their images. Of arrays with three axes oneDNN takes none.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import mxnet as mx

from gluonlab.models.graphs import Entry, Node, new_node, parsed, shapes_in, to_symbol

Shape = Tuple[int, ...]
BLOCK = 16  # channels; on older processors 8


def plain_where_channels_are_odd(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> mx.sym.Symbol:
    """``graph`` with concatenations of images (n, C, H, W) along C done on (n, C, H * W), unless every C is a multiple of BLOCK.

    ``inputs``: shapes from which all others follow. Arguments, outputs and their names stay what they are.
    """
    old = parsed(graph)
    if not any(_joins_channels(node) for node in old["nodes"]):
        return graph
    shapes = shapes_in(graph, inputs)
    nodes: List[Node] = []
    places: List[int] = []  # node of the old graph -> its node in the new one
    for node in old["nodes"]:
        entries = [[places[i], output, version] for i, output, version in node["inputs"]]
        if _joins_channels(node) and _is_odd([_shape(old["nodes"], entry, shapes) for entry in node["inputs"]]):
            _append_plain(nodes, node, entries)
        else:
            nodes.append({**node, "inputs": entries})
        places.append(len(nodes) - 1)
    return to_symbol(nodes, [[places[i], output, version] for i, output, version in old["heads"]], old["attrs"])


def _joins_channels(node: Node) -> bool:
    return bool(node["op"] == "Concat" and node.get("attrs", {}).get("dim", "1") in ("1", "-3"))


def _shape(nodes: List[Node], entry: Entry, shapes: Dict[str, Shape]) -> Optional[Shape]:
    """That of an output of an earlier node; several have numbers or names, and those with names are not known here."""
    source, output, _ = entry
    name = nodes[source]["name"]
    places = [name] if nodes[source]["op"] == "null" else [f"{name}_output", f"{name}_output{output}"]
    return next((shapes[place] for place in places if place in shapes), None)


def _is_odd(parts: List[Optional[Shape]]) -> bool:
    """Whether these are images, and the channels of one do not fill its blocks."""
    known = [shape for shape in parts if shape is not None]
    if not known or len(known[0]) != 4:
        return False
    return len(known) < len(parts) or any(shape[1] % BLOCK for shape in known)


def _append_plain(nodes: List[Node], node: Node, entries: List[Entry]) -> None:
    """The nodes that replace a concatenation; the last has its name."""

    def add(op: str, part: str, inputs: List[Entry], **attrs: object) -> Entry:
        nodes.append(new_node(op, f"{node['name']}{part}", inputs, **attrs))
        return [len(nodes) - 1, 0, 0]

    flat = [add("Reshape", f"_flat{i}", [entry], shape=(0, 0, -1)) for i, entry in enumerate(entries)]
    joined = add("Concat", "_joined", flat, num_args=len(flat), dim=1)
    ends = {"lhs_begin": 2, "lhs_end": 3, "rhs_begin": 2, "rhs_end": 4}
    add("reshape_like", "", [joined, entries[0]], **ends)
