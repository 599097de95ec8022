"""python -m gluonlab.launch.server_process: what serves the workers of a group until they have
left.

That is a server, or the scheduler, of MXNet's parameter server; which of them, the environment says
(DMLC_ROLE). With ``rendezvous ADDRESS PORT HOST:N,...`` it is where Horovod's processes meet.
"""

from __future__ import annotations

import errno
import signal
import sys
from typing import Any

from gluonlab.engine.parameter_server_environment import CannotListen
from gluonlab.errors import EngineError
from gluonlab.launch.group_processes import RENDEZVOUS, TAKEN, tell


def _serve() -> None:
    """Load MXNet, which then is what its role says, and ends in SystemExit."""
    # it does not hear Python's handler
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import mxnet  # noqa: F401
    except EngineError as error:
        if isinstance(error, CannotListen) and error.is_taken:
            tell(TAKEN)
        sys.exit(f"error: {error}")


def _rendezvous(address: str, port: int, hosts: str) -> Any:
    """Horovod's rendezvous for ``hosts``, such as ``h1:2,h2:2``: an http.server.

    Raises OSError where somebody else has the port.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    parsed = parse_hosts(hosts)
    server = RendezvousHTTPServer((address, port), RendezvousHandler, False)
    server.init(get_host_assignments(parsed, sum(host.slots for host in parsed)))
    return server


def _serve_rendezvous(address: str, port: str, hosts: str) -> None:
    """Serve until this process is killed."""
    try:
        _rendezvous(address, int(port), hosts).serve_forever()
    except ImportError as error:
        sys.exit(
            f"error: --backend horovod: Horovod for MXNet cannot be imported ({error}): "
            "compile it as docs/launch.md says, or choose --backend dist_sync"
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            tell(TAKEN)
        sys.exit(f"error: port {port} of {address}: {error.strerror}")


def main() -> None:
    """Serve as the words say."""
    if sys.argv[1:2] == RENDEZVOUS[-1:]:
        _serve_rendezvous(*sys.argv[2:])
    else:
        _serve()


if __name__ == "__main__":
    main()
