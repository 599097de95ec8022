"""A symbol as the list of its nodes, in MXNet's JSON, to be changed and made again."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import mxnet as mx

from gluonlab.errors import ModelError

Entry = List[int]  # [node, output, version]: how a node refers to an output of an earlier one
# "op" ("null" for a variable), "name", "inputs" (entries), and perhaps "attrs" (all of them
# strings)
Node = Dict[str, Any]
Shape = Tuple[int, ...]
Add = Callable[..., Entry]
Replacement = Callable[[Add, List[Entry]], Any]


def one_array(outcome: Any, name: str) -> mx.sym.Symbol:
    """Return the output of the network ``name``. Raises ModelError unless it is one array."""
    if isinstance(outcome, mx.sym.Symbol):
        count = len(outcome.list_outputs())
        kind = f"{count} arrays"
    else:
        size = f" of {len(outcome)}" if isinstance(outcome, (tuple, list)) else ""
        count, kind = 0, f"a {type(outcome).__name__}{size}"
    if count != 1:
        raise ModelError(
            f"{name} returns {kind}, but must return one array: let it return only its scores, or "
            "wrap it in a block that does"
        )
    return outcome


def parsed(graph: mx.sym.Symbol) -> Dict[str, Any]:
    """A symbol's "nodes", "heads" (entries) and "attrs"."""
    # with the casts of mixed precision, too
    whole: Dict[str, Any] = json.loads(graph.tojson(remove_amp_cast=False))
    return whole


def numbers(node: Node, name: str) -> Shape:
    """Return the numbers of an attribute, such as a kernel's sides; () if the node has none.

    >>> numbers({"attrs": {"kernel": "(3L, 1L)"}}, "kernel")  # saved by MXNet on Python 2
    (3, 1)
    """
    return tuple(map(int, re.findall(r"-?\d+", node.get("attrs", {}).get(name, ""))))


def new_node(op: str, name: str, inputs: Sequence[Entry], **attrs: Any) -> Node:
    """An operator's node."""
    texts = {key: str(value) for key, value in attrs.items()}
    return {"op": op, "name": name, "inputs": list(inputs), "attrs": texts}


def to_symbol(
    nodes: Sequence[Node], heads: Sequence[Entry], attrs: Dict[str, Any]
) -> mx.sym.Symbol:
    """The symbol with these nodes and the outputs ``heads``.

    ``attrs`` are those of the symbol that it was made from.
    """
    variables = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    graph = {"nodes": list(nodes), "arg_nodes": variables, "heads": list(heads), "attrs": attrs}
    return mx.sym.load_json(json.dumps(graph))


def outputs_in(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> Iterator[Tuple[str, Shape]]:
    """Name and shape of every output in a graph, in the order of its nodes.

    ``inputs``: shapes from which all others follow. A block that is called twice has its names
    twice.
    """
    everything = graph.get_internals()
    return zip(everything.list_outputs(), everything.infer_shape(**inputs)[1])


def shapes_in(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> Dict[str, Shape]:
    """`outputs_in` by name, without names that stand for several shapes."""
    return _by_name(outputs_in(graph, inputs))


def types_in(graph: mx.sym.Symbol, types: Mapping[str, Any]) -> Dict[str, Any]:
    """NumPy's type of every output in a graph by name, without names that stand for several.

    ``types``: of all arguments. From fewer, MXNet raises an error at operators that know their type
    from their inputs alone, such as SwapAxis, even if asked for what can be told.
    """
    parts = parsed(graph)
    for node in parts["nodes"]:
        if node["op"] == "null":
            # Gluon notes the type that a parameter had first, also after net.cast
            node.get("attrs", {}).pop("__dtype__", None)
    everything = to_symbol(parts["nodes"], parts["heads"], parts["attrs"]).get_internals()
    given = {name: types[name] for name in graph.list_arguments()}
    return _by_name(zip(everything.list_outputs(), everything.infer_type_partial(**given)[1]))


def _by_name(outputs: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """Of each name what all outputs of this name are, if they are alike."""
    found: Dict[str, Set[Any]] = {}
    for name, each in outputs:
        found.setdefault(name, set()).add(each)
    return {name: own.pop() for name, own in found.items() if len(own) == 1}


def with_replaced(
    graph: mx.sym.Symbol,
    inputs: Dict[str, Shape],
    choose: Callable[[Node, List[Optional[Shape]], Optional[Shape]], Optional[Replacement]],
) -> mx.sym.Symbol:
    """``graph`` with other nodes in the place of some of its own, or itself, where there are none.

    ``choose`` gets a node, the shapes of its inputs and that of its output, each None where it is
    not known, and gives what replaces the node, or None. That gets ``add(op, part, inputs,
    **attrs)``, which appends an operator, named by the node and ``part``, and returns its output,
    and the inputs of the node; the last operator, without a part, takes the node's place and name.
    ``inputs``: shapes from which all others follow; none, if ``choose`` needs no shapes. Arguments,
    outputs and their names stay.
    """
    old, shapes = parsed(graph), shapes_in(graph, inputs) if inputs else {}
    nodes: List[Node] = []
    places: List[int] = []  # node of the old graph -> its node in the new one
    replaced = False

    def add(name: str, op: str, part: str, inputs: List[Entry], **attrs: Any) -> Entry:
        nodes.append(new_node(op, name + part, inputs, **attrs))
        return [len(nodes) - 1, 0, 0]

    for node in old["nodes"]:
        seen = [shape_of(old["nodes"][i], output, shapes) for i, output, _ in node["inputs"]]
        replacement = choose(node, seen, shape_of(node, 0, shapes))
        entries = [[places[i], output, version] for i, output, version in node["inputs"]]
        if replacement is None:
            nodes.append({**node, "inputs": entries})
        else:
            replacement(partial(add, node["name"]), entries)
            replaced = True
        places.append(len(nodes) - 1)
    heads = [[places[i], output, version] for i, output, version in old["heads"]]
    return to_symbol(nodes, heads, old["attrs"]) if replaced else graph


def shape_of(node: Node, output: int, shapes: Dict[str, Shape]) -> Optional[Shape]:
    """The shape of one output of a node, by `shapes_in`; None for outputs with names of their own.

    BatchNorm's mean has one.
    """
    if node["op"] == "null":
        return shapes.get(node["name"])
    only = shapes.get(f"{node['name']}_output") if output == 0 else None
    return only or shapes.get(f"{node['name']}_output{output}")
