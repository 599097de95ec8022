"""How long the threads that compute for CPU devices were ready to run and had no core.

A device with more threads on its host than cores stands still although all that it needs is there,
and MXNet's trace does not say why. Linux does: /proc/self/task/ID/schedstat counts, for a thread,
the nanoseconds in which it ran, and in which it waited for a core (its sched-stats.rst). MXNet has
one thread for a CPU device, and others for some sums, whose waiting is not counted here.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Dict, List, Sequence

import mxnet as mx
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.threads import EngineContext

_ON_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
SCHEDSTAT = "/proc/self/task/{}/schedstat"
NAME = b"gluonlab.CoreWaits"


class CoreWaits:
    """``begin()``, and later ``micros()``: what each device's thread has waited for since then."""

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        """Waits for the devices, whose threads say which they are."""
        self._threads = {str(ctx): _thread_of(ctx) for ctx in ctxs if ctx.device_type == "cpu"}
        self._before: Dict[str, float] = {}

    def begin(self) -> None:
        """Count from now on."""
        self._before = self._now()

    def micros(self) -> Dict[str, float]:
        """Microseconds by device; without those of which the system says nothing."""
        return {
            row: now - self._before[row] for row, now in self._now().items() if row in self._before
        }

    def _now(self) -> Dict[str, float]:
        found = {}
        for row, thread in self._threads.items():
            try:
                _, waited, *_ = Path(SCHEDSTAT.format(thread)).read_text().split()
                found[row] = int(waited) / 1000
            except (OSError, ValueError):  # not Linux, or the thread has ended
                pass
        return found


def _thread_of(ctx: mx.Context) -> int:
    """The system's number of the thread that computes for a CPU device."""
    found: List[int] = []
    callback = _ON_WORKER(lambda *_: found.append(threading.get_native_id()))
    array = nd.zeros((1,), ctx=ctx)
    where = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    handle = ctypes.byref(array.handle)
    check_call(
        _LIB.MXEnginePushSyncND(callback, None, None, where, None, 0, handle, 1, None, 0, NAME)
    )
    array.wait_to_read()
    return found[0]
