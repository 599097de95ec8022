"""MXNet's parameter server: what the environment says of it to each process, and how to be one."""

from __future__ import annotations

import ipaddress
import os
from typing import Mapping, NamedTuple, Optional

from gluonlab.errors import EngineError


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


NO_PORT = "bind failed"  # what MXNet says, whatever the reason is


class CannotListen(EngineError):
    """The process cannot listen at its address. ``is_taken``: because somebody else has its port.

    Another process may have taken it and left it by now: then this is true, too.
    """

    def __init__(self, message: str, is_taken: bool) -> None:
        super().__init__(message)
        self.is_taken = is_taken


def serve() -> None:
    """Be what the environment says, once MXNet is loaded. It ends in SystemExit.

    Raises CannotListen.
    """
    from mxnet.base import MXNetError
    from mxnet.kvstore import kvstore_server

    from gluonlab.host.resources import keep_freed

    # each message has a block of its own, as large as the gradients that it carries
    keep_freed()
    try:
        kvstore_server._init_kvstore_server_module()
    except MXNetError as error:
        if NO_PORT not in str(error):
            raise
        raise _reason() from None


def _reason() -> CannotListen:
    """Why MXNet could not listen, which it does not say."""
    import errno

    role = server_role(os.environ)
    if role is None or role.role != "scheduler":  # it has tried 40 ports
        node = os.environ.get(NODE_ADDRESS, "this host's address")
        return CannotListen(f"no port of {node} can be had: set {NODE_ADDRESS} anew", False)
    error = _refusal(role.root or "", int(role.port or 0)) or OSError(
        errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)
    )
    is_taken = error.errno == errno.EADDRINUSE
    return CannotListen(f"port {role.port} of {role.root}: {error.strerror}", is_taken)


def _refusal(address: str, port: int) -> Optional[OSError]:
    """What the system says to one who wants to listen there; None if nothing is in the way."""
    import socket  # not for those who only import gluonlab

    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind((address, port))
        except OSError as error:
            return error
    return None
