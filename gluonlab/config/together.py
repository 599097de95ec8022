"""Settings that contradict each other, whatever the recipe and wherever the run is."""

from __future__ import annotations

from typing import Any, Dict

from gluonlab.errors import ConfigError

TOGETHER = (  # two settings of which one alone may be given
    ("gpus", "devices", "--gpus {} and --devices {} contradict each other"),
    ("batch_size", "global_batch_size",
     "--batch-size {} is per device and --global-batch-size {} over all devices"),
    ("microbatches", "microbatch_size",
     "--microbatches {} is a number of parts and --microbatch-size {} their size"),
)  # fmt: skip


def check_together(settings: Dict[str, Any]) -> None:
    """Raise ConfigError for settings that contradict each other."""
    values = dict(settings)
    devices = values["devices"]
    if isinstance(devices, list):
        devices = values["devices"] = ",".join(devices)
    for first, second, contradiction in TOGETHER:
        if values[first] is not None and values[second] is not None:
            said = contradiction.format(values[first], values[second])
            raise ConfigError(f"{said}: give one of them")
    if values["require_gpu"] and devices is not None and "cpu" in devices.lower():
        raise ConfigError(
            f"--require-gpu and --devices {devices} contradict each other: "
            "name GPUs, or leave --require-gpu out"
        )
    if values["require_gpu"] and devices is not None and devices.strip().isdigit():
        raise ConfigError(
            f"--devices {devices} lets CPU devices stand in: "
            f"with --require-gpu write --gpus {devices}"
        )
