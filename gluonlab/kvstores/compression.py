"""--compress: gradients in fewer bits, on their way from device to device, or between processes."""

from __future__ import annotations

import warnings
from typing import Any, Optional

from gluonlab.errors import ConfigError, GluonlabWarning, KVStoreError
from gluonlab.kvstores import KVSTORES
from gluonlab.kvstores.groups import Group

FP16 = "fp16"


def keeps_rest(compress: Optional[str]) -> bool:
    """Whether what is not sent stays in MXNet, to be added later: it does in 2 bits."""
    return compress not in (None, FP16)


def check_compression(compress: Optional[str], kvstore: str, dtype: str, group: Group) -> None:
    """Raise KVStoreError for a kvstore that cannot compress its sums, ConfigError for float16.

    ConfigError, too, for a ``group`` that sums no float16, where that is to be sent.
    """
    if compress == FP16:
        if not group.sums_float16:
            start = f"{group.name} cannot sum float16: choose --backend horovod"
            if not group.name:
                start = (
                    "it is for what several processes send each other over Horovod: start them "
                    "with python -m gluonlab.launch -n 2 --backend horovod"
                )
            raise ConfigError(f"--compress {FP16}: {start}, or leave it out")
        return
    if compress is not None and not KVSTORES[kvstore].compresses:
        able = " or ".join(name for name, kind in KVSTORES.items() if kind.compresses)
        raise KVStoreError(
            f"--compress {compress}: kvstore {kvstore!r} cannot compress gradients: choose {able}"
        )
    if compress is not None and dtype == "float16":
        raise ConfigError(
            f"--dtype float16 and --compress {compress} contradict each other: "
            "an overflow, which the scale of the loss follows, gets lost in 2 bits: "
            "leave one of them out"
        )


def compressing(kvstore: Any, compress: Optional[str], device_count: int, group: Group) -> Any:
    """The same kvstore, set to compress the gradients that it sums: ``2bit:THRESHOLD``, or None.

    What 2 bits cannot say stays on its device and is added to the next gradient (Seide et al.,
    "1-bit stochastic gradient descent and its application to data-parallel distributed training of
    speech DNNs", 2014, section 3). A gradient here is that of the sum over a device's shard, and so
    the threshold is, too. With ``fp16`` nothing is set: the devices of a process exchange whole
    gradients, and `gluonlab.kvstores.group_store` rounds what ``group`` sums.
    """
    senders, one = (group.size, "process") if compress == FP16 else (device_count, "device")
    if compress is not None and senders == 1:
        message = (
            f"--compress {compress}: one {one} has nobody to send gradients to, "
            "so nothing is compressed"
        )
        warnings.warn(message, GluonlabWarning, stacklevel=2)
    elif compress is not None and compress != FP16:
        kind, threshold = compress.split(":")
        kvstore.set_gradient_compression({"type": kind, "threshold": float(threshold)})
    return kvstore
