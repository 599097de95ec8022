"""How many processes of a group run on one host: all exchange their host's number."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

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


def processes_here(group: Group) -> int:
    """How many processes of ``group`` are on this one's host, itself included; all must call it."""
    numbers = np.zeros(group.size)
    numbers[group.rank] = host_number()
    return int((group.total(numbers) == host_number()).sum())
