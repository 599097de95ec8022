"""--deterministic: no operator whose gradients GPUs add up in any order.

MXNet 1.9.1 heeds MXNET_ENFORCE_DETERMINISM in convolutions, transposed ones and max pooling alone,
and there by cuDNN. The operators named here add with atomicAdd in their backward kernels, whatever
it says (the .cu files of src/operator).
"""

from __future__ import annotations

from typing import Callable, Dict, Mapping, NamedTuple, Sequence

import mxnet as mx
from mxnet import gluon

from gluonlab.errors import ModelError
from gluonlab.models.graphs import parsed

Attributes = Mapping[str, str]


class Unordered(NamedTuple):
    """An operator that does not repeat its bits on GPUs, and the layer that it is in."""

    operator: str
    layer: str


def _always(attributes: Attributes) -> bool:
    return True


def _own_max_pooling(attributes: Attributes) -> bool:
    """cuDNN's repeats its bits, MXNet's own does not: it computes what cuDNN does not take."""
    axes = len(attributes.get("kernel", "(1, 1)").strip("()[]").rstrip(",").split(","))
    by_mxnet = axes == 1 or attributes.get("cudnn_off", "False") in ("True", "1")
    return by_mxnet and attributes.get("pool_type", "max") == "max"


UNORDERED: Dict[str, Callable[[Attributes], bool]] = {
    "Pooling": _own_max_pooling,
    "Pad": lambda attributes: attributes.get("mode") != "constant",
    **dict.fromkeys(
        (
            "BilinearSampler", "ROIPooling", "SpatialTransformer", "_contrib_AdaptiveAvgPooling2D",
            "_contrib_BilinearResize2D", "_contrib_DeformableConvolution",
            "_contrib_DeformablePSROIPooling", "_contrib_ModulatedDeformableConvolution",
            "_contrib_PSROIPooling", "_contrib_ROIAlign", "_contrib_count_sketch", "gather_nd",
            "take",
        ),
        _always,
    ),
}  # fmt: skip


def unordered(graph: mx.sym.Symbol) -> "Unordered | None":
    """The first operator of ``graph`` that does not repeat its bits on GPUs, or None."""
    for node in parsed(graph)["nodes"]:
        if node["op"] in UNORDERED and UNORDERED[node["op"]](node.get("attrs", {})):
            return Unordered(node["op"], node["name"])
    return None


def check_repeatable(net: gluon.HybridBlock, name: str, ctxs: Sequence[mx.Context]) -> None:
    """Raise ModelError for --deterministic on GPUs with a network that they cannot compute so.

    CPU devices can compute every one.
    """
    found = unordered(net(mx.sym.var("data"))) if ctxs[0].device_type == "gpu" else None
    if found is not None:
        raise ModelError(
            f"--deterministic: {name} has {found.operator} ({found.layer}), "
            "whose gradients MXNet adds up on GPUs in no fixed order: "
            "leave it out, or choose another network"
        )
