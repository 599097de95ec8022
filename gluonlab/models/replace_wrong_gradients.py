"""Rewrites or rejects operators whose gradient is wrong in MXNet 1.9.1.

A test compares the gradient of every operator with numerical differences, in MXNet's imperative
mode and in compiled graphs (tests/models/test_operator_gradients.py). The gradients of these
operators are wrong:

========================================  =======================================================
``LeakyReLU(act_type="prelu")``           alpha's gradient is multiplied by alpha in compiled
                                          graphs: the input's gradient overwrites the output's
                                          before alpha's gradient reads it
``LeakyReLU(act_type="selu")``            too small below 0, in every mode
``SequenceLast`` without lengths          zero, and memory after the array is overwritten
``where`` of mx.np with a number          MXNet returns the gradient of the other elements
``arctan2`` of mx.np, number over array   MXNet returns the gradient of another function
``FullyConnected`` on CPUs, ``ediff1d``,  uninitialized memory, if some inputs are frozen
``polyval``, two products of attention
``LeakyReLU(act_type="rrelu")``           the process exits: refused
``rot90`` of mx.np                        rotated in the wrong direction: refused
``var``, ``std``, ``percentile``,         zero: refused
``atleast_1d`` to ``3d``, ``eigh``,
``eigvalsh``, ``pinv`` of mx.np
``hawkesll``                              differs between graphs and imperative mode: refused
``linalg.norm`` of order 1 or 2           the output's gradient is counted twice: refused
========================================  =======================================================

Rewriting does not change the computed function, the arguments, the outputs or their names.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Tuple

import mxnet as mx

from gluonlab.errors import ModelError
from gluonlab.models.symbol_graph import Add, Entry, Node, Replacement, parse_graph, replace_nodes

# Klambauer et al., "Self-normalizing neural networks", 2017.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805

Append = Callable[[Mapping[str, str], Add, List[Entry]], Any]  # (attributes, add, inputs)

# Refused operators: the name that users know, the effect, and how to avoid the operator.
REFUSED = {
    "LeakyReLU": ("LeakyReLU(act_type='rrelu')", "crashes the process", "use act_type='leaky'"),
    "_npi_norm": (
        "np.linalg.norm(ord=1 or 2) of a matrix",
        "counts the output's gradient twice",
        "use np.abs and np.max, or use ord='fro'",
    ),
    "_npi_rot90": ("np.rot90", "rotates gradients in the wrong direction", "use np.flip and np.transpose"),
    "_npi_var": ("np.var", "has no gradient", "use the mean of (x - x.mean()) ** 2"),
    "_npi_std": ("np.std", "has no gradient", "use the root of the mean of (x - x.mean()) ** 2"),
    "_npi_percentile": ("np.percentile", "has no gradient", "use npx.topk or np.max"),
    "_npi_eigh": ("np.linalg.eigh", "has no gradient", "use F.linalg.syevd of mx.nd"),
    "_npi_eigvalsh": ("np.linalg.eigvalsh", "has no gradient", "use F.linalg.syevd of mx.nd"),
    "_npi_pinv": ("np.linalg.pinv", "has no gradient", "use np.linalg.solve"),
    "_npi_pinv_scalar_rcond": ("np.linalg.pinv", "has no gradient", "use np.linalg.solve"),
    "_np_atleast_1d": ("np.atleast_1d", "has no gradient", "use np.reshape"),
    "_np_atleast_2d": ("np.atleast_2d", "has no gradient", "use np.reshape"),
    "_np_atleast_3d": ("np.atleast_3d", "has no gradient", "use np.reshape"),
    "_contrib_hawkesll": ("contrib.hawkesll", "has a wrong gradient", "use other operators"),
}

# Positions of the inputs whose gradients are correct only if MXNet computes all of them. For
# FullyConnected, these inputs are the weight and the bias.
JOINT_GRADIENT_INPUTS = {
    "FullyConnected": (1, 2),
    "_contrib_interleaved_matmul_selfatt_valatt": (0, 1),
    "_contrib_interleaved_matmul_encdec_qk": (0, 1),
    "_npi_ediff1d": (0, 1, 2),
    "_npi_polyval": (0, 1),
}


def check_gradients(graph: mx.sym.Symbol, name: str, trained: Collection[str]) -> None:
    """Raise ModelError if a network or loss contains an operator that is rejected in training.

    ``name``: the name of the network or loss in error messages. ``trained``: the names of the
    arguments whose gradients are requested.
    """
    for node in parse_graph(graph)["nodes"]:
        if node["op"] == "LeakyReLU":  # act_type='rrelu' also ends the process in forward
            _check_node(node, [False], name)
    for node, inputs in nodes_in_backward(graph, trained):
        _check_node(node, inputs, name)


def nodes_in_backward(graph: mx.sym.Symbol, trained: Collection[str]) -> Iterator[Tuple[Node, List[bool]]]:
    """Yield each operator that computes gradients, and whether each of its inputs has a gradient.

    Gradients do not pass through BlockGrad.
    """
    parts = parse_graph(graph)
    nodes = parts["nodes"]
    has_gradient: List[bool] = []
    sources: List[List[bool]] = []
    for node in nodes:
        sources.append([has_gradient[source] for source, *_ in node["inputs"]])
        has_gradient.append(_has_gradient(node, sources[-1], trained))
    is_needed = [False] * len(nodes)
    for head, *_ in parts["heads"]:
        is_needed[head] = True
    for index in reversed(range(len(nodes))):
        if is_needed[index] and nodes[index]["op"] != "BlockGrad":
            for source, *_ in nodes[index]["inputs"]:
                is_needed[source] = True
    for node, inputs, needed in zip(nodes, sources, is_needed):
        if needed and any(inputs) and node["op"] != "BlockGrad":
            yield node, inputs


def _check_node(node: Node, inputs: List[bool], name: str, loop: str = "") -> None:
    """Raise ModelError if a node cannot be trained. For a loop, also check the nodes of its body.

    ``loop``: the operator whose body contains the node, such as _foreach; otherwise empty.
    """
    op = node["op"]
    if _is_refused(node):
        operator, effect, advice = REFUSED[op]
        raise ModelError(
            f"{name} uses {operator}, which {effect} during training with MXNet {mx.__version__}: {advice}"
        )
    if loop and op in REWRITTEN and _has_wrong_gradient(op, node.get("attrs", {}), inputs):
        raise ModelError(
            f"{name} uses {node['name']} ({op}) in the body of {loop.lstrip('_')}, where MXNet "
            f"{mx.__version__} computes a wrong gradient: move this operator out of the body"
        )
    for body in node.get("subgraphs", []):
        for body_node in body["nodes"]:
            _check_node(body_node, [True], name, op)


def _has_gradient(node: Node, inputs: List[bool], trained: Optional[Collection[str]]) -> bool:
    """Return whether a node's outputs have a gradient.

    ``inputs``: for each input of the node, whether it has a gradient.
    """
    if node["op"] == "null":
        return trained is None or node["name"] in trained
    return any(inputs) and node["op"] != "BlockGrad"


def replace_wrong_gradients(graph: mx.sym.Symbol, trained: Optional[Collection[str]] = None) -> mx.sym.Symbol:
    """Replace operators with wrong gradients.

    Return ``graph`` itself if there are no such operators.

    ``trained``: the names of the arguments whose gradients are requested. If None, all arguments
    are treated as trained.
    """
    has_gradient: List[bool] = []  # by node; a node's inputs precede it in the graph

    def choose_replacement(node: Node, *_: Any) -> Optional[Replacement]:
        inputs = [has_gradient[source] for source, *_ in node["inputs"]]
        has_gradient.append(_has_gradient(node, inputs, trained))
        return _choose_replacement(node, inputs)

    return replace_nodes(graph, {}, choose_replacement)


def _choose_replacement(node: Node, has_gradient: List[bool]) -> Optional[Replacement]:
    """Return a replacement for a node whose gradient is wrong, or None if it is right."""
    op, attrs = node["op"], node.get("attrs", {})
    if op in JOINT_GRADIENT_INPUTS and not all(has_gradient):
        return _link_frozen_inputs(node, has_gradient)
    append = REWRITTEN.get(op)
    if append is None or not _has_wrong_gradient(op, attrs, has_gradient):
        return None
    return partial(append, attrs)


def _is_refused(node: Node) -> bool:
    """Return whether an operator is in REFUSED, with attributes that make its gradient wrong."""
    op, attrs = node["op"], node.get("attrs", {})
    if op == "LeakyReLU":
        return bool(attrs.get("act_type") == "rrelu")
    if op == "_npi_norm":
        flag = attrs.get("flag")
        return bool(flag == "0" or (flag == "-1" and attrs.get("axis", "None") == "None"))
    return op in REFUSED


def _has_wrong_gradient(op: str, attrs: Mapping[str, str], has_gradient: List[bool]) -> bool:
    """Return whether an operator in REWRITTEN computes a wrong gradient for these inputs."""
    if op == "LeakyReLU":  # correct if only one of the gradients is needed
        kind = attrs.get("act_type")
        return (kind == "prelu" and all(has_gradient)) or (kind == "selu" and any(has_gradient))
    if op == "SequenceLast":
        return attrs.get("use_sequence_length", "False") in ("False", "0")
    return any(has_gradient)


def _link_frozen_inputs(node: Node, has_gradient: List[bool]) -> Optional[Replacement]:
    """Return a replacement that makes MXNet compute all gradients, or None if none is needed.

    The replacement adds 0, computed from a trained input, to each frozen input.
    """
    positions = [position for position in JOINT_GRADIENT_INPUTS[node["op"]] if position < len(has_gradient)]
    sources = [position for position in positions if has_gradient[position]]
    if not sources or (node["op"] == "FullyConnected" and (any(has_gradient[:2]))):
        return None  # a FullyConnected is wrong only if nothing but its bias is trained
    frozen = [position for position in positions if not has_gradient[position]]

    def append(add: Add, entries: List[Entry]) -> None:
        """Append the operator, with the computed 0 added to its frozen inputs."""
        flat = add("Reshape", "_flat", [entries[sources[0]]], shape=(-1,))
        one = add("slice_axis", "_one", [flat], axis=0, begin=0, end=1)
        # clip, because 0 times infinity is not 0
        zero = add("clip", "_zero", [one], a_min=0.0, a_max=0.0)
        linked = list(entries)
        for position in frozen:
            linked[position] = add("broadcast_add", f"_linked{position}", [entries[position], zero])
        add(node["op"], "", linked, **node.get("attrs", {}))

    return append


def _append_rectifier(attrs: Mapping[str, str], add: Add, entries: List[Entry]) -> None:
    """Append operators with correct gradients that compute prelu or selu."""
    if attrs["act_type"] == "prelu":
        _append_prelu(add, entries)
    else:
        exponential = add("LeakyReLU", "_elu", entries, act_type="elu", slope=SELU_ALPHA)
        add("_mul_scalar", "", [exponential], scalar=SELU_SCALE)


def _append_prelu(add: Add, entries: List[Entry]) -> None:
    """Append relu(x) + alpha * min(x, 0), with the same gradients at x = 0 as MXNet's prelu."""
    x, alpha = entries
    below = add("_minimum_scalar", "_below", [x], scalar=0.0)
    # Shapes (n, C, pixels) and (1, C, 1), for any number of axes. alpha may be a single number.
    below = add("Reshape", "_rows", [below], shape=(0, 0, -1))
    slopes = add("Reshape", "_slopes", [alpha], shape=(1, -1, 1))
    product = add("broadcast_mul", "_product", [below, slopes])
    product = add("reshape_like", "_like", [product, x])
    add("elemwise_add", "", [add("relu", "_above", [x]), product])


def _append_sequence_last(attrs: Mapping[str, str], add: Add, entries: List[Entry]) -> None:
    axis = int(attrs.get("axis", "0"))
    last = add("slice_axis", "_last", entries, axis=axis, begin=-1, end=None)
    add("squeeze", "", [last], axis=axis)


def _append_where(is_first: bool, attrs: Mapping[str, str], add: Add, entries: List[Entry]) -> None:
    """Append a ``where`` of two arrays, which replaces a ``where`` of an array and a number.

    One of the two arrays is filled with the number. ``is_first``: whether the number is chosen
    where the condition is true.
    """
    condition, array = entries
    number = add("_npi_full_like", "_number", [array], fill_value=attrs.get("scalar", "0"))
    pair = [number, array] if is_first else [array, number]
    add("_npi_where", "", [condition, *pair])


def _append_arctan2(attrs: Mapping[str, str], add: Add, entries: List[Entry]) -> None:
    number = add("_npi_full_like", "_number", entries, fill_value=attrs["scalar"])
    add("_npi_arctan2", "", [number, *entries])


REWRITTEN: Dict[str, Append] = {
    "LeakyReLU": _append_rectifier,
    "SequenceLast": _append_sequence_last,
    "_npi_where_lscalar": partial(_append_where, True),
    "_npi_where_rscalar": partial(_append_where, False),
    "_npi_rarctan2_scalar": _append_arctan2,
}
