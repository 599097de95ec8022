"""The address that Horovod tells other hosts, which is where this host's own name leads.

Horovod 0.28.1 makes the sums of its process set over a device of its own, for which it forgets the
interface that it was told (GlooContext::InitializeForProcessSet), so that gloo takes the first
address of gethostname() that can be bound. On many a host /etc/hosts says 127.0.1.1, and the others
would look for it on themselves.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Optional

from gluonlab.errors import ConfigError
from gluonlab.launch.own_network import addresses


def check_own_name() -> None:
    """Raise ConfigError where other hosts could not reach this one by what Horovod tells them.

    Only for what `gluonlab.launch.parts` or horovodrun has set up over gloo, on several hosts.
    """
    told = os.environ.get
    meeting, interface = told("HOROVOD_GLOO_RENDEZVOUS_ADDR"), told("HOROVOD_GLOO_IFACE")
    if meeting is None or told("HOROVOD_LOCAL_SIZE") == told("HOROVOD_SIZE") or is_loop(meeting):
        return
    name = socket.gethostname()
    taken = _address_of(name)
    if taken is None or is_loop(taken):
        own = [address for address, its in addresses().items() if its == interface]
        leads = "to no address of it" if taken is None else f"to {taken}"
        raise ConfigError(
            f"the name of this host, {name}, leads {leads}, which "
            "Horovod would tell the other hosts: let it lead to "
            f"{own[0] if own else 'one that they reach'}, in its /etc/hosts"
        )


def _address_of(name: str) -> Optional[str]:
    """The first address that a name leads to and that is one of this host's."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as trial:
                trial.bind(address)
        except OSError:
            continue
        return str(address[0])
    return None


def is_loop(address: str) -> bool:
    """Whether an address, or a name, leads back to the host itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
