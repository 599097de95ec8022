"""A topology of several hosts: one host's links, as often as there are hosts, and a network.

A message to another host passes the sender's way to its network card (NIC), both NICs, and the way
from the NIC to the receiver. The devices of a host share its NICs; the network between NICs is
never busy itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Tuple

from gluonlab.collectives.links import Link, Pair, Route, Topology
from gluonlab.collectives.machines import EFA_FILES, in_pairs, itself
from gluonlab.collectives.routes import Ways
from gluonlab.collectives.schedule import is_whole
from gluonlab.collectives.wiring import (
    PCIE_3,
    PCIE_4,
    PCIE_AND_CPU,
    Place,
    pcie_into,
    pcie_out,
)
from gluonlab.errors import ScheduleError

MOST_HOSTS = 128  # of 8 GPUs each, 1,024 devices: prices of them take seconds
GBIT = 1e9 / 8  # bytes/s

Way = Callable[[int], Tuple[Link, ...]]  # of a device


@dataclass(frozen=True)
class Network:
    """How the devices of a host reach those of others.

    ``bytes_per_s``: of each NIC and direction. Neighbouring devices share a NIC, equally many each.
    ``out`` and ``into``: the links from a device to its NIC, and back.
    """

    nics: int
    bytes_per_s: float
    latency_s: float
    out: Way
    into: Way
    note: str = ""

    def __post_init__(self) -> None:
        if not (is_whole(self.nics) and self.bytes_per_s > 0 and self.latency_s >= 0):
            raise ScheduleError(
                f"a network of {self.nics} NICs, {self.bytes_per_s} bytes/s each, "
                f"{self.latency_s} s a message: give 1 or more NICs, more than 0 bytes/s, and a "
                "latency of 0 s or more"
            )


def several_hosts(host: Topology, hosts: int, network: Network) -> Topology:
    """``hosts`` times the machine ``host``; device d of host h is device h * devices + d.

    One host is the machine itself. Raises ScheduleError for a number of hosts that is none.
    """
    if not is_whole(hosts):
        raise ScheduleError(f"{hosts!r} hosts of {host.name}: there must be at least 1")
    if hosts == 1:
        return host
    each = host.world_size
    within: Dict[Pair, Route] = {}
    for one in range(hosts):
        for (src, dst), route in host.routes.items():
            own = tuple(_of(one, link) for link in route.links)
            within[one * each + src, one * each + dst] = Route(own, route.latency_s)
    ends = [(one, device) for one in range(hosts) for device in range(each)]
    out, into = ([_way(*end, each, network, into) for end in ends] for into in (False, True))
    routes = Ways(out, into, network.latency_s, within)
    members = tuple(tuple(range(one * each, (one + 1) * each)) for one in range(hosts))
    return Topology(
        f"{host.name}*{hosts}",
        hosts * each,
        routes,
        host.reduce_bytes_per_s,
        groups=members,
        hosts=members,
        note=f"{host.note}; between hosts: {network.note}",
    )


def _way(one: int, device: int, each: int, network: Network, into: bool) -> Tuple[Link, ...]:
    """The links between a device of host ``one`` and the network, its NIC among them."""
    direction = "in" if into else "out"
    nic = Link(f"NIC {device * network.nics // each} {direction}", network.bytes_per_s)
    links = (nic, *network.into(device)) if into else (*network.out(device), nic)
    return tuple(_of(one, link) for link in links)


def _of(host: int, link: Link) -> Link:
    return link._replace(name=f"host {host}: {link.name}")


def _one_nic(gigabits: float, latency_s: float, out: Way, into: Way) -> Network:
    note = (
        f"{gigabits:g} Gb/s are nominal, Amazon's figure; inferred: one NIC for all GPUs, which "
        f"they reach through PCIe and a CPU, {latency_s * 1e6:g} µs a message"
    )
    return Network(1, gigabits * GBIT, latency_s, out, into, note)


def _below_switches(
    gigabits: float, latency_s: float, bytes_per_s: float, switch_of: Place
) -> Network:
    """For a machine of `pcie_routes`."""
    return _one_nic(
        gigabits,
        latency_s,
        lambda device: pcie_out(device, bytes_per_s, switch_of),
        lambda device: pcie_into(device, bytes_per_s, switch_of),
    )


def _by_ports(gigabits: float, latency_s: float, bytes_per_s: float) -> Network:
    """For a machine of `switch`, each of whose GPUs has 16 lanes of its own."""
    return _one_nic(
        gigabits,
        latency_s,
        lambda device: (Link(f"out of {device}", bytes_per_s),),
        lambda device: (Link(f"into {device}", bytes_per_s),),
    )


# to start a message between hosts: inferred, the order of magnitude; EFA passes the kernel by
TCP_S, EFA_S = 50e-6, 20e-6

NETWORKS: Dict[str, Network] = {
    "p2.16xlarge": _below_switches(20, TCP_S, PCIE_3, in_pairs),
    "p3.2xlarge": _below_switches(10, TCP_S, PCIE_AND_CPU, itself),
    "p3.8xlarge": _below_switches(10, TCP_S, PCIE_AND_CPU, in_pairs),
    "p3.16xlarge": _below_switches(25, TCP_S, PCIE_AND_CPU, in_pairs),
    "p3dn.24xlarge": _below_switches(100, EFA_S, PCIE_AND_CPU, in_pairs),
    "p4d.24xlarge": Network(
        4,
        100 * GBIT,
        EFA_S,
        lambda device: (Link(f"PCIe out of {device}", PCIE_3),),
        lambda device: (Link(f"PCIe into {device}", PCIE_3),),
        "4 NICs of 100 Gb/s, nominal, each below a PCIe switch with two GPUs, at 8 GT/s: "
        f"{EFA_FILES}/p4d-24xl-topo.xml; inferred: {EFA_S * 1e6:g} µs a message",
    ),
    "g4dn.12xlarge": _by_ports(50, TCP_S, PCIE_3),
    "g5.12xlarge": _by_ports(40, TCP_S, PCIE_4),
    "g5.48xlarge": _below_switches(100, EFA_S, PCIE_4, itself),
}
