"""Memory of the host that GPUs fetch from while the host works on.

CUDA copies from ordinary memory by way of a buffer of its own, and keeps the caller until all is in
it. From pinned memory, which the system never moves, a GPU fetches by itself. Pinning takes long,
and MXNet gives such memory back as soon as nobody holds the array, for which CUDA waits until all
GPUs are idle: so two buffers are kept, and filled in turns.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.fast_invoke import address_range, ndarray_from_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUFFERS = 2  # one that is being filled, one that is being fetched


class Pinned:
    """``pinned(array)`` copies a NumPy array to mx.cpu_pinned(0).

    The copy is valid until BUFFERS more calls. A call waits for the operations that were queued
    with the former content of its buffer.
    """

    def __init__(self) -> None:
        self._buffers: "Deque[nd.NDArray]" = deque()

    def __call__(self, array: "NDArray[Any]") -> nd.NDArray:
        if not array.size:
            return nd.empty(array.shape, mx.cpu(0), array.dtype)
        filled = self._buffer(array)[: len(array)]
        begin, _ = address_range(filled)
        check_call(_LIB.MXNDArrayWaitToWrite(filled.handle))
        memory: Any = (ctypes.c_byte * array.nbytes).from_address(begin)
        np.copyto(np.frombuffer(memory, array.dtype).reshape(array.shape), array)
        return filled

    def _buffer(self, array: "NDArray[Any]") -> nd.NDArray:
        """The buffer that was filled longest ago, or a new one if that does not fit."""
        if len(self._buffers) == BUFFERS:
            buffer = self._buffers.popleft()
            if (
                buffer.shape[1:] == array.shape[1:]
                and len(buffer) >= len(array)
                and buffer.dtype == array.dtype
            ):
                self._buffers.append(buffer)
                return buffer
        self._buffers.append(nd.empty(array.shape, mx.cpu_pinned(0), array.dtype))
        return self._buffers[-1]


def host_memory_for(ctx: mx.Context) -> "Callable[[NDArray[Any]], nd.NDArray]":
    """The function that copies NumPy arrays to where a device like this one fetches them from.

    Keep it, and use it from one thread at a time.
    """
    return Pinned() if ctx.device_type == "gpu" else ndarray_from_numpy
