"""Copies arrays to pinned host memory, from which GPUs copy while the host continues.

CUDA copies pageable memory through a buffer, and the host waits until all data are in the buffer.
The system never moves pinned memory, so a GPU can copy from it asynchronously. Both pinning and
freeing are slow: when MXNet frees a pinned array, CUDA waits until all GPUs are idle. So this
module keeps two pinned buffers and fills them alternately.
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

BUFFERS = 2  # the host fills one buffer while the GPU copies the other


class PinnedCopier:
    """Callable that copies a NumPy array to mx.cpu_pinned(0), and returns the copy.

    The copy is overwritten BUFFERS calls later. That call first waits for all operations that read
    the copy.
    """

    def __init__(self) -> None:
        self._buffers: "Deque[nd.NDArray]" = deque()

    def __call__(self, array: "NDArray[Any]") -> nd.NDArray:
        if not array.size:
            return nd.empty(array.shape, mx.cpu(0), array.dtype)
        filled = self._next_buffer(array)[: len(array)]
        begin, _ = address_range(filled)
        check_call(_LIB.MXNDArrayWaitToWrite(filled.handle))
        memory: Any = (ctypes.c_byte * array.nbytes).from_address(begin)
        np.copyto(np.frombuffer(memory, array.dtype).reshape(array.shape), array)
        return filled

    def _next_buffer(self, array: "NDArray[Any]") -> nd.NDArray:
        """Return the least recently filled buffer, or a new buffer if that buffer is too small."""
        if len(self._buffers) == BUFFERS:
            buffer = self._buffers.popleft()
            if buffer.shape[1:] == array.shape[1:] and len(buffer) >= len(array) and buffer.dtype == array.dtype:
                self._buffers.append(buffer)
                return buffer
        self._buffers.append(nd.empty(array.shape, mx.cpu_pinned(0), array.dtype))
        return self._buffers[-1]


def make_host_copier(ctx: mx.Context) -> "Callable[[NDArray[Any]], nd.NDArray]":
    """Return a function that copies NumPy arrays to host memory that ``ctx`` can read quickly.

    Reuse the function for all batches, and call it from one thread at a time.
    """
    return PinnedCopier() if ctx.device_type == "gpu" else ndarray_from_numpy
