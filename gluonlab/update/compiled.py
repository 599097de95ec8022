"""What networks have compiled, forgotten: their parameters' gradients lie elsewhere now.

A network hybridized with static_shape keeps the arrays that its backward wrote to. When a parameter
is marked with another array of gradients, MXNet goes on with the old one, and even puts that back
in the place of the new one (CachedOp::StaticBackward of src/imperative/cached_op.cc: InitDetached).
It takes a new array when the network is compiled anew.
"""

from __future__ import annotations

from typing import Iterable, Set

from mxnet import gluon
from mxnet.gluon import Parameter


def forget(params: Iterable[Parameter], blocks: Iterable[gluon.Block]) -> None:
    """Have those of ``blocks`` with one of these parameters compile anew in their next call.

    Only blocks compiled with static_shape need it.
    """
    moved = set(params)
    for block in blocks:
        is_hybrid = isinstance(block, gluon.HybridBlock)
        if is_hybrid and _has_static_shape(block) and not moved.isdisjoint(_parameters_of(block)):
            block._clear_cached_op()


def _has_static_shape(net: gluon.HybridBlock) -> bool:
    inside = vars(net)  # of one that is being made, not all is there
    return inside.get("_cached_op") is not None and bool(dict(inside["_flags"]).get("static_shape"))


def _parameters_of(net: gluon.HybridBlock) -> Set[Parameter]:
    """Those that the compiled graph takes."""
    return {argument for is_data, argument in net._cached_op_args if not is_data}
