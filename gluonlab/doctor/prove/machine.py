"""The machine that a proof is about: what its numbers depend on, and nothing that tells whose it
is.

No names of hosts, people, folders or processes, no addresses, serial numbers or UUIDs.
"""

from __future__ import annotations

from typing import Any, Dict

from gluonlab.bench.harness.machine import about
from gluonlab.gpu.nvml import Driver

OF_INTEREST = ("gluonlab", "cpu", "cores", "versions")


def describe(driver: Driver) -> Dict[str, Any]:
    """For the file. GPUs have NVML's numbers, which are nvidia-smi's."""
    here = about()
    gpus = [
        {
            "name": gpu.name,
            "capability": list(gpu.capability),
            "memory_bytes": gpu.memory_bytes,
            "mig": gpu.parts is not None,
        }
        for gpu in driver.gpus
    ]
    return {
        **{name: here[name] for name in OF_INTEREST},
        "driver": driver.version,
        "gpus": gpus,
        "nvlinks": [[a, b, count] for (a, b), count in sorted(driver.nvlinks.items())],
        "switched": list(driver.switched),
        "no_peers": [list(pair) for pair in driver.no_peers],
    }
