"""Reads the environment variables of MXNet's parameter server, and runs a server or scheduler."""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Mapping, NamedTuple, Optional

from gluonlab.errors import EngineError


class WorkerGroup(NamedTuple):
    """The number of workers of a parameter server, and whether all of them are on this host."""

    workers: int
    are_local: bool


ROLE_VARIABLE = "DMLC_ROLE"  # the role of each process: worker, server or scheduler


NO_PARAMETER_SERVER = "MXNet's wheels for ARM and macOS were not compiled with the parameter server"


def has_parameter_server(system: str = sys.platform, machine: str = os.uname().machine) -> bool:
    """Return whether MXNet's wheel contains the parameter server.

    Only the wheels for Linux on x86-64 contain it. MXNet reports it as the feature DIST_KVSTORE.
    ``machine``: the name of the processor architecture.
    """
    return (system, machine) == ("linux", "x86_64")


RUN_WITHOUT_SERVERS = "train in one process with gluonlab run, install Horovod for --backend horovod"


def explain_missing_parameter_server(given: str, instead: str = RUN_WITHOUT_SERVERS) -> str:
    """Return an error message for a platform whose MXNet has no parameter server.

    Args:
        given: what the user gave, such as ``--backend dist_sync``
        instead: what the user can do on this platform
    """
    return (
        f"{given} cannot be used, because {NO_PARAMETER_SERVER}: {instead}, or use Linux on x86-64, such as a "
        "container with --platform linux/amd64"
    )


def parameter_server_workers() -> Optional[WorkerGroup]:
    """Return the group of workers to which this process belongs; None if it is not a worker."""
    number = os.environ.get("DMLC_NUM_WORKER", "")
    if os.environ.get(ROLE_VARIABLE) != "worker" or not number.isdigit():
        return None
    # Only processes of this host reach a scheduler at a loopback address. MXNet's launch.py
    # --launcher local starts all workers on this host.
    local = os.environ.get("DMLC_JOB_CLUSTER") == "local"
    return WorkerGroup(int(number), local or _is_loopback(os.environ.get("DMLC_PS_ROOT_URI", "")))


NODE_ADDRESS_VARIABLE = "DMLC_NODE_HOST"  # the address at which this process listens


class ServerRole(NamedTuple):
    """The environment variables of a process in MXNet's parameter server, as unchecked text.

    The rank is not among the variables, since MXNet's kvstore assigns it. A field is None if its
    variable is not set.

    Args:
        role: worker, server or scheduler
        workers: number of workers
        root: address of the scheduler
        port: port of the scheduler
    """

    role: str
    workers: Optional[str]
    root: Optional[str]
    port: Optional[str]


ROLE_FIELD_VARIABLES = {  # the variable of each field of `ServerRole`
    "role": ROLE_VARIABLE,
    "workers": "DMLC_NUM_WORKER",
    "root": "DMLC_PS_ROOT_URI",
    "port": "DMLC_PS_ROOT_PORT",
}


def read_server_role(environ: Mapping[str, str]) -> Optional[ServerRole]:
    """Return the parameter server's variables in ``environ``; None if no role is set."""
    fields = {field: environ.get(name) or None for field, name in ROLE_FIELD_VARIABLES.items()}
    role = fields.pop("role")
    return ServerRole(role, **fields) if role else None


def parameter_server_count() -> int:
    """Return the number of parameter servers, from this worker's environment."""
    number = os.environ.get("DMLC_NUM_SERVER", "")
    return int(number) if number.isdigit() else 0


def _is_loopback(address: str) -> bool:
    """Return whether an address belongs to the loopback interface, such as 127.0.0.1."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


BIND_FAILED = "bind failed"  # MXNet's message if it cannot listen at a port, without the reason


class CannotListen(EngineError):
    """Error for a server or scheduler that cannot listen at its address.

    ``is_taken`` is True if another process uses, or has just used, the port.
    """

    def __init__(self, message: str, is_taken: bool) -> None:
        super().__init__(message)
        self.is_taken = is_taken


def run_server_role() -> None:
    """Run this process as the server or scheduler that its environment names, until the group ends.

    MXNet must be loaded. Exits with SystemExit. Raises CannotListen if MXNet cannot listen at its
    address, and EngineError if MXNet was compiled without the parameter server.
    """
    from mxnet.base import MXNetError
    from mxnet.kvstore import kvstore_server

    from gluonlab.host.resources import keep_freed_memory

    # MXNet allocates a block of memory for each message, as large as the gradients in the message.
    # Freed blocks are kept for the next messages.
    keep_freed_memory()
    try:
        kvstore_server._init_kvstore_server_module()
    except MXNetError as error:
        if BIND_FAILED not in str(error):
            raise
        raise _explain_bind_failure() from None
    # Without the parameter server, MXNet takes every process for a worker, and returns.
    role = os.environ.get(ROLE_VARIABLE, "")
    raise EngineError(explain_missing_parameter_server(f"the parameter server ({ROLE_VARIABLE}={role})"))


def _explain_bind_failure() -> CannotListen:
    """Return an error that says why MXNet cannot listen, since MXNet's message does not."""
    import errno

    role = read_server_role(os.environ)
    if role is None or role.role != "scheduler":  # MXNet has tried 40 ports
        node = os.environ.get(NODE_ADDRESS_VARIABLE, "this host's address")
        return CannotListen(f"no port of {node} is available: set {NODE_ADDRESS_VARIABLE} to another address", False)
    error = _bind_error(role.root or "", int(role.port or 0)) or OSError(
        errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)
    )
    is_taken = error.errno == errno.EADDRINUSE
    return CannotListen(f"port {role.port} of {role.root} cannot be used: {error.strerror}", is_taken)


def _bind_error(address: str, port: int) -> Optional[OSError]:
    """Return the system's error if this process cannot bind the address; None if it can."""
    import socket  # here, to keep `import gluonlab` fast

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error
    return None
