"""The hosts of a group as all of them see each other."""

from __future__ import annotations

from typing import Iterable, List, Optional, Sequence

from gluonlab.launch.connections import Connection
from gluonlab.launch.own_name import is_loop
from gluonlab.launch.parts import Site

LOOPBACK = "127.0.0.1"


def sites_of(at: Sequence[Connection], named: bool) -> List[Site]:
    """A host for each connection, with the address that ssh, or its process, has come over.

    A process on the launcher's own host may have come over the loopback device, which leads
    nowhere from other hosts. ``named``: the user has named the hosts.
    """
    own = _reachable(each.own_address for each in at) or LOOPBACK
    found = []
    for each in at:
        address = _reachable([each.address, own]) or LOOPBACK
        name = each.host.name if named else each.here
        found.append(Site(name, address, each.interfaces.get(address, "")))
    return found


def _reachable(addresses: Iterable[Optional[str]]) -> Optional[str]:
    """The first of these that other hosts reach, too; else the first, if there is one."""
    known = [each for each in addresses if each]
    return next((each for each in known if not is_loop(each)), next(iter(known), None))
