"""Mixed precision: matrix products and convolutions in float16, all sums in float32.

Everything that is stored or summed stays float32, so kvstores, files and exports do not change
(Micikevicius et al., "Mixed precision training", 2018, section 3.1). Cast operators are added to
the graph. MXNet lists the operators that are faster in float16 and the operators that need float32.
mxnet.contrib.amp.init would convert every network in the process, because it replaces MXNet's
functions. This module converts only the given graph.
"""

from __future__ import annotations

from typing import Callable, Collection, Dict, Iterable, List, Sequence, Set, Tuple

import mxnet as mx
from mxnet.contrib import amp

from gluonlab.errors import ConfigError, unknown
from gluonlab.models.symbol_graph import Entry, Node, make_node, parse_graph, to_symbol

Conversion = Callable[[mx.sym.Symbol], mx.sym.Symbol]

DTYPES = ("float32", "float16")

FLOAT16_OPERATORS = tuple(amp.list_lp16_ops("float16"))  # Convolution, FullyConnected, ...
# Exponents, powers, sums, norms, ... Operators in neither list compute in the type of their inputs.
FLOAT32_OPERATORS = tuple(amp.list_fp32_ops("float16"))
# float32 only for some values of an attribute
CONDITIONAL_FLOAT32_OPERATORS = tuple(op for op, _, _ in amp.list_conditional_fp32_ops("float16"))
# concat, sums of several arrays: all inputs are cast to the widest type among them
WIDEST_TYPE_OPERATORS = tuple(amp.list_widest_type_cast("float16"))
# Prefix of the names of copies that exist only during the conversion (`_copy_shared_inputs`).
COPY_PREFIX = "gluonlab_own_"


def check_dtype(dtype: str) -> None:
    """Raise ConfigError for an unknown type."""
    if dtype not in DTYPES:
        raise ConfigError(unknown("--dtype", dtype, DTYPES))


def check_dtype_on(dtype: str, ctxs: Sequence[mx.Context]) -> None:
    """Raise ConfigError if the devices cannot compute in ``dtype``."""
    if dtype == "float16" and any(ctx.device_type != "gpu" for ctx in ctxs):
        names = " ".join(map(str, ctxs))
        raise ConfigError(
            f"--dtype float16 needs GPUs, because MXNet does not support float16 matrix products on {names}: "
            "omit --dtype, or choose GPUs with --devices"
        )


def keep_float32(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return ``graph`` unchanged, so that all operators compute in float32."""
    return graph


def mixed_precision(
    graph: mx.sym.Symbol,
    float16_operators: Iterable[str] = FLOAT16_OPERATORS,
    float32_operators: Iterable[str] = FLOAT32_OPERATORS,
) -> mx.sym.Symbol:
    """Convert a graph to float16 for some operators and float32 for others.

    Inputs and outputs stay float32 and keep their names. BatchNorm reads float16 images, but its
    statistics and parameters are float32.
    """
    float16_operators, float32_operators = list(float16_operators), list(float32_operators)
    with_copies = _copy_shared_inputs(graph, float16_operators, {*float32_operators, *CONDITIONAL_FLOAT32_OPERATORS})
    converted = amp.convert_symbol(
        with_copies, "float16", target_dtype_ops=float16_operators, fp32_ops=float32_operators
    )
    return converted if with_copies is graph else _remove_input_copies(converted)


def _copy_shared_inputs(
    graph: mx.sym.Symbol, float16_operators: Collection[str], float32_operators: Collection[str]
) -> mx.sym.Symbol:
    """Insert copies of arrays, so that no operator reads an array both with and without a cast.

    amp.convert_symbol casts an array to float16, for example for a convolution. After that, it
    assumes that the array and other results computed from it, such as its ReLU, are all float16. An
    operator that reads both the array and the ReLU would receive two types, and fail with
    "Non-uniform data type in Concat".
    """
    json_graph = parse_graph(graph)
    old_nodes: List[Node] = json_graph["nodes"]
    cast_operators = {"null", *float16_operators, *float32_operators, *WIDEST_TYPE_OPERATORS}
    uncast_inputs: Set[Tuple[int, int]] = {
        (node["inputs"][0][0], node["inputs"][0][1])
        for node in old_nodes
        if node["op"] not in cast_operators and node["inputs"]
    }
    listed = {*float16_operators, *float32_operators}
    nodes: List[Node] = []
    new_index: List[int] = []
    copies: Dict[Tuple[int, int, bool], Entry] = {}
    for node in old_nodes:
        entries = [[new_index[entry[0]], *entry[1:]] for entry in node["inputs"]]
        for position, (source, output, *_) in enumerate(node["inputs"]):
            if (source, output) in uncast_inputs and node["op"] in listed:
                key = (source, output, node["op"] in float16_operators)
                if key not in copies:
                    nodes.append(make_node("_copy", f"{COPY_PREFIX}{len(copies)}", [entries[position]]))
                    copies[key] = [len(nodes) - 1, 0, 0]
                entries[position] = copies[key]
        nodes.append({**node, "inputs": entries})
        new_index.append(len(nodes) - 1)
    heads = [[new_index[i], *rest] for i, *rest in json_graph["heads"]]
    return to_symbol(nodes, heads, json_graph["attrs"]) if copies else graph


def _remove_input_copies(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """Undo `_copy_shared_inputs`: let operators read the original arrays, not the copies."""
    json_graph = parse_graph(graph)
    nodes: List[Node] = json_graph["nodes"]
    for node in nodes:
        for position, (source, *_) in enumerate(node["inputs"]):
            if nodes[source]["name"].startswith(COPY_PREFIX) and nodes[source]["op"] == "_copy":
                node["inputs"][position] = nodes[source]["inputs"][0]
    return to_symbol(nodes, json_graph["heads"], json_graph["attrs"])


def mixed_precision_for_sync_bn(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """Convert a graph as `mixed_precision` does, but with float32 images for BatchNorm.

    `gluonlab.parallel.data.sync_bn_statistics` adds sums over all devices to the gradients of these
    images. float16 is not precise enough for these sums.
    """
    return mixed_precision(graph, float32_operators=(*FLOAT32_OPERATORS, "BatchNorm"))


def graph_conversion(dtype: str, sync_bn: bool) -> Conversion:
    """Return the function that converts a network's graph to ``dtype``, one of DTYPES."""
    if dtype == "float32":
        return keep_float32
    return mixed_precision_for_sync_bn if sync_bn else mixed_precision
