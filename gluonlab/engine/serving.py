"""A process that is a server, or the scheduler, of MXNet's parameter server."""

from __future__ import annotations

import errno
import os
import socket
from typing import Optional

from gluonlab.engine.server_variables import NODE_ADDRESS, server_role
from gluonlab.errors import EngineError

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
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind((address, port))
        except OSError as error:
            return error
    return None
