"""--compress: gradients in two bits each, on their way from device to device."""

from __future__ import annotations

import warnings
from typing import Any, Optional

from gluonlab.errors import ConfigError, GluonlabWarning, KVStoreError
from gluonlab.kvstores import KVSTORES


def check_compression(compress: Optional[str], kvstore: str, dtype: str) -> None:
    """Raise KVStoreError for a kvstore that cannot compress its sums, ConfigError for float16."""
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


def compressing(kvstore: Any, compress: Optional[str], device_count: int) -> Any:
    """The same kvstore, set to compress the gradients that it sums: ``2bit:THRESHOLD``, or None.

    What 2 bits cannot say stays on its device and is added to the next gradient (Seide et al.,
    "1-bit stochastic gradient descent and its application to data-parallel distributed training of
    speech DNNs", 2014, section 3). A gradient here is that of the sum over a device's shard, and so
    the threshold is, too.
    """
    if compress is not None and device_count > 1:
        kind, threshold = compress.split(":")
        kvstore.set_gradient_compression({"type": kind, "threshold": float(threshold)})
    elif compress is not None:
        message = (
            f"--compress {compress}: one device has nobody to send gradients to, "
            "so nothing is compressed"
        )
        warnings.warn(message, GluonlabWarning, stacklevel=2)
    return kvstore
