"""A symbol as the list of its nodes, as MXNet's JSON has them, so that it can be made again with others."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx

Entry = List[int]  # [node, output, version]: how a node refers to an output of an earlier one
Node = Dict[str, Any]  # "op" ("null" for a variable), "name", "inputs" (entries), and perhaps "attrs" (all of them strings)


def parsed(graph: mx.sym.Symbol) -> Dict[str, Any]:
    """A symbol's "nodes", "heads" (entries) and "attrs"."""
    whole: Dict[str, Any] = json.loads(graph.tojson(remove_amp_cast=False))  # with the casts of mixed precision, too
    return whole


def new_node(op: str, name: str, inputs: Sequence[Entry], **attrs: Any) -> Node:
    """An operator's node."""
    return {"op": op, "name": name, "inputs": list(inputs), "attrs": {key: str(value) for key, value in attrs.items()}}


def to_symbol(nodes: Sequence[Node], heads: Sequence[Entry], attrs: Dict[str, Any]) -> mx.sym.Symbol:
    """The symbol with these nodes, whose outputs are ``heads``; ``attrs`` are those of the symbol that it was made from."""
    variables = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    return mx.sym.load_json(json.dumps({"nodes": list(nodes), "arg_nodes": variables, "heads": list(heads), "attrs": attrs}))


def shapes_in(graph: mx.sym.Symbol, inputs: Dict[str, Tuple[int, ...]]) -> Dict[str, Tuple[int, ...]]:
    """The shape of everything in a graph, by the name of the output; ``inputs``: those from which all others follow."""
    everything = graph.get_internals()
    return dict(zip(everything.list_outputs(), everything.infer_shape(**inputs)[1]))
