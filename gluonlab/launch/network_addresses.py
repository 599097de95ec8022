"""What the network is like from here: ports, and addresses of this host."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, Dict, Optional, Tuple


def reserved(wanted: int) -> Tuple[Optional[socket.socket], Dict[str, Any]]:
    """A port that nobody has, the ``wanted`` one or, for 0, any; and what to tell of it.

    That is ``port``; or, where there is no socket, ``taken``: what the system says. As long as the
    socket is open, the system gives the port to nobody who asks for any, nor to a connection. Who
    asks for this one gets it with SO_REUSEADDR, as MXNet's scheduler and Horovod's rendezvous do.
    """
    keeping = socket.socket()
    keeping.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        keeping.bind(("", wanted))
    except OSError as error:
        keeping.close()
        return None, {"taken": error.strerror}
    return keeping, {"port": keeping.getsockname()[1]}


def reserved_above(last: int) -> Tuple[Optional[socket.socket], int]:
    """The next port above ``last`` that nobody has, as `reserved`; 0: any port.

    No socket, and 0, if there is none.
    """
    if not last:
        kept, answer = reserved(0)
        return kept, answer.get("port", 0)
    for port in range(last + 1, 65536):
        kept, _ = reserved(port)
        if kept is not None:
            return kept, port
    return None, 0


def addresses() -> Dict[str, str]:
    """This host's IPv4 addresses, each with the name of its interface."""
    import fcntl

    found: Dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = name.encode()[:15].ljust(256, b"\0")
            try:
                answer = fcntl.ioctl(asking.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue  # it has none
            found.setdefault(socket.inet_ntoa(answer[20:24]), name)
    return found


def is_loop(address: str) -> bool:
    """Whether an address, or a name, leads back to the host itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
