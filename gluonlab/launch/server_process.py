"""The command that runs a server or scheduler of a group until the group ends.

``python -m gluonlab.launch.server_process`` runs a server or scheduler of MXNet's parameter server,
depending on DMLC_ROLE. With the arguments ``rendezvous ADDRESS PORT HOST:N,...``, the command runs
Horovod's rendezvous server.
"""

from __future__ import annotations

import errno
import signal
import sys
from typing import Any

from gluonlab.engine.parameter_server_role import CannotListen
from gluonlab.errors import EngineError
from gluonlab.launch.group_processes import PORT_TAKEN, RENDEZVOUS_ARGUMENTS, report_status
from gluonlab.launch.horovod_settings import explain_missing_horovod


def _run_server_role() -> None:
    """Import MXNet. The import runs the server or scheduler, and raises SystemExit at the end."""
    # A server never returns to Python, so Python's handler would not run.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import mxnet  # noqa: F401
    except EngineError as error:
        if isinstance(error, CannotListen) and error.is_taken:
            report_status(PORT_TAKEN)
        sys.exit(f"error: {error}")


def _make_rendezvous_server(address: str, port: int, hosts: str) -> Any:
    """Return Horovod's rendezvous server, an HTTP server.

    ``hosts``: the hosts with their numbers of processes, such as ``h1:2,h2:2``. Raises OSError if
    another process uses the port.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    host_slots = parse_hosts(hosts)
    server = RendezvousHTTPServer((address, port), RendezvousHandler, False)
    server.init(get_host_assignments(host_slots, sum(host.slots for host in host_slots)))
    return server


def _serve_rendezvous(address: str, port: str, hosts: str) -> None:
    """Run the rendezvous server until this process is killed."""
    try:
        _make_rendezvous_server(address, int(port), hosts).serve_forever()
    except ImportError as error:
        sys.exit(f"error: {explain_missing_horovod(error)}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            report_status(PORT_TAKEN)
        sys.exit(f"error: port {port} of {address} is not available ({error.strerror})")


def main() -> None:
    """Run the rendezvous server if requested, or else MXNet's server or scheduler."""
    if sys.argv[1:2] == RENDEZVOUS_ARGUMENTS[-1:]:
        _serve_rendezvous(*sys.argv[2:])
    else:
        _run_server_role()


if __name__ == "__main__":
    main()
