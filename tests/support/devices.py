"""The one place where tests get their devices: CPUs, or GPUs with GLUONLAB_TEST_DEVICES=gpu.

=================  ============================  ==========================================
a test asks for    on CPUs                       on GPUs
=================  ============================  ==========================================
``device(1)``      ``mx.cpu(1)``                 ``mx.gpu(1)``
``contexts(2)``    ``[mx.cpu(0), mx.cpu(1)]``    ``[mx.gpu(0), mx.gpu(1)]``
``devices(2)``     the same, ready to compute    the same
``named(2)``       ``"cpu*2"``                   ``"gpu:0,1"``, for command lines and configs
=================  ============================  ==========================================

`reference.cpus` stay CPUs, so that a CPU is what GPUs are compared with. A test that is about CPUs
as such is marked ``cpu_only("reason")`` and gets CPUs here, too. `device_use.py` counts which test
ran where.
"""

from __future__ import annotations

import os
from typing import Any, List, Optional, Set

from gluonlab import devices as named_devices

VARIABLE, DEVICE_KINDS = "GLUONLAB_TEST_DEVICES", ("cpu", "gpu")


class DeviceChoice:
    """The kind of device for the test that runs, and the kinds that it has taken."""

    def __init__(self, asked: str) -> None:
        self.asked = self.kind = asked
        self.taken: Set[str] = set()

    def take(self) -> str:
        self.taken.add(self.kind)
        return self.kind


CHOICE = DeviceChoice(os.environ.get(VARIABLE) or "cpu")


def runs_on_gpus() -> bool:
    """Whether the test that runs gets GPUs; not a use of devices."""
    return CHOICE.kind == "gpu"


def device(number: int = 0) -> Any:
    import mxnet as mx

    return mx.Context(CHOICE.take(), number)


def contexts(count: int) -> List[Any]:
    """The first ``count`` devices as they are, for tests that need no threads of their own."""
    return [device(number) for number in range(count)]


def devices(count: int, threads: "Optional[int]" = None) -> List[Any]:
    """The first ``count`` devices, as gluonlab makes them ready; ``threads`` is for CPUs only."""
    return named_devices.devices(device_spec(count), None if runs_on_gpus() else threads)


def device_spec(count: int) -> str:
    """The first ``count`` devices as a person writes them."""
    if CHOICE.take() == "gpu":
        return "gpu:" + ",".join(map(str, range(count)))
    return "cpu" if count == 1 else f"cpu*{count}"
