"""Reads MXNet symbols as lists of nodes, replaces nodes, and makes symbols from the result."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import mxnet as mx

from gluonlab.errors import ModelError

Entry = List[int]  # [node, output, version]: reference to an output of an earlier node
# "op" ("null" for a variable), "name", "inputs" (entries), and optionally "attrs" (strings)
Node = Dict[str, Any]
Shape = Tuple[int, ...]
Add = Callable[..., Entry]  # appends an operator to the new graph, see `replace_nodes`
Replacement = Callable[[Add, List[Entry]], Any]  # appends the operators that replace a node


def require_single_output(output: Any, name: str) -> mx.sym.Symbol:
    """Return the output of the network ``name``. Raise ModelError if it is not a single array."""
    if isinstance(output, mx.sym.Symbol):
        count = len(output.list_outputs())
        kind = f"{count} arrays"
    else:
        size = f" of {len(output)}" if isinstance(output, (tuple, list)) else ""
        count, kind = 0, f"a {type(output).__name__}{size}"
    if count != 1:
        raise ModelError(
            f"{name} returns {kind}, but must return one array: return only the scores, or wrap {name} in a block "
            "that returns only the scores"
        )
    return output


def parse_graph(graph: mx.sym.Symbol) -> Dict[str, Any]:
    """Parse a symbol into a dictionary with "nodes", "heads" (entries) and "attrs"."""
    # including the casts of mixed precision
    parts: Dict[str, Any] = json.loads(graph.tojson(remove_amp_cast=False))
    return parts


def attribute_numbers(node: Node, name: str) -> Shape:
    """Return the numbers in an attribute, such as a kernel's sides; () if the node lacks it.

    >>> attribute_numbers({"attrs": {"kernel": "(3L, 1L)"}}, "kernel")  # saved by MXNet on Python 2
    (3, 1)
    """
    return tuple(map(int, re.findall(r"-?\d+", node.get("attrs", {}).get(name, ""))))


def make_node(op: str, name: str, inputs: Sequence[Entry], **attrs: Any) -> Node:
    """Create the node of an operator."""
    texts = {key: str(value) for key, value in attrs.items()}
    return {"op": op, "name": name, "inputs": list(inputs), "attrs": texts}


def to_symbol(nodes: Sequence[Node], heads: Sequence[Entry], attrs: Dict[str, Any]) -> mx.sym.Symbol:
    """Create the symbol with these nodes and outputs.

    ``attrs``: the attributes of the original symbol.
    """
    variables = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    graph = {"nodes": list(nodes), "arg_nodes": variables, "heads": list(heads), "attrs": attrs}
    return mx.sym.load_json(json.dumps(graph))


def iterate_output_shapes(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> Iterator[Tuple[str, Shape]]:
    """Yield (name, shape) for every output of every node, in order.

    ``inputs``: the shapes of some arguments, by name, from which all other shapes are inferred. If
    a block is called twice, the names of its outputs occur twice.
    """
    internals = graph.get_internals()
    return zip(internals.list_outputs(), internals.infer_shape(**inputs)[1])


def output_shapes(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> Dict[str, Shape]:
    """Return the shape of every output, by name. Omit names whose outputs differ in shape."""
    return _drop_ambiguous_names(iterate_output_shapes(graph, inputs))


def node_output_types(graph: mx.sym.Symbol, types: Mapping[str, Any]) -> Dict[str, Any]:
    """Infer the NumPy type of every output of every node, by name.

    Names whose outputs have different types are omitted.

    ``types``: the type of each argument, by name. If a type is missing, MXNet raises an error at
    operators that infer their type only from their inputs, such as SwapAxis.
    """
    parts = parse_graph(graph)
    for node in parts["nodes"]:
        if node["op"] == "null":
            # __dtype__ is the initial type of the parameter, which net.cast does not update.
            node.get("attrs", {}).pop("__dtype__", None)
    internals = to_symbol(parts["nodes"], parts["heads"], parts["attrs"]).get_internals()
    argument_types = {name: types[name] for name in graph.list_arguments()}
    return _drop_ambiguous_names(zip(internals.list_outputs(), internals.infer_type_partial(**argument_types)[1]))


def _drop_ambiguous_names(outputs: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return {name: value}, without names that occur with different values."""
    values: Dict[str, Set[Any]] = {}
    for name, value in outputs:
        values.setdefault(name, set()).add(value)
    return {name: candidates.pop() for name, candidates in values.items() if len(candidates) == 1}


def replace_nodes(
    graph: mx.sym.Symbol,
    inputs: Dict[str, Shape],
    choose: Callable[[Node, List[Optional[Shape]], Optional[Shape]], Optional[Replacement]],
) -> mx.sym.Symbol:
    """Replace some nodes of a graph. Return ``graph`` itself if nothing is replaced.

    Arguments, outputs and their names do not change.

    Args:
        graph: The graph.
        inputs: The shapes of some arguments, by name, from which all other shapes are inferred. May
            be empty if ``choose`` needs no shapes.
        choose: A function called with each node, the shapes of its inputs and the shape of its
            first output. Unknown shapes are None. Returns None to keep the node, or a
            `Replacement`: a function ``f(add, inputs)`` that appends operators in place of the
            node. ``add(op, suffix, inputs, **attrs)`` appends one operator, whose name consists of
            the node's name and the suffix, and returns the operator's output. The last operator has
            an empty suffix.
    """
    parts, shapes = parse_graph(graph), output_shapes(graph, inputs) if inputs else {}
    nodes: List[Node] = []
    new_indices: List[int] = []  # index of a node -> its index in the new graph
    is_changed = False

    def add(name: str, op: str, suffix: str, inputs: List[Entry], **attrs: Any) -> Entry:
        nodes.append(make_node(op, name + suffix, inputs, **attrs))
        return [len(nodes) - 1, 0, 0]

    for node in parts["nodes"]:
        input_shapes = [output_shape(parts["nodes"][i], output, shapes) for i, output, _ in node["inputs"]]
        replacement = choose(node, input_shapes, output_shape(node, 0, shapes))
        entries = [[new_indices[i], output, version] for i, output, version in node["inputs"]]
        if replacement is None:
            nodes.append({**node, "inputs": entries})
        else:
            replacement(partial(add, node["name"]), entries)
            is_changed = True
        new_indices.append(len(nodes) - 1)
    heads = [[new_indices[i], output, version] for i, output, version in parts["heads"]]
    return to_symbol(nodes, heads, parts["attrs"]) if is_changed else graph


def output_shape(node: Node, output: int, shapes: Dict[str, Shape]) -> Optional[Shape]:
    """Return the shape of output number ``output`` of a node; None if it is unknown.

    ``shapes``: the result of `output_shapes`. Only outputs with MXNet's default names, such as
    NAME_output and NAME_output1, are found. For other outputs, such as BatchNorm's mean, the result
    is None.
    """
    if node["op"] == "null":
        return shapes.get(node["name"])
    shape = shapes.get(f"{node['name']}_output") if output == 0 else None
    return shape or shapes.get(f"{node['name']}_output{output}")
