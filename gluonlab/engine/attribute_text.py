"""Operators' attributes as MXNet reads them, under numpy 2.

MXNet hands attributes to its C library as text: a shape is `str((2, 3))`. Since numpy 2 the text of
a tuple or list says `np.int64(2)` where numpy 1 said `2`, and MXNet can read only the latter. So
its modules get a `str` of their own, which writes numbers as numpy 1 did.
"""

from __future__ import annotations

import sys
from typing import Any

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


def install() -> None:
    """Let MXNet, which has been imported, write attributes so. Under numpy 1 it does by itself."""
    import numpy

    # not by the text of an np.int64 in a tuple: set_printoptions(legacy=...) may change it any time
    if int(numpy.__version__.split(".")[0]) < 2:
        return
    for name in (*CALLING, ALSO_TESTING):
        if name in sys.modules:
            stand_in = AttributeStr if name == ALSO_TESTING else attribute_text
            vars(sys.modules[name])["str"] = stand_in
