"""How many processes of a group run on one host: all exchange their host's number."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Optional

import numpy as np

from gluonlab.kvstores.groups import Group

BYTES = 6  # float64 holds whole numbers of 53 bits
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_number() -> int:
    """A number for this host, 1 or more: another has the same once in 2^48 cases."""
    try:
        started = BOOT_ID.read_text()
    except OSError:
        started = ""
    digest = hashlib.sha256(f"{socket.gethostname()}\n{started}".encode()).digest()
    return 1 + int.from_bytes(digest[:BYTES], "big")


def gpus_of(local_rank: int, gpus: Optional[int]) -> str:
    """The GPUs of a process by its number on its host, as --devices: ``gpus`` of them, or one."""
    count = gpus or 1
    numbers = range(local_rank * count, (local_rank + 1) * count)
    return "gpu:" + ",".join(map(str, numbers))


def processes_here(group: Group) -> int:
    """How many processes of ``group`` are on this one's host, itself included; all must call it."""
    own = np.array([host_number()])
    return int((group.everyones(own) == own).sum())
