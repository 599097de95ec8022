"""Converts between MXNet's two kinds of arrays: mx.nd, and mx.np after ``npx.set_np()``.

Thread-local settings of MXNet determine the kind of array that layers return, and what a zero in a
shape means. (In this module, "semantics" means these settings.)

- A run of gluonlab computes with mx.nd arrays, regardless of the user's setting.
- The user's setting applies to arrays passed to the user, and to the user's own code in a run. The
  setting also applies to components of gluonlab that are used outside a run.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any, Iterable, Iterator, List

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon.nn import conv_layers

_USER_SETTING = local()  # its attribute is_np is the user's setting while `nd_semantics` is active
# MXNet's convolution layers store the name of their operator when they are created. These are the
# names for mx.nd, by the names for mx.np.
_ND_OPERATOR_NAMES = {"convolution": "Convolution", "deconvolution": "Deconvolution"}


@contextmanager
def nd_semantics() -> Iterator[None]:
    """Use mx.nd arrays and shapes in the with block or in the decorated function."""
    outermost = not hasattr(_USER_SETTING, "is_np")
    if outermost:
        _USER_SETTING.is_np = mx.util.is_np_array()
    try:
        with mx.util.np_array(False), mx.util.np_shape(False):
            yield
    finally:
        if outermost:
            del _USER_SETTING.is_np


@contextmanager
def np_semantics() -> Iterator[None]:
    """Use mx.np arrays and shapes in the with block or in the decorated function."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


def user_has_set_np() -> bool:
    """Check if the user has called ``npx.set_np()``. This also works inside `nd_semantics`."""
    return bool(getattr(_USER_SETTING, "is_np", mx.util.is_np_array()))


@contextmanager
def user_semantics() -> Iterator[None]:
    """Restore the user's choice of mx.nd or mx.np, for calling user code inside `nd_semantics`."""
    if user_has_set_np() == mx.util.is_np_array():
        yield
        return
    with np_semantics() if user_has_set_np() else nd_semantics():
        yield


def to_user_arrays(arrays: List[nd.NDArray]) -> List[nd.NDArray]:
    """Convert the arrays to the kind that the current setting selects, without copying them."""
    return [array.as_np_ndarray() for array in arrays] if mx.util.is_np_array() else arrays


def convert_network_for_user(net: gluon.HybridBlock) -> None:
    """If the user has called ``npx.set_np()``, convert a network's parameters to mx.np arrays."""
    if user_has_set_np():
        convert_parameters(net.collect_params().values(), numpy_like=True)


def convert_parameters(params: "Iterable[gluon.Parameter]", numpy_like: bool) -> None:
    """Convert parameters to mx.np (if ``numpy_like``) or mx.nd arrays that share their memory."""
    for param in params:
        if param._data is not None:
            param._data = convert_arrays(param._data, numpy_like)
        if param._grad is not None:
            param._grad = convert_arrays(param._grad, numpy_like)
            autograd.mark_variables(param._data, param._grad, param.grad_req)
        param._var = None  # a symbol is also of one kind; MXNet creates a new symbol when needed
        if param._shape is not None and not numpy_like:
            param._shape = tuple(0 if size == -1 else size for size in param._shape)


def set_block_semantics(block: gluon.HybridBlock, numpy_like: bool) -> None:
    """Make a block and its descendants compute with mx.np (if ``numpy_like``) or mx.nd arrays.

    The inputs may be of either kind. The kind of the outputs depends on the setting at the time of
    the call. Arrays are converted without a copy.
    """
    for child in _hybrid_blocks(block):
        method = "hybrid_forward"
        if isinstance(child, gluon.SymbolBlock):  # its graph exists already
            method, child._cached_graph = "forward", convert_arrays(child._cached_graph, numpy_like)
        setattr(child, method, partial(_forward_with_semantics, child, method, numpy_like))
        if isinstance(child, conv_layers._Conv):
            name = child._op_name.lower()
            child._op_name = name if numpy_like else _ND_OPERATOR_NAMES.get(name, child._op_name)
        child._clear_cached_op()


def _forward_with_semantics(
    block: gluon.HybridBlock, method: str, numpy_like: bool, *inputs: Any, **params: Any
) -> Any:
    """Call a method of ``block`` with converted inputs, and convert the output for the caller.

    ``method``: name of the block's forward method. See `set_block_semantics`.
    """
    caller_uses_np = mx.util.is_np_array()
    with np_semantics() if numpy_like else nd_semantics():
        inputs, params = convert_arrays(inputs, numpy_like), convert_arrays(params, numpy_like)
        output = getattr(type(block), method)(block, *inputs, **params)
    return convert_arrays(output, caller_uses_np)


def convert_arrays(value: Any, numpy_like: bool) -> Any:
    """Convert arrays and symbols to mx.np (if ``numpy_like``) or mx.nd.

    ``value`` may be a list, tuple or dictionary of arrays. Other values are returned unchanged.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(convert_arrays(item, numpy_like) for item in value)
    if isinstance(value, dict):
        return {name: convert_arrays(item, numpy_like) for name, item in value.items()}
    if isinstance(value, (nd.NDArray, mx.sym.Symbol)):
        return value.as_np_ndarray() if numpy_like else value.as_nd_ndarray()
    return value


def _hybrid_blocks(block: gluon.Block) -> List[gluon.HybridBlock]:
    """Return the hybrid blocks among a block and its descendants, without duplicates."""
    blocks: List[gluon.Block] = []
    block.apply(blocks.append)
    return [child for child in dict.fromkeys(blocks) if isinstance(child, gluon.HybridBlock)]
