"""Graphs that MXNet 1.9.1 cannot fuse on GPUs, although it tries: they run without fusion.

MXNet joins neighbouring pointwise operators, and the slices that they begin with, and writes CUDA
source for them (``src/operator/fusion``, ``src/executor/pointwise_fusion_pass.cc``). It fails for

==============================================  =============================================
an array that is sliced, and read whole too     ``map::at``, or source that no compiler takes
``slice`` by a list, or a tuple of one number   source that no compiler takes, or a division by 0
``slice`` from or to beyond the end             wrong numbers: the source does not stop there
``LeakyReLU`` without its ``act_type``          ``map::at``, fused or not
a number that is infinite or not a number       source that no compiler takes
``_zeros`` or ``_ones`` without a type          ``map::at``
==============================================  =============================================

What is beyond the end depends on shapes, which nobody knows when a block is compiled: so a slice to
a number that counts from the front is taken for one. Gradients are not fused with slices.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from functools import wraps
from typing import Any, Callable, ContextManager, Dict, List, Set, Tuple

# Forward operators that MXNet fuses: ``ops_desc`` and ``variable_io_ops`` of fused_op-inl.h.
POINTWISE = """
    Activation Cast LeakyReLU Reshape abs add_n amp_cast amp_multicast arccos arccosh arcsin arcsinh
    arctan arctanh cbrt ceil clip cos cosh degrees elemwise_add elemwise_div elemwise_mul
    elemwise_sub erf erfinv exp expand_dims expm1 fix floor gamma gammaln log log10 log1p log2
    negative ones_like radians rcbrt reciprocal relu rint round rsqrt sigmoid sign sin sinh
    smooth_l1 softsign sqrt square squeeze tan tanh trunc zeros_like _copy _div_scalar _hypot
    _hypot_scalar _identity_with_attr_like_rhs _maximum _minimum _minus_scalar _mul_scalar _ones
    _plus_scalar _power _power_scalar _rdiv_scalar _rminus_scalar _rpower_scalar _zeros
"""
FUSED = frozenset(POINTWISE.split())
SLICES = ("slice", "slice_axis", "slice_like", "broadcast_like")
NUMBERS = ("scalar", "a_min", "a_max")
RIGHT_BEGIN = re.compile(r"\((None|\d+)(, ?(None|\d+))+\)")
RIGHT_END = re.compile(r"\((None|-\d+)(, ?(None|-\d+))+\)")

Unfused = Callable[[], ContextManager[None]]


def cannot_be_fused(graph: Dict[str, Any]) -> bool:
    """Whether MXNet would go wrong with a graph of ``tojson(remove_amp_cast=False)``."""
    sliced: Set[Tuple[int, int]] = set()
    whole: Set[Tuple[int, int]] = set()
    for node in graph["nodes"]:
        op, entries = node["op"], [(entry[0], entry[1]) for entry in node["inputs"]]
        if _is_wrong_alone(op, node.get("attrs", {})):
            return True
        if op in SLICES:
            sliced.add(entries[0])
        elif op in FUSED:
            whole.update(entries)
    return bool(sliced & whole)


def _is_wrong_alone(op: str, attrs: Dict[str, str]) -> bool:
    if op == "LeakyReLU":
        return "act_type" not in attrs
    if op in ("_zeros", "_ones"):
        return "dtype" not in attrs
    if op == "slice":
        if attrs.get("step", "()") not in ("()", "[]"):
            return False  # MXNet does not fuse those
        return not (RIGHT_BEGIN.fullmatch(attrs["begin"]) and RIGHT_END.fullmatch(attrs["end"]))
    numbers = [attrs.get(name, "") for name in NUMBERS]
    return op in FUSED and any(re.search("inf|nan", text, re.IGNORECASE) for text in numbers)


def _is_unfusible(symbol: Any) -> bool:
    return cannot_be_fused(json.loads(symbol.tojson(remove_amp_cast=False)))


def install(unfused: Unfused) -> None:
    """Let MXNet, which has been imported, bind and run such graphs under ``unfused()``."""
    calling = sys.modules.get("mxnet._ctypes.ndarray")
    if calling is None or calling.CachedOp.__init__.__module__ == __name__:
        return  # no MXNet that could bind anything; or installed already
    compiled: Any = calling.CachedOp
    make = compiled.__init__

    class UnfusedOp(compiled):  # type: ignore[misc]
        """A compiled block. MXNet decides about fusion when it first runs on a device."""

        __slots__: List[str] = []

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with unfused():
                return super().__call__(*args, **kwargs)

    def made(self: Any, sym: Any, flags: Any = ()) -> None:
        make(self, sym, flags)
        if type(self) is compiled and _is_unfusible(sym):
            self.__class__ = UnfusedOp

    compiled.__init__ = made
    symbol = sys.modules["mxnet.symbol.symbol"].Symbol
    executor = sys.modules["mxnet.executor"].Executor
    for name in ("bind", "simple_bind"):
        setattr(symbol, name, _binding(getattr(symbol, name), unfused))
    executor.reshape = _binding_again(executor.reshape, unfused)


def _binding(bind: Callable[..., Any], unfused: Unfused) -> Callable[..., Any]:
    @wraps(bind)
    def bound(self: Any, ctx: Any, *args: Any, **kwargs: Any) -> Any:
        with unfused() if ctx.device_type == "gpu" and _is_unfusible(self) else nullcontext():
            return bind(self, ctx, *args, **kwargs)

    return bound


def _binding_again(reshape: Callable[..., Any], unfused: Unfused) -> Callable[..., Any]:
    @wraps(reshape)
    def reshaped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with unfused() if _is_unfusible(self._symbol) else nullcontext():
            return reshape(self, *args, **kwargs)

    return reshaped
