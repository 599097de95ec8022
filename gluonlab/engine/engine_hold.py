"""EngineHold: makes the devices wait, so that the host can queue an entire step first.

Measurements use this class to separate host time from device time.
"""

from __future__ import annotations

import threading
import time
from typing import Any, List, Sequence

from mxnet import nd

from gluonlab.engine.cpu_threads import EngineCallback, push_engine_operation

HOLD_POLL_S = 0.05  # interval at which a hold checks its time limit


class EngineHold:
    """Makes all operations that read or write ``arrays`` wait until `release` is called.

    So the host can queue an entire step before the devices start. If the host waits for the devices
    before the release, both would wait forever. So the hold ends by itself after ``limit_s``
    seconds, and then sets ``held_until_release`` to False.
    """

    def __init__(self, arrays: Sequence[nd.NDArray], limit_s: float) -> None:
        self._released, self.held_until_release = threading.Event(), True
        self._deadline = time.monotonic() + limit_s
        self._callbacks: List[Any] = []  # must live until the engine has called them
        for array in arrays:
            self._hold(array)

    def extend(self, limit_s: float) -> None:
        """Set the time limit to ``limit_s`` seconds from now."""
        self._deadline = time.monotonic() + limit_s

    def release(self) -> None:
        """Start all waiting operations. Keep this object until the devices have finished."""
        self._released.set()

    def _hold(self, array: nd.NDArray) -> None:
        """Queue an engine operation on ``array`` that ends at the release or the time limit."""

        def wait(run_context: object, parameter: object) -> None:
            """Wait in a thread of the engine for the release or the time limit."""
            while not self._released.wait(HOLD_POLL_S):
                if time.monotonic() > self._deadline:
                    self.held_until_release = False
                    self._released.set()

        callback = EngineCallback(wait)
        self._callbacks.append((callback, array))
        push_engine_operation(callback, array, b"gluonlab.EngineHold")
