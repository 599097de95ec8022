"""The devices of a study's trainings: so many GPUs, or CPU devices that stand in for them."""

from __future__ import annotations

from typing import Any, Dict

from gluonlab.devices import gpu_count
from gluonlab.errors import warn


def devices_of(count: int) -> Dict[str, Any]:
    """The settings of a TrainConfig for ``count`` devices.

    Every CPU device has one thread, else a single one would already use all cores.
    """
    if gpu_count():
        return {"gpus": count}
    return {"devices": f"cpu*{count}", "threads": 1}


def tell_of_stand_ins() -> None:
    """Warn, once for all trainings, where there is no GPU."""
    if not gpu_count():
        warn("no GPU on this machine: CPU devices stand in for GPUs")
