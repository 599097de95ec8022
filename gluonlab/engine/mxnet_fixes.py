"""What is put right in MXNet 1.9.1, around its import: nothing of it waits for a device.

- the names that numpy has dropped since 1.24 (`put_back_numpy_names`);
- operators' attributes written without numpy 2's names of types (`install_attribute_text`);
- graphs that MXNet cannot fuse on GPUs, bound without fusion (`install_unfused`);
- every block of Gluon, noted when it is made (`install_noting`).
"""

from __future__ import annotations

import gc
import json
import re
import sys
import types
from contextlib import nullcontext
from functools import wraps
from typing import Any, Callable, ContextManager, Dict, List, NoReturn, Set, Tuple
from weakref import ref

# The names that mxnet/numpy/utils.py and fallback.py ask numpy for, and what stands in for them.
RENAMED = {
    "PZERO": 0.0, "NZERO": -0.0, "Inf": float("inf"), "PINF": float("inf"), "infty": float("inf"),
    "Infinity": float("inf"), "NINF": float("-inf"), "NaN": float("nan"), "NAN": float("nan"),
    "int": int, "float": float, "complex": complex, "object": object, "str": str,
    "compat": types.SimpleNamespace(basestring=str),
}  # fmt: skip
MOVED = {
    "bool": "bool_", "float_": "float64", "complex_": "complex128", "unicode_": "str_",
    "string_": "bytes_", "product": "prod", "cumproduct": "cumprod", "sometrue": "any",
    "alltrue": "all", "round_": "round", "row_stack": "vstack", "trapz": "trapezoid",
}  # fmt: skip
REMOVED = ("fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate", "in1d", "msort")


class _Removed:
    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"numpy.{self.__name__} no longer exists in this version of numpy"
        )


def put_back_numpy_names(numpy: types.ModuleType) -> None:
    """Give numpy the names that MXNet 1.9.1 asks for and that this numpy no longer has."""
    have = vars(numpy)  # not hasattr: numpy's __getattr__ warns for each of them
    for name, value in RENAMED.items():
        if name not in have:
            setattr(numpy, name, value)
    for name, successor in MOVED.items():
        if name not in have and successor in have:
            setattr(numpy, name, have[successor])
    for name in REMOVED:
        if name not in have:
            setattr(numpy, name, _Removed(name))


# Operators' attributes as MXNet reads them, under numpy 2.
#
# MXNet hands attributes to its C library as text: a shape is `str((2, 3))`. Since numpy 2 the text
# of a tuple or list says `np.int64(2)` where numpy 1 said `2`, and MXNet can read only the latter.
# So its modules get a `str` of their own, which writes numbers as numpy 1 did.


# These three make the text; no other module of MXNet 1.9.1 writes a tuple for the C library.
CALLING = ("mxnet._ctypes.ndarray", "mxnet._ctypes.symbol")
ALSO_TESTING = "mxnet.symbol.symbol"  # which asks isinstance(..., str), too


def attribute_text(value: Any) -> str:
    """`str(value)`, in which the numpy scalars of tuples and lists are plain numbers: `(2, -1)`."""
    text = str(value)
    return _sequence_text(value) if "np." in text and isinstance(value, (tuple, list)) else text


def _sequence_text(value: Any) -> str:
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


class _LikeStr(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, str)


class AttributeStr(metaclass=_LikeStr):
    """Stands in for `str` where that is called and asked for as a type."""

    def __new__(cls, value: Any) -> str:  # type: ignore[misc]
        """The text of ``value``: `attribute_text`."""
        return attribute_text(value)


def install_attribute_text() -> None:
    """Let MXNet, which has been imported, write attributes so. Under numpy 1 it does by itself."""
    import numpy

    # not by the text of an np.int64 in a tuple: set_printoptions(legacy=...) may change it any time
    if int(numpy.__version__.split(".")[0]) < 2:
        return
    for name in (*CALLING, ALSO_TESTING):
        if name in sys.modules:
            stand_in = AttributeStr if name == ALSO_TESTING else attribute_text
            vars(sys.modules[name])["str"] = stand_in


# Graphs that MXNet 1.9.1 cannot fuse on GPUs, although it tries: they run without fusion.
#
# MXNet joins neighbouring pointwise operators, and the slices that they begin with, and writes CUDA
# source for them (``src/operator/fusion``, ``src/executor/pointwise_fusion_pass.cc``). It fails for
#
# ==============================================  =============================================
# an array that is sliced, and read whole too     ``map::at``, or source that no compiler takes
# ``slice`` by a list, or a tuple of one number   source that no compiler takes, or a division by 0
# ``slice`` from or to beyond the end             wrong numbers: the source does not stop there
# ``LeakyReLU`` without its ``act_type``          ``map::at``, fused or not
# a number that is infinite or not a number       source that no compiler takes
# ``_zeros`` or ``_ones`` without a type          ``map::at``
# ==============================================  =============================================
#
# What is beyond the end depends on shapes, which nobody knows when a block is compiled: so a slice
# to a number that counts from the front is taken for one. Gradients are not fused with slices.


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


def install_unfused(unfused: Unfused) -> None:
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
        setattr(symbol, name, _unfused_if(_binds_unfusible, getattr(symbol, name), unfused))
    executor.reshape = _unfused_if(_is_of_unfusible, executor.reshape, unfused)


def _binds_unfusible(symbol: Any, ctx: Any, *_: Any, **__: Any) -> bool:
    return ctx.device_type == "gpu" and _is_unfusible(symbol)


def _is_of_unfusible(executor: Any, *_: Any, **__: Any) -> bool:
    return _is_unfusible(executor._symbol)


def _unfused_if(
    unfusible: Callable[..., bool], method: Callable[..., Any], unfused: Unfused
) -> Callable[..., Any]:
    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        with unfused() if unfusible(*args, **kwargs) else nullcontext():
            return method(*args, **kwargs)

    return called


# The blocks of Gluon that live in this process: each is noted when it is made.
#
# To ask Python's collector for them would take some 10 ms each time, and more the more a process
# has loaded, as it looks at every object that it knows.


_noted: "Dict[int, ref[Any]]" = {}  # by id: a block may compare, or hash, as it likes


def install_noting(came_first: bool) -> None:
    """Note every block of Gluon that is made from now on; if MXNet came first, older ones, too.

    MXNet must have been imported.
    """
    module = sys.modules.get("mxnet.gluon.block")
    if module is None or module.Block.__new__ is noting:
        return
    module.Block.__new__ = noting
    for block in _known_to_the_collector(module.Block) if came_first else ():
        _note(block)


def living() -> List[Any]:
    """The blocks that were noted and are still there."""
    blocks = [noted() for noted in list(_noted.values())]
    return [block for block in blocks if block is not None]


def noting(kind: type, *_: Any, **__: Any) -> Any:
    """``Block.__new__``."""
    block: Any = object.__new__(kind)
    _note(block)
    return block


def _note(block: Any) -> None:
    number = id(block)
    _noted[number] = ref(block, lambda _: _noted.pop(number, None))


def _known_to_the_collector(base: type) -> List[Any]:
    """The blocks of somebody who imported MXNet long before gluonlab.

    From Python 3.9 on an object refers to its class. Before, all objects have to be looked at,
    among them tuples that other threads are making: with a second owner these end in a SystemError.
    """
    if sys.version_info >= (3, 9):
        found = gc.get_referrers(*_kinds(base))
    else:
        found = gc.get_objects()
    return [thing for thing in found if issubclass(type(thing), base)]


def _kinds(kind: type) -> Set[type]:
    """The class and all that are made of it."""
    return {kind}.union(*map(_kinds, kind.__subclasses__()))
