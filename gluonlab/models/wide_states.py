"""Running statistics with room for padded channels.

BatchNorm changes its running statistics in place. With padded channels (`channel_padding`) it needs
arrays of as many numbers; the parameter's own array is the beginning of such an array.
"""

from __future__ import annotations

from typing import Dict, MutableMapping, Tuple
from weakref import WeakKeyDictionary

import mxnet as mx
from mxnet import gluon, nd

ROOM = 16  # room up to the next multiple, the largest of `channel_padding.MULTIPLES`

Arrays = Tuple[nd.NDArray, nd.NDArray]  # the parameter's own, and the larger one

_arrays: MutableMapping[gluon.Parameter, Dict[mx.Context, Arrays]] = WeakKeyDictionary()


def make_room(param: gluon.Parameter, ctx: mx.Context) -> None:
    """Let the parameter's array (C,) on a device be the beginning of a larger one.

    The array object stays the same; only its memory is another. So this comes before anything keeps
    the handle of the array.
    """
    array, known = param.data(ctx), _arrays.setdefault(param, {})
    if len(array.shape) != 1 or array.size % ROOM == 0:
        return
    if ctx in known and known[ctx][0] is array:
        return
    wide = nd.zeros((-(-array.size // ROOM) * ROOM,), ctx, array.dtype)
    view = wide[: array.size]
    view[:] = array.as_nd_ndarray()  # which mx.np's arrays need
    array.handle, view.handle = view.handle, array.handle
    known[ctx] = (array, wide)


def widened(param: gluon.Parameter, ctx: mx.Context, shape: Tuple[int, ...]) -> nd.NDArray:
    """Return the parameter's array on a device, with room for as many channels as ``shape`` has.

    The added numbers are zero.
    """
    array = param.data(ctx)
    if shape == array.shape:
        return array
    make_room(param, ctx)
    _, wide = _arrays[param][ctx]
    return wide[: shape[0]]
