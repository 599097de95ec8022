"""MXNet's two kinds of arrays: mx.nd, which gluonlab uses, and mx.np, after ``npx.set_np()``.

Which of them layers give, and what a shape with zeros means, are settings of a thread. A whole run
has mx.nd, whatever the user has set; what a user gets of it, the user's own code in it, and the
pieces that are used alone, follow the user.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any, Iterable, Iterator, List

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon.nn import conv_layers

_USERS = local()  # ``is_np``: what the user has set, while nd_semantics hold
# of MXNet's convolutions, which note the name of their operator when they are made
_NAMES = {"convolution": "Convolution", "deconvolution": "Deconvolution"}


@contextmanager
def nd_semantics() -> Iterator[None]:
    """mx.nd's semantics hold in this block, or in the decorated function; then the user's again."""
    outermost = not hasattr(_USERS, "is_np")
    if outermost:
        _USERS.is_np = mx.util.is_np_array()
    try:
        with mx.util.np_array(False), mx.util.np_shape(False):
            yield
    finally:
        if outermost:
            del _USERS.is_np


@contextmanager
def np_semantics() -> Iterator[None]:
    """The same for mx.np's."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


def is_np_users() -> bool:
    """Whether the user has set mx.np, even inside `nd_semantics`."""
    return bool(getattr(_USERS, "is_np", mx.util.is_np_array()))


@contextmanager
def users_semantics() -> Iterator[None]:
    """Restore the user's setting in this block, which calls the user's code."""
    if is_np_users() == mx.util.is_np_array():
        yield
        return
    with np_semantics() if is_np_users() else nd_semantics():
        yield


def as_users(arrays: List[nd.NDArray]) -> List[nd.NDArray]:
    """The arrays as the user's kind, in the same memory: mx.np.ndarray after ``npx.set_np()``."""
    return [array.as_np_ndarray() for array in arrays] if mx.util.is_np_array() else arrays


def give_back(net: gluon.HybridBlock) -> None:
    """Convert the parameters of a run's network to mx.np arrays after ``npx.set_np()``."""
    if is_np_users():
        convert_parameters(net.collect_params().values(), numpy_like=True)


def convert_parameters(params: "Iterable[gluon.Parameter]", numpy_like: bool) -> None:
    """Convert the arrays of parameters to this kind, in the same memory."""
    for param in params:
        if param._data is not None:
            param._data = as_kind(param._data, numpy_like)
        if param._grad is not None:
            param._grad = as_kind(param._grad, numpy_like)
            autograd.mark_variables(param._data, param._grad, param.grad_req)
        param._var = None  # the symbol, which is of a kind, too
        if param._shape is not None and not numpy_like:
            param._shape = tuple(0 if size == -1 else size for size in param._shape)


def compute_in(block: gluon.HybridBlock, numpy_like: bool) -> None:
    """Make a block and all blocks in it compute with arrays of this kind, for any input kind.

    The output has the kind that is set at the call. Arrays are not copied.
    """
    for each in _blocks(block):
        method = "hybrid_forward"
        if isinstance(each, gluon.SymbolBlock):  # which has its graph already
            method, each._cached_graph = "forward", as_kind(each._cached_graph, numpy_like)
        setattr(each, method, partial(_computed_in, each, method, numpy_like))
        if isinstance(each, conv_layers._Conv):
            name = each._op_name.lower()
            each._op_name = name if numpy_like else _NAMES.get(name, each._op_name)
        each._clear_cached_op()


def _computed_in(
    block: gluon.HybridBlock, method: str, numpy_like: bool, *given: Any, **params: Any
) -> Any:
    called_in = mx.util.is_np_array()
    with np_semantics() if numpy_like else nd_semantics():
        given, params = as_kind(given, numpy_like), as_kind(params, numpy_like)
        found = getattr(type(block), method)(block, *given, **params)
    return as_kind(found, called_in)


def as_kind(given: Any, numpy_like: bool) -> Any:
    """Convert arrays and symbols, also in lists, to mx.np or mx.nd; keep other values unchanged."""
    if isinstance(given, (list, tuple)):
        return type(given)(as_kind(each, numpy_like) for each in given)
    if isinstance(given, dict):
        return {name: as_kind(each, numpy_like) for name, each in given.items()}
    if isinstance(given, (nd.NDArray, mx.sym.Symbol)):
        return given.as_np_ndarray() if numpy_like else given.as_nd_ndarray()
    return given


def _blocks(block: gluon.Block) -> List[gluon.HybridBlock]:
    """Return the block and all blocks in it, each once."""
    found: List[gluon.HybridBlock] = []
    block.apply(found.append)
    return [each for each in dict.fromkeys(found) if isinstance(each, gluon.HybridBlock)]
