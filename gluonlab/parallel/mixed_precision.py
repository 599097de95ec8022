"""Mixed precision: matrix products and convolutions in float16, all sums in float32.

Parameters, their gradients, the optimizer's states, running statistics, scores and the loss stay
float32; so kvstores, files and exports are the same as ever (Micikevicius et al., "Mixed precision
training", 2018, section 3.1). The network's graph gets operators that cast, by MXNet's own lists of
what gains from float16 and of what would suffer. mxnet.contrib.amp.init would do that to every
network of the process, by replacing MXNet's functions; converting one graph changes nothing else.
"""

from __future__ import annotations

from typing import Callable, Collection, Dict, Iterable, List, Sequence, Set, Tuple

import mxnet as mx
from mxnet.contrib import amp

from gluonlab.errors import ConfigError, unknown
from gluonlab.models.symbol_graph import Entry, Node, make_node, parse_graph, to_symbol

Conversion = Callable[[mx.sym.Symbol], mx.sym.Symbol]

DTYPES = ("float32", "float16")

HALF = tuple(amp.list_lp16_ops("float16"))  # Convolution, FullyConnected, ...
# exponents, powers, sums, norms, ...; what is in neither list follows its inputs
FULL = tuple(amp.list_fp32_ops("float16"))
# by an attribute
SOMETIMES_FULL = tuple(op for op, _, _ in amp.list_conditional_fp32_ops("float16"))
# concat, sums of several: all inputs as the widest of them
WIDEST = tuple(amp.list_widest_type_cast("float16"))
OWN = "gluonlab_own_"  # begins the name of a copy that only the conversion sees


def check_dtype(dtype: str) -> None:
    """Raise ConfigError for an unknown type."""
    if dtype not in DTYPES:
        raise ConfigError(unknown("--dtype", dtype, DTYPES))


def check_dtype_on(dtype: str, ctxs: Sequence[mx.Context]) -> None:
    """Raise ConfigError when these devices cannot compute in a type of DTYPES."""
    if dtype == "float16" and any(ctx.device_type != "gpu" for ctx in ctxs):
        shown = " ".join(map(str, ctxs))
        raise ConfigError(
            f"--dtype float16 is for GPUs, and MXNet has no float16 matrix products on {shown}: "
            "leave --dtype out, or name GPUs with --devices"
        )


def as_it_is(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """The same graph: everything is float32."""
    return graph


def mixed_precision(
    graph: mx.sym.Symbol, half: Iterable[str] = HALF, full: Iterable[str] = FULL
) -> mx.sym.Symbol:
    """The same graph with the operators ``half`` in float16 and those in ``full`` in float32.

    Inputs and outputs are float32, with the same names of inputs. BatchNorm takes float16 images,
    and computes statistics and keeps parameters in float32.
    """
    half, full = list(half), list(full)
    apart = _with_own_inputs(graph, half, {*full, *SOMETIMES_FULL})
    converted = amp.convert_symbol(apart, "float16", target_dtype_ops=half, fp32_ops=full)
    return converted if apart is graph else _without_own_inputs(converted)


def _with_own_inputs(
    graph: mx.sym.Symbol, half: Collection[str], full: Collection[str]
) -> mx.sym.Symbol:
    """``graph`` with copies of arrays that some operators get cast and others as they are.

    The conversion believes that an array of which it has made a float16 copy, for a convolution,
    say, is float16 itself, and so is ReLU of it: what then follows gets two types, and fails
    ("Non-uniform data type in Concat").
    """
    whole = parse_graph(graph)
    old: List[Node] = whole["nodes"]
    followers = {"null", *half, *full, *WIDEST}
    followed: Set[Tuple[int, int]] = {
        (node["inputs"][0][0], node["inputs"][0][1])
        for node in old
        if node["op"] not in followers and node["inputs"]
    }
    nodes: List[Node] = []
    places: List[int] = []
    copies: Dict[Tuple[int, int, bool], Entry] = {}
    for node in old:
        entries = [[places[entry[0]], *entry[1:]] for entry in node["inputs"]]
        for position, (number, output, *_) in enumerate(node["inputs"]):
            if (number, output) in followed and node["op"] in (*half, *full):
                key = (number, output, node["op"] in half)
                if key not in copies:
                    nodes.append(make_node("_copy", f"{OWN}{len(copies)}", [entries[position]]))
                    copies[key] = [len(nodes) - 1, 0, 0]
                entries[position] = copies[key]
        nodes.append({**node, "inputs": entries})
        places.append(len(nodes) - 1)
    return (
        to_symbol(nodes, [[places[i], *rest] for i, *rest in whole["heads"]], whole["attrs"])
        if copies
        else graph
    )


def _without_own_inputs(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """Whoever reads such a copy reads what it is a copy of."""
    whole = parse_graph(graph)
    nodes: List[Node] = whole["nodes"]
    for node in nodes:
        for position, (number, *_) in enumerate(node["inputs"]):
            if nodes[number]["name"].startswith(OWN) and nodes[number]["op"] == "_copy":
                node["inputs"][position] = nodes[number]["inputs"][0]
    return to_symbol(nodes, whole["heads"], whole["attrs"])


def for_sync_bn(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """`mixed_precision` with float32 images for BatchNorm.

    `gluonlab.parallel.data.sync_bn_statistics` completes their gradients by sums over all devices,
    for which float16 is too small.
    """
    return mixed_precision(graph, full=(*FULL, "BatchNorm"))


def conversion(dtype: str, sync_bn: bool) -> Conversion:
    """What a type of DTYPES does to a network's graph, whose BatchNorm layers may be shared."""
    if dtype == "float32":
        return as_it_is
    return for_sync_bn if sync_bn else mixed_precision
