"""Work for a device that takes a known time, whatever the machine and whoever else uses it."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Callable, List

import mxnet as mx
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.threads import EngineContext

_ON_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
MOST_KEPT = 100

_kept: List[Any] = []  # what the engine calls must live for as long as it may


def queue_pause(ctx: mx.Context, seconds: float) -> None:
    """Queue an operation that keeps a CPU device idle for so long; `mx.nd.waitall` waits for it."""
    queue_call(ctx, lambda: time.sleep(seconds))


def queue_call(ctx: mx.Context, call: Callable[[], object]) -> nd.NDArray:
    """Queue an operation of a CPU device, which calls ``call``; return the array that it writes."""

    def operate(run_context: object, parameter: object) -> None:
        call()

    if len(_kept) > MOST_KEPT:
        nd.waitall()
        _kept.clear()
    callback, written = _ON_WORKER(operate), nd.zeros((1,), ctx=ctx)
    where, handle = ctypes.byref(EngineContext(1, ctx.device_id)), ctypes.byref(written.handle)
    _kept.append((callback, written))
    none = (None, None)
    check_call(
        _LIB.MXEnginePushSyncND(callback, *none, where, None, 0, handle, 1, None, 0, b"queue_call")
    )
    return written
