"""What networks have compiled, forgotten: their parameters' gradients lie elsewhere now.

A network hybridized with static_shape keeps the arrays that its backward wrote to. When a parameter is marked with another array of
gradients, MXNet goes on with the old one, and even puts that back in the place of the new one (CachedOp::StaticBackward of
src/imperative/cached_op.cc: InitDetached). It takes a new array when the network is compiled anew.
"""

from __future__ import annotations

import gc
from typing import Iterable, Iterator, Set

from mxnet import gluon
from mxnet.gluon import Parameter


def forget(params: Iterable[Parameter]) -> None:
    """Have every network with one of these parameters that is compiled with static_shape compile anew when it is next called."""
    moved = set(params)
    for net in _compiled_with_static_shape():
        if not moved.isdisjoint(_parameters_of(net)):
            net._clear_cached_op()


def _compiled_with_static_shape() -> Iterator[gluon.HybridBlock]:
    for thing in gc.get_objects():  # a parameter does not know the networks that it is in
        if issubclass(type(thing), gluon.HybridBlock) and _has_static_shape(thing):
            yield thing


def _has_static_shape(net: gluon.HybridBlock) -> bool:
    inside = vars(net)  # of one that is being made, not all is there
    return inside.get("_cached_op") is not None and bool(dict(inside["_flags"]).get("static_shape"))


def _parameters_of(net: gluon.HybridBlock) -> Set[Parameter]:
    """Those that the compiled graph takes."""
    return {argument for is_data, argument in net._cached_op_args if not is_data}
