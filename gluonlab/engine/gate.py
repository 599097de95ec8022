"""A gate in front of what is queued: the host gets ahead of the devices while it is closed."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any, List, Sequence

from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.threads import EngineContext

_ON_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
NAME = b"gluonlab.Gate"
LOOK_S = 0.05


class Gate:
    """Whatever reads or writes ``arrays`` waits from now on, until `open`.

    It opens by itself after ``limit_s``, for hosts that wait for their devices; `held` says that it
    has not.
    """

    def __init__(self, arrays: Sequence[nd.NDArray], limit_s: float) -> None:
        self._opened, self.held = threading.Event(), True
        self._deadline = time.monotonic() + limit_s
        self._kept: List[Any] = []  # what the engine calls must live until it has
        for array in arrays:
            self._close(array)

    def stay(self, limit_s: float) -> None:
        """Open by itself only after so long from now, if it is closed yet."""
        self._deadline = time.monotonic() + limit_s

    def open(self) -> None:
        """Let all that waits begin. Wait for the devices before this object goes."""
        self._opened.set()

    def _close(self, array: nd.NDArray) -> None:
        def wait(run_context: object, parameter: object) -> None:
            while not self._opened.wait(LOOK_S):
                if time.monotonic() > self._deadline:
                    self.held = False
                    self._opened.set()

        ctx, callback = array.context, _ON_WORKER(wait)
        where = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
        self._kept.append((callback, array))
        check_call(
            _LIB.MXEnginePushSyncND(
                callback, None, None, where, None, 0, ctypes.byref(array.handle), 1, None, 0, NAME
            )
        )
