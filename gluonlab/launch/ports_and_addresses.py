"""Reserves free ports, and finds the network addresses of this host."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any, Dict, Optional, Tuple

# The request for the address of a network interface, as numbered by macOS and by Linux.
SIOCGIFADDR = 0xC0206921 if sys.platform == "darwin" else 0x8915


def reserve_port(port: int) -> Tuple[Optional[socket.socket], Dict[str, Any]]:
    """Reserve a port. Return its socket, and a message for the launcher.

    ``port``: the port to reserve; 0 for any free port. The message is ``{"port": number}``.
    If the port is not available, the socket is None and the message is ``{"port_error": reason}``.

    While the socket is open, the system does not assign the port to another process. Only a process
    that requests this port with SO_REUSEADDR, such as MXNet's scheduler, can bind it.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reservation.bind(("", port))
    except OSError as error:
        reservation.close()
        return None, {"port_error": error.strerror}
    return reservation, {"port": reservation.getsockname()[1]}


def reserve_port_above(last: int) -> Tuple[Optional[socket.socket], int]:
    """Reserve the next free port above ``last``. Return its socket and number.

    For ``last`` = 0, reserve any free port. Returns (None, 0) if no port is free.
    """
    if not last:
        reservation, answer = reserve_port(0)
        return reservation, answer.get("port", 0)
    for port in range(last + 1, 65536):
        reservation, _ = reserve_port(port)
        if reservation is not None:
            return reservation, port
    return None, 0


def ipv4_addresses() -> Dict[str, str]:
    """Return the names of this host's network interfaces, keyed by IPv4 address."""
    import fcntl

    interface_by_address: Dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            request = name.encode()[:15].ljust(256, b"\0")
            try:
                answer = fcntl.ioctl(query.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue  # no IPv4 address
            interface_by_address.setdefault(socket.inet_ntoa(answer[20:24]), name)
    return interface_by_address


def is_loopback(address: str) -> bool:
    """Check if an address is a loopback address, or the name ``localhost``."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
