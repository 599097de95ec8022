"""What the environment says of MXNet's parameter server to each of its processes."""

from __future__ import annotations

import ipaddress
import os
from typing import Mapping, NamedTuple, Optional


class Workers(NamedTuple):
    """The workers of MXNet's parameter server in this process's group.

    ``number``: how many there are. ``all_here``: whether all are on this host.
    """

    number: int
    all_here: bool


WORKER_VARIABLE = "DMLC_ROLE"  # its launchers set this for each process


def parameter_server_workers() -> Optional[Workers]:
    """The Workers of this process's group, from its environment; None if it is not one of them."""
    number = os.environ.get("DMLC_NUM_WORKER", "")
    if os.environ.get(WORKER_VARIABLE) != "worker" or not number.isdigit():
        return None
    # a scheduler at a loopback address hears this host alone; launch.py --launcher local starts all
    # of them here
    local = os.environ.get("DMLC_JOB_CLUSTER") == "local"
    return Workers(int(number), local or _is_loopback(os.environ.get("DMLC_PS_ROOT_URI", "")))


NODE_ADDRESS = "DMLC_NODE_HOST"  # where this process listens


class ServerRole(NamedTuple):
    """A process's part in a group of MXNet's parameter server; the rank is told by the store only.

    ``role``: worker, server or scheduler. The others are None where the environment lacks them.
    """

    role: str
    workers: Optional[str]
    root: Optional[str]
    port: Optional[str]


ROLE_NAMES = {  # for messages: what `ServerRole` is made of
    "role": WORKER_VARIABLE,
    "workers": "DMLC_NUM_WORKER",
    "root": "DMLC_PS_ROOT_URI",
    "port": "DMLC_PS_ROOT_PORT",
}


def server_role(environ: Mapping[str, str]) -> Optional[ServerRole]:
    """The role that an environment gives its process, as it stands there; None if it gives none."""
    found = {field: environ.get(name) or None for field, name in ROLE_NAMES.items()}
    role = found.pop("role")
    return ServerRole(role, **found) if role else None


def parameter_servers() -> int:
    """How many servers MXNet's parameter server has, from this worker's environment."""
    number = os.environ.get("DMLC_NUM_SERVER", "")
    return int(number) if number.isdigit() else 0


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
