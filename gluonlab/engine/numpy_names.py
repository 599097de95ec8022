"""The names of numpy that MXNet 1.9.1 needs when it is imported, and numpy 1.24 has dropped."""

from __future__ import annotations

import types
from typing import NoReturn

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


def put_back(numpy: types.ModuleType) -> None:
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
