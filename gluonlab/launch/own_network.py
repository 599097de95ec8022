"""What the network is like from here: free ports, and this host's own addresses."""

from __future__ import annotations

import socket
from typing import Dict

from gluonlab.launch.messages import Message


def free_port(wanted: int) -> Message:
    """``port``: one that nobody has at this moment, the ``wanted`` one or, for 0, any.

    Or else ``taken``: what the system says.
    """
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a restart
        try:
            trying.bind(("", wanted))
            trying.listen()
        except OSError as error:
            return {"taken": error.strerror}
        return {"port": trying.getsockname()[1]}


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
