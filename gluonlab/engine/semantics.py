"""MXNet's two kinds of arrays: mx.nd, which gluonlab uses, and mx.np, after ``npx.set_np()``.

Which of them layers give, and what a shape with zeros means, are settings of a thread. A whole run
has mx.nd, whatever the user has set; what a user gets of it, and the pieces that are used alone,
follow the user.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import Any, Callable, Iterator, List

import mxnet as mx
from mxnet import autograd, gluon, nd


@contextmanager
def nd_semantics() -> Iterator[None]:
    """mx.nd's semantics hold in this block, or in the decorated function; then the user's again."""
    with mx.util.np_array(False), mx.util.np_shape(False):
        yield


@contextmanager
def np_semantics() -> Iterator[None]:
    """The same for mx.np's."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


def as_users(arrays: List[nd.NDArray]) -> List[nd.NDArray]:
    """The arrays as the user's kind, in the same memory: mx.np.ndarray after ``npx.set_np()``."""
    return [array.as_np_ndarray() for array in arrays] if mx.util.is_np_array() else arrays


def make_users(net: gluon.HybridBlock) -> None:
    """Have a hybridized network made under mx.nd's semantics take and give the user's arrays.

    Within, it stays what it is: gluon's layers choose their operators when they are made.
    """
    if not mx.util.is_np_array():
        return
    for param in net.collect_params().values():
        if param._data is not None:
            param._data = as_users(param._data)
        if param._grad is not None:
            param._grad = as_users(param._grad)
            autograd.mark_variables(param._data, param._grad, param.grad_req)
    within = net.forward

    def forward(*inputs: Any) -> Any:
        with nd_semantics():
            found = within(*(array.as_nd_ndarray() for array in inputs))
        return as_users([found])[0]

    net.forward = forward


def of_nd(hybrid_forward: Callable[..., Any]) -> Callable[..., Any]:
    """A ``hybrid_forward`` written with mx.nd's operators, made to take mx.np arrays, too."""

    @wraps(hybrid_forward)
    def forward(self: gluon.HybridBlock, F: Any, *inputs: Any, **params: Any) -> Any:
        if not mx.util.is_np_array():
            return hybrid_forward(self, F, *inputs, **params)
        params = {name: x.as_nd_ndarray() for name, x in params.items() if x is not None}
        outputs = hybrid_forward(self, F, *(x.as_nd_ndarray() for x in inputs), **params)
        return outputs.as_np_ndarray()

    return forward
