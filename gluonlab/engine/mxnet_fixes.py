"""Fixes for MXNet 1.9.1, which are applied when MXNet is imported.

- `put_back_numpy_names` restores names that numpy has removed since 1.24.
- `patch_attribute_text` lets MXNet write operators' attributes without numpy 2's type names.
- `patch_unfusible_graphs` disables fusion for graphs that MXNet cannot fuse on GPUs.
- `track_blocks` records every Gluon block when it is created, so that `live_blocks` can list them.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import types
from collections import Counter
from contextlib import nullcontext
from functools import wraps
from typing import Any, Callable, ContextManager, Dict, List, NoReturn, Set, Tuple
from weakref import ref

# Names that mxnet/numpy/utils.py and mxnet/numpy/fallback.py import from numpy, and that numpy has
# removed or renamed: values, functions with a new name, and functions without a replacement.
REMOVED_VALUES = {
    "PZERO": 0.0, "NZERO": -0.0, "Inf": float("inf"), "PINF": float("inf"), "infty": float("inf"),
    "Infinity": float("inf"), "NINF": float("-inf"), "NaN": float("nan"), "NAN": float("nan"),
    "int": int, "float": float, "complex": complex, "object": object, "str": str,
    "compat": types.SimpleNamespace(basestring=str),
}  # fmt: skip
RENAMED_FUNCTIONS = {
    "bool": "bool_", "float_": "float64", "complex_": "complex128", "unicode_": "str_",
    "string_": "bytes_", "product": "prod", "cumproduct": "cumprod", "sometrue": "any",
    "alltrue": "all", "round_": "round", "row_stack": "vstack", "trapz": "trapezoid",
}  # fmt: skip
REMOVED_FUNCTIONS = ("fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate", "in1d", "msort")


class _RemovedFunction:
    """Replacement for a removed function of numpy, which raises NotImplementedError when called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"numpy.{self.__name__} no longer exists in this version of numpy")


def put_back_numpy_names(numpy: types.ModuleType) -> None:
    """Restore the names that MXNet 1.9.1 uses and that this version of numpy no longer has."""
    names = vars(numpy)  # instead of hasattr, for which numpy prints a warning for each name
    for name, value in REMOVED_VALUES.items():
        if name not in names:
            setattr(numpy, name, value)
    for name, successor in RENAMED_FUNCTIONS.items():
        if name not in names and successor in names:
            setattr(numpy, name, names[successor])
    for name in REMOVED_FUNCTIONS:
        if name not in names:
            setattr(numpy, name, _RemovedFunction(name))


# Operators' attributes under numpy 2.
#
# MXNet passes attributes to its C library as text, such as `str((2, 3))` for a shape. With numpy 2
# the text may contain `np.int64(2)` instead of `2`, which the C library cannot read. So MXNet's
# modules get another `str`, which writes numbers like numpy 1.


# The three modules of MXNet 1.9.1 that write tuples for the C library.
STR_CALLERS = ("mxnet._ctypes.ndarray", "mxnet._ctypes.symbol")
STR_CALLER_WITH_ISINSTANCE = "mxnet.symbol.symbol"  # this module also calls isinstance(..., str)


def attribute_text(value: Any) -> str:
    """Return `str(value)`, with numpy scalars in tuples and lists as plain numbers: `(2, -1)`."""
    text = str(value)
    return _sequence_text(value) if "np." in text and isinstance(value, (tuple, list)) else text


def _sequence_text(value: Any) -> str:
    """Return the text of a tuple or list, with numpy scalars as plain numbers at all levels."""
    import numpy

    items = []
    for item in value:
        if isinstance(item, (tuple, list)):
            items.append(_sequence_text(item))
        elif isinstance(item, (numpy.number, numpy.bool_)):
            items.append(str(item))
        else:
            items.append(repr(item.item() if isinstance(item, numpy.generic) else item))
    if isinstance(value, list):
        return f"[{', '.join(items)}]"
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


class _StrInstanceCheck(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, str)


class AttributeStr(metaclass=_StrInstanceCheck):
    """Replacement for `str` in modules that both call `str` and use it in isinstance."""

    def __new__(cls, value: Any) -> str:  # type: ignore[misc]
        return attribute_text(value)


def patch_attribute_text() -> None:
    """Make the imported MXNet use `attribute_text` instead of `str`, with numpy 2 or newer."""
    import numpy

    # The version decides, not the text of a tuple: set_printoptions(legacy=...) may change that.
    if int(numpy.__version__.split(".")[0]) < 2:
        return
    for name in (*STR_CALLERS, STR_CALLER_WITH_ISINSTANCE):
        if name in sys.modules:
            stand_in = AttributeStr if name == STR_CALLER_WITH_ISINSTANCE else attribute_text
            vars(sys.modules[name])["str"] = stand_in


# Graphs that MXNet 1.9.1 tries to fuse on GPUs but cannot fuse. They run without fusion.
#
# MXNet joins neighboring pointwise operators, and slices of their inputs, and generates CUDA source
# for them (``src/operator/fusion``, ``src/executor/pointwise_fusion_pass.cc``). The table lists the
# graphs for which this fails, and what happens without the fix:
#
# ==============================================  =============================================
# an array that is read both sliced and whole     ``map::at``, or source that does not compile
# ``slice`` by a list, or a tuple of one number   source that does not compile, or division by 0
# ``slice`` from or to beyond the end             wrong numbers: the source ignores the bound
# ``LeakyReLU`` without its ``act_type``          ``map::at``, also without fusion
# a number that is infinite or not a number       source that does not compile
# ``_zeros`` or ``_ones`` without a type          ``map::at``
# an array that is read 8 times or more           ``control dep not found in graph``
# ==============================================  =============================================
#
# Whether a slice ends beyond the array depends on shapes, which are unknown when a block is
# compiled. So fusion is disabled for every slice with an end that is not negative. Gradients are
# not fused with slices.
#
# MXNet adds 8 or more gradients of an array one after another (``MXNET_EXEC_INPLACE_GRAD_SUM_CAP``).
# Dependencies between operators enforce this order, and fusion loses these dependencies. MXNet fails
# if it fuses the gradients of pointwise operators that read the array.


# The forward operators that MXNet fuses, from ``ops_desc`` and ``variable_io_ops`` in MXNet's file
# fused_op-inl.h.
_FUSED_NAMES = """
    Activation Cast LeakyReLU Reshape abs add_n amp_cast amp_multicast arccos arccosh arcsin arcsinh
    arctan arctanh cbrt ceil clip cos cosh degrees elemwise_add elemwise_div elemwise_mul
    elemwise_sub erf erfinv exp expand_dims expm1 fix floor gamma gammaln log log10 log1p log2
    negative ones_like radians rcbrt reciprocal relu rint round rsqrt sigmoid sign sin sinh
    smooth_l1 softsign sqrt square squeeze tan tanh trunc zeros_like _copy _div_scalar _hypot
    _hypot_scalar _identity_with_attr_like_rhs _maximum _minimum _minus_scalar _mul_scalar _ones
    _plus_scalar _power _power_scalar _rdiv_scalar _rminus_scalar _rpower_scalar _zeros
"""
FUSED_OPERATORS = frozenset(_FUSED_NAMES.split())
SLICE_OPERATORS = ("slice", "slice_axis", "slice_like", "broadcast_like")
SCALAR_ATTRIBUTES = ("scalar", "a_min", "a_max")
SAFE_SLICE_BEGIN = re.compile(r"\((None|\d+)(, ?(None|\d+))+\)")
SAFE_SLICE_END = re.compile(r"\((None|-\d+)(, ?(None|-\d+))+\)")
ORDERED_GRADIENTS = 8  # from so many gradients of an array on, their order is fixed

FusionDisabler = Callable[[], ContextManager[None]]


def cannot_be_fused(graph: Dict[str, Any]) -> bool:
    """Check if MXNet would fail to fuse a graph.

    ``graph``: the parsed JSON of ``tojson(remove_amp_cast=False)``.
    """
    # The inputs, as (node number, output number), that are read by a slice, and by other operators.
    sliced: Set[Tuple[int, int]] = set()
    whole: Set[Tuple[int, int]] = set()
    gradients = Counter((entry[0], entry[1]) for entry in graph["heads"])
    for node in graph["nodes"]:
        op, entries = node["op"], [(entry[0], entry[1]) for entry in node["inputs"]]
        if _is_unfusible_operator(op, node.get("attrs", {})):
            return True
        gradients.update(entries)
        if op in SLICE_OPERATORS:
            sliced.add(entries[0])
        elif op in FUSED_OPERATORS:
            whole.update(entries)
    return bool(sliced & whole) or any(gradients[entry] >= ORDERED_GRADIENTS for entry in whole)


def _is_unfusible_operator(op: str, attrs: Dict[str, str]) -> bool:
    """Check if MXNet would fail to fuse operator ``op`` with the attributes ``attrs``."""
    if op == "LeakyReLU":
        return "act_type" not in attrs
    if op in ("_zeros", "_ones"):
        return "dtype" not in attrs
    if op == "slice":
        if attrs.get("step", "()") not in ("()", "[]"):
            return False  # MXNet does not try to fuse a slice with a step
        return not (SAFE_SLICE_BEGIN.fullmatch(attrs["begin"]) and SAFE_SLICE_END.fullmatch(attrs["end"]))
    numbers = [attrs.get(name, "") for name in SCALAR_ATTRIBUTES]
    return op in FUSED_OPERATORS and any(re.search("inf|nan", text, re.IGNORECASE) for text in numbers)


def _is_unfusible_symbol(symbol: Any) -> bool:
    return cannot_be_fused(json.loads(symbol.tojson(remove_amp_cast=False)))


def patch_unfusible_graphs(disable_fusion: FusionDisabler) -> None:
    """Make the imported MXNet disable fusion for graphs that it cannot fuse.

    Such graphs are bound and run inside ``disable_fusion()``.
    """
    ndarray_module = sys.modules.get("mxnet._ctypes.ndarray")
    if ndarray_module is None or ndarray_module.CachedOp.__init__.__module__ == __name__:
        return  # a stub of MXNet, or already patched
    cached_op: Any = ndarray_module.CachedOp
    init = cached_op.__init__

    class UnfusedOp(cached_op):  # type: ignore[misc]
        """A compiled block that runs without fusion."""

        __slots__: List[str] = []

        # MXNet decides about fusion when the block first runs on a device.
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with disable_fusion():
                return super().__call__(*args, **kwargs)

    def init_unfused(self: Any, sym: Any, flags: Any = ()) -> None:
        init(self, sym, flags)
        if type(self) is cached_op and _is_unfusible_symbol(sym):
            self.__class__ = UnfusedOp

    cached_op.__init__ = init_unfused
    symbol = sys.modules["mxnet.symbol.symbol"].Symbol
    executor = sys.modules["mxnet.executor"].Executor
    for name in ("bind", "simple_bind"):
        setattr(symbol, name, _disable_fusion_if(_binds_unfusible_on_gpu, getattr(symbol, name), disable_fusion))
    executor.reshape = _disable_fusion_if(_has_unfusible_symbol, executor.reshape, disable_fusion)


def _binds_unfusible_on_gpu(symbol: Any, ctx: Any, *_: Any, **__: Any) -> bool:
    return ctx.device_type == "gpu" and _is_unfusible_symbol(symbol)


def _has_unfusible_symbol(executor: Any, *_: Any, **__: Any) -> bool:
    return _is_unfusible_symbol(executor._symbol)


def _disable_fusion_if(
    is_unfusible: Callable[..., bool], method: Callable[..., Any], disable_fusion: FusionDisabler
) -> Callable[..., Any]:
    """Wrap a method so that fusion is disabled if ``is_unfusible(*arguments)`` is true."""

    @wraps(method)
    def call_method(*args: Any, **kwargs: Any) -> Any:
        with disable_fusion() if is_unfusible(*args, **kwargs) else nullcontext():
            return method(*args, **kwargs)

    return call_method


# The existing Gluon blocks of this process. Each block is recorded when it is created.
#
# Python's garbage collector could also find the blocks. But each search takes 10 ms or more,
# because it visits every object of the process.


_tracked_blocks: "Dict[int, ref[Any]]" = {}  # by id, because a block may define __eq__ or __hash__


def track_blocks(came_first: bool) -> None:
    """Record every Gluon block created from now on. Call this function after importing MXNet.

    ``came_first``: whether MXNet was imported before gluonlab. If so, existing blocks are recorded
    as well.
    """
    module = sys.modules.get("mxnet.gluon.block")
    if module is None or module.Block.__new__ is new_tracked_block:
        return
    module.Block.__new__ = new_tracked_block
    for block in _blocks_from_garbage_collector(module.Block) if came_first else ():
        _track_block(block)


def live_blocks() -> List[Any]:
    """Return all recorded Gluon blocks that still exist."""
    blocks = [reference() for reference in list(_tracked_blocks.values())]
    return [block for block in blocks if block is not None]


def new_tracked_block(kind: type, *_: Any, **__: Any) -> Any:
    """Create and record a block. This function replaces ``Block.__new__``."""
    block: Any = object.__new__(kind)
    _track_block(block)
    return block


def _track_block(block: Any) -> None:
    number = id(block)
    _tracked_blocks[number] = ref(block, lambda _: _tracked_blocks.pop(number, None))


def _blocks_from_garbage_collector(base: type) -> List[Any]:
    """Return all existing instances of class ``base``, found by Python's garbage collector."""
    # Since Python 3.9 an object refers to its class, so that get_referrers finds the objects.
    # get_objects would also return tuples that other threads are still creating. These threads
    # then fail with a SystemError, because of the second reference to the tuple.
    if sys.version_info >= (3, 9):
        candidates = gc.get_referrers(*_all_subclasses(base))
    else:
        candidates = gc.get_objects()
    return [candidate for candidate in candidates if issubclass(type(candidate), base)]


def _all_subclasses(kind: type) -> Set[type]:
    """Return the class ``kind`` and all classes derived from it."""
    return {kind}.union(*map(_all_subclasses, kind.__subclasses__()))
