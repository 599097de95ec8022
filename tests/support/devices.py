"""Devices of the tests: CPUs, or GPUs with GLUONLAB_TEST_DEVICES=gpu.

==================  ============================  ==========================================
a test calls        on CPUs                       on GPUs
==================  ============================  ==========================================
``device(1)``       ``mx.cpu(1)``                 ``mx.gpu(1)``
``contexts(2)``     ``[mx.cpu(0), mx.cpu(1)]``    ``[mx.gpu(0), mx.gpu(1)]``
``devices(2)``      the same, ready to compute    the same
``device_spec(2)``  ``"cpu*2"``                   ``"gpu:0,1"``, for command lines and configs
==================  ============================  ==========================================

`reference.cpu_contexts` are always CPUs, the reference for GPUs. A test about CPUs is marked
``cpu_only("reason")`` and gets CPUs here. `device_use.py` records which test used which devices.
"""

from __future__ import annotations

import os
from typing import Any, List, Optional, Set

from gluonlab import devices as named_devices

VARIABLE, DEVICE_KINDS = "GLUONLAB_TEST_DEVICES", ("cpu", "gpu")


class DeviceChoice:
    """The kind of device for the current test, and the kinds that it has used."""

    def __init__(self, requested_kind: str) -> None:
        self.requested_kind = self.kind = requested_kind
        self.used_kinds: Set[str] = set()

    def use_kind(self) -> str:
        self.used_kinds.add(self.kind)
        return self.kind


CHOICE = DeviceChoice(os.environ.get(VARIABLE) or "cpu")


def runs_on_gpus() -> bool:
    """Return whether the current test gets GPUs. This call is not a use of devices."""
    return CHOICE.kind == "gpu"


def device(number: int = 0) -> Any:
    import mxnet as mx

    return mx.Context(CHOICE.use_kind(), number)


def contexts(count: int) -> List[Any]:
    """Return the first ``count`` devices, for tests that need no worker threads."""
    return [device(number) for number in range(count)]


def devices(count: int, threads: "Optional[int]" = None) -> List[Any]:
    """Return the first ``count`` devices, prepared by gluonlab; ``threads`` is for CPUs only."""
    return named_devices.devices(device_spec(count), None if runs_on_gpus() else threads)


def device_spec(count: int) -> str:
    """Return the first ``count`` devices in the syntax of ``--devices``."""
    if CHOICE.use_kind() == "gpu":
        return "gpu:" + ",".join(map(str, range(count)))
    return "cpu" if count == 1 else f"cpu*{count}"
