"""Operators whose gradient is wrong in MXNet 1.9.1: they are rewritten or refused.

A test compares the gradient of every operator with numerical differences, in MXNet's imperative
mode and in compiled graphs (tests/models/test_operator_gradients.py). These gradients are wrong:

========================================  =======================================================
``LeakyReLU(act_type="prelu")``           alpha's gradient is multiplied by alpha in compiled
                                          graphs: the input's gradient overwrites the output's
                                          before alpha's gradient reads it
``LeakyReLU(act_type="selu")``            too small below 0, in every mode
``SequenceLast`` without lengths          zero, and memory after the array is overwritten
``where`` of mx.np with a number          the gradient of the elements that were not selected
``arctan2`` of mx.np, number over array   the gradient of another function
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

Rewriting keeps the computed function, the arguments, the outputs and their names.
"""

from __future__ import annotations

from functools import partial
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Tuple,
)

import mxnet as mx

from gluonlab.errors import ModelError
from gluonlab.models.symbol_graph import Add, Entry, Node, Replacement, parsed, with_replaced

# Klambauer et al., "Self-normalizing neural networks", 2017.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805

Append = Callable[[Mapping[str, str], Add, List[Entry]], Any]

# Refused operators: the name for users, the effect, and a replacement.
REFUSED = {
    "LeakyReLU": ("LeakyReLU(act_type='rrelu')", "ends the process", "use act_type='leaky'"),
    "_npi_norm": (
        "np.linalg.norm(ord=1 or 2) of a matrix",
        "counts the output's gradient twice",
        "compute it from np.abs and np.max, or use ord='fro'",
    ),
    "_npi_rot90": ("np.rot90", "turns gradients the wrong way", "use np.flip and np.transpose"),
    "_npi_var": ("np.var", "gives no gradient", "use the mean of (x - x.mean()) ** 2"),
    "_npi_std": ("np.std", "gives no gradient", "use the root of the mean of (x - x.mean()) ** 2"),
    "_npi_percentile": ("np.percentile", "gives no gradient", "use npx.topk or np.max"),
    "_npi_eigh": ("np.linalg.eigh", "gives no gradient", "use F.linalg.syevd of mx.nd"),
    "_npi_eigvalsh": ("np.linalg.eigvalsh", "gives no gradient", "use F.linalg.syevd of mx.nd"),
    "_npi_pinv": ("np.linalg.pinv", "gives no gradient", "use np.linalg.solve"),
    "_npi_pinv_scalar_rcond": ("np.linalg.pinv", "gives no gradient", "use np.linalg.solve"),
    "_np_atleast_1d": ("np.atleast_1d", "gives no gradient", "use np.reshape"),
    "_np_atleast_2d": ("np.atleast_2d", "gives no gradient", "use np.reshape"),
    "_np_atleast_3d": ("np.atleast_3d", "gives no gradient", "use np.reshape"),
    "_contrib_hawkesll": (
        "contrib.hawkesll", "gives a wrong gradient", "compute it from other operators",
    ),
}  # fmt: skip

# Inputs whose gradients MXNet computes correctly only if it computes all of them. For
# FullyConnected, these are the weight and the bias.
TOGETHER = {
    "FullyConnected": (1, 2),
    "_contrib_interleaved_matmul_selfatt_valatt": (0, 1),
    "_contrib_interleaved_matmul_encdec_qk": (0, 1),
    "_npi_ediff1d": (0, 1, 2),
    "_npi_polyval": (0, 1),
}


def check_gradients(graph: mx.sym.Symbol, name: str, learned: Collection[str]) -> None:
    """Raise ModelError if a network or loss has an operator that cannot be trained.

    ``name``: the name of the network or loss in messages. ``learned``: the arguments whose
    gradients are requested.
    """
    for node in parsed(graph)["nodes"]:
        if node["op"] == "LeakyReLU":  # one of its kinds ends the process in forward, too
            _check_node(node, [False], name)
    for node, inputs in nodes_in_backward(graph, learned):
        _check_node(node, inputs, name)


def nodes_in_backward(
    graph: mx.sym.Symbol, learned: Collection[str]
) -> Iterator[Tuple[Node, List[bool]]]:
    """The operators through which gradients go, each with whether its inputs have one.

    There are none behind BlockGrad, and none in front of it.
    """
    parts = parsed(graph)
    nodes = parts["nodes"]
    has_gradient: List[bool] = []
    sources: List[List[bool]] = []
    for node in nodes:
        sources.append([has_gradient[source] for source, *_ in node["inputs"]])
        has_gradient.append(_has_gradient(node, sources[-1], learned))
    is_asked = [False] * len(nodes)
    for head, *_ in parts["heads"]:
        is_asked[head] = True
    for place in reversed(range(len(nodes))):
        if is_asked[place] and nodes[place]["op"] != "BlockGrad":
            for source, *_ in nodes[place]["inputs"]:
                is_asked[source] = True
    for node, inputs, asked in zip(nodes, sources, is_asked):
        if asked and any(inputs) and node["op"] != "BlockGrad":
            yield node, inputs


def _check_node(node: Node, inputs: List[bool], name: str, loop: str = "") -> None:
    """Check one node. ``loop``: the operator whose body contains the node, such as _foreach."""
    op = node["op"]
    if _is_refused(node):
        operator, effect, instead = REFUSED[op]
        raise ModelError(
            f"{name} has {operator}, which {effect} in MXNet {mx.__version__} "
            f"when it trains: {instead}"
        )
    if loop and op in REWRITTEN and _is_wrong(op, node.get("attrs", {}), inputs):
        raise ModelError(
            f"{name} has {node['name']} ({op}) in the body of {loop.lstrip('_')}: MXNet "
            f"{mx.__version__} computes a wrong gradient there: move it out of the body"
        )
    for body in node.get("subgraphs", []):
        for each in body["nodes"]:
            _check_node(each, [True], name, op)


def _has_gradient(node: Node, inputs: List[bool], learned: Optional[Collection[str]]) -> bool:
    """Whether the outputs of a node have a gradient. ``inputs``: whether each input has one."""
    if node["op"] == "null":
        return learned is None or node["name"] in learned
    return any(inputs) and node["op"] != "BlockGrad"


def with_right_gradients(
    graph: mx.sym.Symbol, learned: Optional[Collection[str]] = None
) -> mx.sym.Symbol:
    """Replace the operators of ``graph`` whose gradients are wrong, or return it unchanged.

    ``learned``: the arguments whose gradients are requested; None if this is unknown, so that any
    argument may need its gradient.
    """
    has_gradient: List[bool] = []

    def choose(node: Node, *_: Any) -> Optional[Replacement]:  # inputs come first
        inputs = [has_gradient[source] for source, *_ in node["inputs"]]
        has_gradient.append(_has_gradient(node, inputs, learned))
        return _choose(node, inputs)

    return with_replaced(graph, {}, choose)


def _choose(node: Node, learned: List[bool]) -> Optional[Replacement]:
    op, attrs = node["op"], node.get("attrs", {})
    if op in TOGETHER and not all(learned):
        return _link(node, learned)
    append = REWRITTEN.get(op)
    if append is None or not _is_wrong(op, attrs, learned):
        return None
    return partial(append, attrs)


def _is_refused(node: Node) -> bool:
    op, attrs = node["op"], node.get("attrs", {})
    if op == "LeakyReLU":
        return bool(attrs.get("act_type") == "rrelu")
    if op == "_npi_norm":
        flag = attrs.get("flag")
        return bool(flag == "0" or (flag == "-1" and attrs.get("axis", "None") == "None"))
    return op in REFUSED


def _is_wrong(op: str, attrs: Mapping[str, str], learned: List[bool]) -> bool:
    if op == "LeakyReLU":  # if only one gradient is needed, it is correct
        kind = attrs.get("act_type")
        return (kind == "prelu" and all(learned)) or (kind == "selu" and any(learned))
    if op == "SequenceLast":
        return attrs.get("use_sequence_length", "False") in ("False", "0")
    return any(learned)


def _link(node: Node, learned: List[bool]) -> Optional[Replacement]:
    """Make frozen inputs depend on a trained one by adding 0, so all gradients are computed."""
    places = [place for place in TOGETHER[node["op"]] if place < len(learned)]
    sources = [place for place in places if learned[place]]
    if not sources or (node["op"] == "FullyConnected" and (any(learned[:2]))):
        return None  # a FullyConnected is wrong only if nothing but its bias is trained
    frozen = [place for place in places if not learned[place]]

    def append(add: Add, entries: List[Entry]) -> None:
        flat = add("Reshape", "_flat", [entries[sources[0]]], shape=(-1,))
        one = add("slice_axis", "_one", [flat], axis=0, begin=0, end=1)
        # Not times 0, which is not 0 for an infinite number.
        zero = add("clip", "_zero", [one], a_min=0.0, a_max=0.0)
        linked = list(entries)
        for place in frozen:
            linked[place] = add("broadcast_add", f"_linked{place}", [entries[place], zero])
        add(node["op"], "", linked, **node.get("attrs", {}))

    return append


def _append_rectifier(attrs: Mapping[str, str], add: Add, entries: List[Entry]) -> None:
    if attrs["act_type"] == "prelu":
        _append_prelu(add, entries)
    else:
        exponential = add("LeakyReLU", "_elu", entries, act_type="elu", slope=SELU_ALPHA)
        add("_mul_scalar", "", [exponential], scalar=SELU_SCALE)


def _append_prelu(add: Add, entries: List[Entry]) -> None:
    """Append relu(x) + alpha * min(x, 0), which also has MXNet's gradients at x = 0."""
    x, alpha = entries
    below = add("_minimum_scalar", "_below", [x], scalar=0.0)
    # (n, C, pixels) and (1, C, 1), whatever the number of axes; alpha may be a single number.
    below = add("Reshape", "_rows", [below], shape=(0, 0, -1))
    slopes = add("Reshape", "_slopes", [alpha], shape=(1, -1, 1))
    product = add("broadcast_mul", "_product", [below, slopes])
    product = add("reshape_like", "_like", [product, x])
    add("elemwise_add", "", [add("relu", "_above", [x]), product])


def _append_last(attrs: Mapping[str, str], add: Add, entries: List[Entry]) -> None:
    axis = int(attrs.get("axis", "0"))
    last = add("slice_axis", "_last", entries, axis=axis, begin=-1, end=None)
    add("squeeze", "", [last], axis=axis)


def _append_where(is_first: bool, attrs: Mapping[str, str], add: Add, entries: List[Entry]) -> None:
    condition, array = entries
    number = add("_npi_full_like", "_number", [array], fill_value=attrs.get("scalar", "0"))
    pair = [number, array] if is_first else [array, number]
    add("_npi_where", "", [condition, *pair])


def _append_arctan2(attrs: Mapping[str, str], add: Add, entries: List[Entry]) -> None:
    number = add("_npi_full_like", "_number", entries, fill_value=attrs["scalar"])
    add("_npi_arctan2", "", [number, *entries])


REWRITTEN: Dict[str, Append] = {
    "LeakyReLU": _append_rectifier,
    "SequenceLast": _append_last,
    "_npi_where_lscalar": partial(_append_where, True),
    "_npi_where_rscalar": partial(_append_where, False),
    "_npi_rarctan2_scalar": _append_arctan2,
}
