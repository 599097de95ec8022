"""python -m gluonlab.launch.rendezvous ADDRESS PORT HOST:N,...: where Horovod's processes meet.

It serves until it is killed.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

from gluonlab.launch.telling import TAKEN, tell


def serving(address: str, port: int, hosts: str) -> Any:
    """Horovod's rendezvous for ``hosts``, such as ``h1:2,h2:2``: an http.server.

    Raises OSError where somebody else has the port.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    parsed = parse_hosts(hosts)
    server = RendezvousHTTPServer((address, port), RendezvousHandler, False)
    server.init(get_host_assignments(parsed, sum(host.slots for host in parsed)))
    return server


def main() -> None:
    """Serve where, and for whom, the words say."""
    address, port, hosts = sys.argv[1:]
    try:
        serving(address, int(port), hosts).serve_forever()
    except ImportError as error:
        sys.exit(
            f"error: --backend horovod: Horovod for MXNet cannot be imported ({error}): "
            "compile it as docs/launch.md says, or choose --backend dist_sync"
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            tell(TAKEN)
        sys.exit(f"error: port {port} of {address}: {error.strerror}")


if __name__ == "__main__":
    main()
