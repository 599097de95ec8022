"""--compress: gradients in fewer bits, on their way from device to device, or between processes."""

from __future__ import annotations

from typing import Any, Optional

from gluonlab.config.values import compression
from gluonlab.errors import ConfigError, KVStoreError, warn
from gluonlab.kvstores import KVSTORES
from gluonlab.kvstores.groups import Group

FP16 = "fp16"


def keeps_rest(compress: Optional[str]) -> bool:
    """Whether what is not sent is kept, to be added later: it is in 2 bits."""
    return compress not in (None, FP16)


def in_use(compress: Optional[str], device_count: int, group: Group) -> Optional[str]:
    """The compression that a run records: no 2 bits where one device is alone."""
    alone = group.size == 1 and device_count == 1
    return None if keeps_rest(compress) and alone else compress


def threshold_of(compress: str) -> float:
    """That of ``2bit:THRESHOLD``."""
    return float(compress.split(":")[1])


def sendable(compress: Optional[str], group: Group, on_servers: bool) -> Optional[str]:
    """How a GroupKVStore compresses what ``group`` sums, written out.

    None, and a warning, where a process alone has nobody to send 2 bits to. Raises KVStoreError for
    what is no compression, and for what the group, or servers that update, cannot take.
    """
    if compress is None:
        return None
    try:
        compress = compression("compress", compress)
    except ConfigError as error:
        raise KVStoreError(str(error)) from None
    if on_servers:
        raise KVStoreError(
            f"compress {compress} and on_servers contradict each other: servers that update take "
            "whole gradients: leave one of them out"
        )
    if compress == FP16 and not group.sums_float16:
        raise KVStoreError(
            f"compress {compress}: {group.name or 'a process alone'} cannot send that: "
            "it is possible with Horovod: leave it out, or choose 2bit:THRESHOLD"
        )
    if keeps_rest(compress) and group.size == 1:
        said = _alone(f"compress {compress}", "process")
        warn(said)
        return None
    return compress


def _alone(asked: str, sender: str) -> str:
    return f"{asked}: one {sender} has nobody to send gradients to, so nothing is compressed"


def check_compression(compress: Optional[str], kvstore: str, dtype: str, group: Group) -> None:
    """Raise KVStoreError for a kvstore that cannot compress its sums, ConfigError for float16.

    ConfigError, too, for a ``group`` that sums no float16, where that is to be sent. Where it has
    several processes, these compress what they send each other, with any kvstore.
    """
    if compress == FP16:
        if not group.sums_float16:
            start = f"{group.name} cannot sum float16: choose --backend horovod, 2bit:THRESHOLD"
            if not group.name:
                start = (
                    "it is for what several processes send each other over Horovod: start them "
                    "with python -m gluonlab.launch -n 2 --backend horovod"
                )
            raise ConfigError(f"--compress {FP16}: {start}, or leave it out")
        return
    if compress is not None and group.size == 1 and not KVSTORES[kvstore].compresses:
        able = " or ".join(name for name, kind in KVSTORES.items() if kind.compresses)
        raise KVStoreError(
            f"--compress {compress}: kvstore {kvstore!r} cannot compress gradients: choose {able}"
        )
    if compress is not None and dtype == "float16":
        raise ConfigError(
            f"--dtype float16 and --compress {compress} contradict each other: "
            "what 2 bits have left over would hold a part of steps that overflow, and are skipped: "
            "leave one of them out"
        )


def compressing(kvstore: Any, compress: Optional[str], device_count: int, group: Group) -> Any:
    """The same kvstore, set to compress the gradients that it sums: ``2bit:THRESHOLD``, or None.

    What 2 bits cannot say stays on its device and is added to the next gradient (Seide et al.,
    "1-bit stochastic gradient descent and its application to data-parallel distributed training of
    speech DNNs", 2014, section 3). A gradient here is that of the sum over a device's shard, and so
    the threshold is, too. With ``fp16``, and with several processes, nothing is set: the devices of
    a process exchange whole gradients, and `gluonlab.kvstores.group_store` compresses what
    ``group`` sums.
    """
    if compress is None or group.size > 1:
        return kvstore
    if compress == FP16 or device_count == 1:
        said = _alone(f"--compress {compress}", "process" if compress == FP16 else "device")
        warn(said)
    else:
        threshold = threshold_of(compress)
        kvstore.set_gradient_compression({"type": "2bit", "threshold": threshold})
    return kvstore
