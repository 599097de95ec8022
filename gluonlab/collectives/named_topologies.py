"""Returns topologies by name, and the topology of this machine.

`make_topology` returns the topology of a known machine (``p3.16xlarge``) or of several hosts
(``p3.16xlarge*8``), or reads it from a file (``m.json``). `nvml_topology` uses the links that NVML
reports, and `resolve_topology` finds the topology of a run's devices. The ``note`` of a topology
lists which numbers are published or measured, and which are inferred.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.schedule import is_integer_at_least
from gluonlab.collectives.topology import Link as Link
from gluonlab.collectives.topology import Pair, PortRoutes, all_pairs, check_device_count
from gluonlab.collectives.topology import Route as Route
from gluonlab.collectives.topology import Topology as Topology
from gluonlab.collectives.topology import fully_connected as fully_connected
from gluonlab.collectives.topology import switch as switch
from gluonlab.collectives.topology_file import is_file_name, read_topology
from gluonlab.errors import ScheduleError, unknown
from gluonlab.gpu import nvml
from gluonlab.gpu.cuda import pci_bus_ids
from gluonlab.gpu.nvml import SAME_CPU, SAME_SWITCHES, Driver

# --- routes over NVLinks, and over PCIe below switches and CPUs

GroupOfDevice = Callable[[int], int]  # device -> the switch or the CPU above it
LinksOfDevice = Callable[[int], Tuple[Link, ...]]

NVLINK = 25e9  # bytes/s of one NVLink 2.0 and direction
PCIE_AND_CPU = 10e9  # bytes/s from GPU to GPU through PCIe and CPUs: MXNet's design page of its tree allreduce
# bytes/s of 16 lanes and direction, as NCCL counts them (src/graph/topo.h); nominal 16 and 32
PCIE_3, PCIE_4 = 12e9, 24e9
PEER_COPY_S = 10e-6  # seconds to start a copy between GPUs: inferred, the order of magnitude
# bytes/s added: two reads, one write
K80, V100, T4, A10G, A100 = (memory / 3 for memory in (240e9, 900e9, 320e9, 600e9, 1555e9))


def nvlink_route(src: int, dst: int, count: int) -> Route:
    """Return a route over ``count`` NVLinks between two GPUs."""
    return Route((Link(f"NVLink {src} to {dst}", count * NVLINK),), PEER_COPY_S)


def pcie_links_up(src: int, bytes_per_s: float, switch_of: GroupOfDevice) -> Tuple[Link, Link]:
    """Return the links from a GPU up to its CPU."""
    names = f"PCIe out of {src}", f"PCIe switch {switch_of(src)} up"
    return Link(names[0], bytes_per_s), Link(names[1], bytes_per_s)


def pcie_links_down(dst: int, bytes_per_s: float, switch_of: GroupOfDevice) -> Tuple[Link, Link]:
    """Return the links from a CPU down to its GPU."""
    names = f"PCIe switch {switch_of(dst)} down", f"PCIe into {dst}"
    return Link(names[0], bytes_per_s), Link(names[1], bytes_per_s)


def pcie_route(
    src: int,
    dst: int,
    bytes_per_s: float,
    switch_of: GroupOfDevice,
    cpu_of: GroupOfDevice,
    cpus_bytes_per_s: Optional[float] = None,
) -> Route:
    """Return the PCIe route between two GPUs, through the switches and CPUs between them.

    ``switch_of`` and ``cpu_of`` return the switch and the CPU above a GPU. ``cpus_bytes_per_s`` is
    the speed between CPUs, by default the speed of PCIe.
    """
    up, down = pcie_links_up(src, bytes_per_s, switch_of), pcie_links_down(dst, bytes_per_s, switch_of)
    if switch_of(src) == switch_of(dst):
        return Route((up[0], down[1]), PEER_COPY_S)
    if cpu_of(src) == cpu_of(dst):
        return Route((*up, *down), PEER_COPY_S)
    between = Link(f"CPU {cpu_of(src)} to {cpu_of(dst)}", cpus_bytes_per_s or bytes_per_s)
    return Route((*up, between, *down), PEER_COPY_S)


def pcie_routes(
    world_size: int,
    bytes_per_s: float,
    switch_of: GroupOfDevice,
    cpu_of: GroupOfDevice,
    cpus_bytes_per_s: Optional[float] = None,
) -> PortRoutes:
    """Return the PCIe routes of all pairs of GPUs (see `pcie_route`)."""
    special_routes = {
        pair: pcie_route(*pair, bytes_per_s, switch_of, cpu_of, cpus_bytes_per_s)
        for pair in all_pairs(world_size)
        if len({*map(switch_of, pair)}) == 1 or len({*map(cpu_of, pair)}) == 2
    }
    devices = range(world_size)
    out_links, in_links = (
        [port(device, bytes_per_s, switch_of) for device in devices] for port in (pcie_links_up, pcie_links_down)
    )
    return PortRoutes(out_links, in_links, PEER_COPY_S, special_routes)


# --- known machines

DEFAULT_DEVICES = 8
AMD_CPU_LINK = 16e9  # bytes/s between two CPUs of AMD and direction, as NCCL counts (src/graph/topo.h)
EFA_FILES = "aws-ofi-nccl's topology"

# MXNet, src/kvstore/gpu_topology.h and tests/cpp/kvstore/gpu_topology_test.cc; nvidia-smi topo -m
# shows the same of a DGX-1V.
TWO_NVLINKS = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
ONE_NVLINK = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
INFERRED_NOTE = "assumed: 10 µs per message, and additions at a third of the memory bandwidth"
CUBE_MESH_NOTE = (
    "25 GB/s per NVLink and direction is the nominal figure, about 24 are measured; pairs "
    "without an NVLink use PCIe and both CPUs, at 10 GB/s"
)
CUBE_INFERRED_NOTE = (
    "inferred: GPUs 0-1, 2-3, 4-5 and 6-7 share a PCIe switch, and each quad shares a CPU, "
    f"as on a DGX-1V; every link of these routes carries 10 GB/s; {INFERRED_NOTE}"
)


def p2_16xlarge() -> Topology:
    """AWS p2.16xlarge: 8 K80 boards with two GPUs each, on PCIe 3.0."""
    note = (
        "Amazon describes 16 GPUs with peer-to-peer access over PCIe; a K80 is two GPUs below "
        "one switch of its board; 12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; inferred, "
        "because no matrix is published: GPUs 0-1, 2-3, ... are boards, and all boards are below "
        f"one root; {INFERRED_NOTE}"
    )
    routes = pcie_routes(16, PCIE_3, shared_switch, lambda device: 0)
    boards = tuple((first, first + 1) for first in range(0, 16, 2))
    return Topology("p2.16xlarge", 16, routes, K80, groups=boards, note=note)


def p3_2xlarge() -> Topology:
    """AWS p3.2xlarge: one V100, for topologies of several hosts."""
    note = f"one GPU has no links to other GPUs; inferred: {INFERRED_NOTE}"
    return Topology("p3.2xlarge", 1, {}, V100, note=note)


def p3_16xlarge() -> Topology:
    """AWS p3.16xlarge: 8 V100 with 6 NVLinks each, in a hybrid cube mesh."""
    note = f"links: MXNet's src/kvstore/gpu_topology.h; {CUBE_MESH_NOTE}; {CUBE_INFERRED_NOTE}"
    return _hybrid_cube_mesh("p3.16xlarge", note)


def p3dn_24xlarge() -> Topology:
    """AWS p3dn.24xlarge: 8 V100 with 32 GB each, presumably linked as in p3.16xlarge."""
    origin = "inferred from p3.16xlarge, because no matrix is published"
    note = f"{origin}; {CUBE_MESH_NOTE}; {CUBE_INFERRED_NOTE}"
    return _hybrid_cube_mesh("p3dn.24xlarge", note)


def p3_8xlarge() -> Topology:
    """AWS p3.8xlarge: 4 V100, presumably linked like the first quad of p3.16xlarge.

    Every pair has an NVLink.
    """
    origin = "inferred from the quad 0-3 of p3.16xlarge, because no matrix is published"
    note = f"{origin}; 25 GB/s per NVLink and direction is the nominal figure; inferred: {INFERRED_NOTE}"
    return _hybrid_cube_mesh("p3.8xlarge", note).subset(4)


def g4dn_12xlarge() -> Topology:
    """AWS g4dn.12xlarge: 4 T4 on PCIe 3.0."""
    note = (
        "12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; inferred, because no matrix is "
        f"published: one CPU, and 16 lanes from it to each GPU; {INFERRED_NOTE}"
    )
    return _switch_machine("g4dn.12xlarge", 4, PCIE_3, T4, note)


def g5_12xlarge() -> Topology:
    """AWS g5.12xlarge: 4 A10G on PCIe 4.0."""
    note = (
        "24 GB/s is NCCL's figure for 16 lanes of PCIe 4.0; inferred from aws-ofi-nccl's "
        "topology/g5.48xl-topo.xml, which has four GPUs and no PCIe switch below each CPU: one "
        f"CPU, and 16 lanes from it to each GPU; inferred: {INFERRED_NOTE}"
    )
    return _switch_machine("g5.12xlarge", 4, PCIE_4, A10G, note)


def g5_48xlarge() -> Topology:
    """AWS g5.48xlarge: 8 A10G on PCIe 4.0, four below each of two CPUs."""
    note = (
        f"four GPUs are below each CPU, without a PCIe switch: {EFA_FILES}/g5.48xl-topo.xml; 24 "
        "GB/s for 16 lanes of PCIe 4.0 and 16 GB/s between two AMD CPUs are NCCL's figures; "
        f"inferred: each GPU has its own 16 lanes; {INFERRED_NOTE}"
    )
    routes = pcie_routes(8, PCIE_4, own_switch, lambda device: device // 4, AMD_CPU_LINK)
    quads = ((0, 1, 2, 3), (4, 5, 6, 7))
    return Topology("g5.48xlarge", 8, routes, A10G, groups=quads, note=note)


def p4d_24xlarge() -> Topology:
    """AWS p4d.24xlarge: 8 A100, each with 12 NVLinks to switches."""
    return replace(nvswitch(8), name="p4d.24xlarge")


def pcie(world_size: int = DEFAULT_DEVICES) -> Topology:
    """Any number of GPUs (8 by default) on PCIe 3.0, two below each switch, all below one CPU."""
    check_device_count("pcie", world_size)
    note = (
        "12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; inferred, because this is a generic "
        "machine: two GPUs share a switch and its 16 lanes to the CPU, 10 µs per message, and "
        "additions as fast as on a V100"
    )
    routes = pcie_routes(world_size, PCIE_3, shared_switch, lambda device: 0)
    groups = tuple(tuple(range(first, min(first + 2, world_size))) for first in range(0, world_size, 2))
    return Topology("pcie", world_size, routes, V100, groups=groups, note=note)


def nvswitch(world_size: int = DEFAULT_DEVICES) -> Topology:
    """Any number of GPUs (8 by default), each with 12 NVLinks to switches, as in p4d.24xlarge."""
    note = (
        "300 GB/s per GPU and direction is the nominal figure of 12 NVLinks with 25 GB/s each; "
        f"inferred: the switches are never the bottleneck; {INFERRED_NOTE}"
    )
    return _switch_machine("nvswitch", world_size, 12 * NVLINK, A100, note)


TOPOLOGIES: Dict[str, Callable[..., Topology]] = {
    make.__name__.replace("_", "."): make
    for make in (
        p2_16xlarge, p3_2xlarge, p3_8xlarge, p3_16xlarge, p3dn_24xlarge, p4d_24xlarge,
        g4dn_12xlarge, g5_12xlarge, g5_48xlarge, pcie, nvswitch,
    )
}  # fmt: skip
RESIZABLE = ("pcie", "nvswitch")


def _switch_machine(name: str, world_size: int, bytes_per_s: float, reduce_bytes_per_s: float, note: str) -> Topology:
    check_device_count(name, world_size)
    ports = switch(world_size, PEER_COPY_S, bytes_per_s, reduce_bytes_per_s)
    return replace(ports, name=name, note=note)


def _hybrid_cube_mesh(name: str, note: str) -> Topology:
    """Return 8 V100 with the NVLinks of NVIDIA's hybrid cube mesh, and PCIe for other pairs."""
    routes = dict(pcie_routes(8, PCIE_AND_CPU, shared_switch, lambda device: device // 4))
    for count, pairs in ((2, TWO_NVLINKS), (1, ONE_NVLINK)):
        for one, other in pairs:
            for src, dst in ((one, other), (other, one)):
                routes[src, dst] = nvlink_route(src, dst, count)
    return Topology(name, 8, routes, V100, groups=((0, 1, 2, 3), (4, 5, 6, 7)), note=note)


def shared_switch(device: int) -> int:
    """Return the switch above a GPU, if two GPUs share each switch."""
    return device // 2


def own_switch(device: int) -> int:
    """Return the switch above a GPU, if each GPU has its own switch."""
    return device


# --- several hosts: one host's links for each host, and a network
#
# A message to another host passes the links from the sender to its network card (NIC), both NICs,
# and the links from the NIC to the receiver. The devices of a host share its NICs. The network
# between NICs is never the bottleneck.

MAX_HOSTS = 128  # with 8 GPUs each, 1,024 devices, for which prices take seconds
GBIT = 1e9 / 8  # bytes/s


@dataclass(frozen=True)
class HostNetwork:
    """The network between hosts, and the links from a host's devices to the network.

    ``bytes_per_s``: the speed of each NIC in each direction. Each NIC is shared by the same number
    of neighboring devices. ``out_links`` and ``in_links`` return the links from a device to its
    NIC, and from the NIC to the device.
    """

    nics: int
    bytes_per_s: float
    latency_s: float
    out_links: LinksOfDevice
    in_links: LinksOfDevice
    note: str = ""

    def __post_init__(self) -> None:
        if not (is_integer_at_least(self.nics) and self.bytes_per_s > 0 and self.latency_s >= 0):
            raise ScheduleError(
                f"network with nics={self.nics}, bytes_per_s={self.bytes_per_s} and latency_s={self.latency_s}: "
                "use at least 1 NIC, more than 0 bytes/s, and a latency of 0 s or more"
            )


def repeat_host(host: Topology, hosts: int, network: HostNetwork) -> Topology:
    """Return a topology of ``hosts`` machines; device d of host h is device h * devices + d.

    If ``hosts`` is 1, the result is the topology of the machine itself. Raises ScheduleError for an
    invalid number of hosts.
    """
    if not is_integer_at_least(hosts):
        raise ScheduleError(f"{hosts!r} hosts of {host.name}: use at least 1 host")
    if hosts == 1:
        return host
    devices = host.world_size
    routes_within: Dict[Pair, Route] = {}
    for host_number in range(hosts):
        for (src, dst), route in host.routes.items():
            links = tuple(_prefix_host(host_number, link) for link in route.links)
            routes_within[host_number * devices + src, host_number * devices + dst] = Route(links, route.latency_s)
    host_devices = [(host_number, device) for host_number in range(hosts) for device in range(devices)]
    out_links, in_links = (
        [_network_links(*host_device, devices, network, into) for host_device in host_devices] for into in (False, True)
    )
    routes = PortRoutes(out_links, in_links, network.latency_s, routes_within)
    members = tuple(tuple(range(host_number * devices, (host_number + 1) * devices)) for host_number in range(hosts))
    name, note = f"{host.name}*{hosts}", f"{host.note}; between hosts: {network.note}"
    return Topology(name, hosts * devices, routes, host.reduce_bytes_per_s, groups=members, hosts=members, note=note)


def _network_links(host_number: int, device: int, devices: int, network: HostNetwork, into: bool) -> Tuple[Link, ...]:
    """Return the links between a device of a host and the network, including its NIC."""
    direction = "in" if into else "out"
    nic = Link(f"NIC {device * network.nics // devices} {direction}", network.bytes_per_s)
    links = (nic, *network.in_links(device)) if into else (*network.out_links(device), nic)
    return tuple(_prefix_host(host_number, link) for link in links)


def _prefix_host(host: int, link: Link) -> Link:
    """Return ``link`` with the host's number added to its name."""
    return link._replace(name=f"host {host}: {link.name}")


def _single_nic_network(gigabits: float, latency_s: float, out: LinksOfDevice, into: LinksOfDevice) -> HostNetwork:
    """Return the network of a machine in which all GPUs share one network card."""
    note = (
        f"{gigabits:g} Gb/s is Amazon's nominal figure; inferred: all GPUs share one NIC, which "
        f"they reach through PCIe and a CPU, {latency_s * 1e6:g} µs per message"
    )
    return HostNetwork(1, gigabits * GBIT, latency_s, out, into, note)


def _pcie_network(gigabits: float, latency_s: float, bytes_per_s: float, switch_of: GroupOfDevice) -> HostNetwork:
    """Return the network of a machine whose GPUs share PCIe switches."""
    return _single_nic_network(
        gigabits,
        latency_s,
        lambda device: pcie_links_up(device, bytes_per_s, switch_of),
        lambda device: pcie_links_down(device, bytes_per_s, switch_of),
    )


def _port_network(gigabits: float, latency_s: float, bytes_per_s: float) -> HostNetwork:
    """Return the network of a machine in which each GPU has its own PCIe port, as in `switch`."""
    return _single_nic_network(
        gigabits,
        latency_s,
        lambda device: (Link(f"out of {device}", bytes_per_s),),
        lambda device: (Link(f"into {device}", bytes_per_s),),
    )


# seconds to start a message between hosts: inferred, orders of magnitude; EFA bypasses the kernel
TCP_LATENCY_S, EFA_LATENCY_S = 50e-6, 20e-6

NETWORKS: Dict[str, HostNetwork] = {
    "p2.16xlarge": _pcie_network(20, TCP_LATENCY_S, PCIE_3, shared_switch),
    "p3.2xlarge": _pcie_network(10, TCP_LATENCY_S, PCIE_AND_CPU, own_switch),
    "p3.8xlarge": _pcie_network(10, TCP_LATENCY_S, PCIE_AND_CPU, shared_switch),
    "p3.16xlarge": _pcie_network(25, TCP_LATENCY_S, PCIE_AND_CPU, shared_switch),
    "p3dn.24xlarge": _pcie_network(100, EFA_LATENCY_S, PCIE_AND_CPU, shared_switch),
    "p4d.24xlarge": HostNetwork(
        4,
        100 * GBIT,
        EFA_LATENCY_S,
        lambda device: (Link(f"PCIe out of {device}", PCIE_3),),
        lambda device: (Link(f"PCIe into {device}", PCIE_3),),
        "4 NICs with a nominal 100 Gb/s each, below a PCIe switch with two GPUs, at 8 GT/s: "
        f"{EFA_FILES}/p4d-24xl-topo.xml; inferred: {EFA_LATENCY_S * 1e6:g} µs per message",
    ),
    "g4dn.12xlarge": _port_network(50, TCP_LATENCY_S, PCIE_3),
    "g5.12xlarge": _port_network(40, TCP_LATENCY_S, PCIE_4),
    "g5.48xlarge": _pcie_network(100, EFA_LATENCY_S, PCIE_4, own_switch),
}


# --- by name

FILE_HELP = "a file such as m.json, which gluonlab bench links --save FILE writes"
NAME_HELP = f"{', '.join(TOPOLOGIES)}; several Amazon instances, such as p3.16xlarge*8; or {FILE_HELP}"


def make_topology(name: str, world_size: Optional[int] = None) -> Topology:
    """Return the topology that ``name`` describes: a machine, several equal hosts, or a file.

    Args:
        name: a machine of `TOPOLOGIES`, such as "p3.16xlarge"; several hosts with their network,
            such as "p3.16xlarge*8"; or a file whose name ends in ".json" (`topology_file`).
        world_size: the number of devices to use, starting with the machine's first device; all by
            default.

    Raises:
        ScheduleError: for other names (the message lists the choices), for more than 128 hosts, for
            hosts whose network is unknown, and for files with a mistake.
    """
    if is_file_name(name):
        read = read_topology(name)
        return read if world_size is None else read.subset(world_size)
    machine, hosts = _parse_name(name)
    if is_file_name(machine):
        raise ScheduleError(
            f'topology {name!r}: a topology file defines its own hosts, under "hosts": use {machine} without *HOSTS'
        )
    if machine not in TOPOLOGIES:
        hint = f"; for up to {MAX_HOSTS} hosts, use NAME*HOSTS; for your own machine, pass {FILE_HELP}"
        raise ScheduleError(unknown("topology", machine, TOPOLOGIES) + hint)
    if machine in RESIZABLE and hosts is None and world_size is not None:
        return TOPOLOGIES[machine](world_size)
    topology = TOPOLOGIES[machine]()
    if hosts is not None and machine not in NETWORKS:
        raise ScheduleError(
            f"topology {name!r}: the network between several hosts of {machine} is unknown: use "
            f"*HOSTS only with {', '.join(NETWORKS)}"
        )
    if hosts is not None:
        topology = repeat_host(topology, hosts, NETWORKS[machine])
    return topology if world_size is None else topology.subset(world_size)


def _parse_name(name: str) -> Tuple[str, Optional[int]]:
    """Split a topology's name into the machine and the number of hosts (None if unspecified)."""
    machine, star, hosts = name.partition("*") if isinstance(name, str) else (name, "", "")
    if not star:
        return machine, None
    count = int(hosts) if re.fullmatch(r" *[0-9]{1,9} *", hosts) else 0
    if not 1 <= count <= MAX_HOSTS:
        raise ScheduleError(
            f"topology {name!r}: {hosts.strip()!r} is not a valid number of hosts: use 1 to "
            f"{MAX_HOSTS}, as in p3.16xlarge*8"
        )
    return machine.strip(), count


# --- this machine's GPUs, by the links that NVML reports

NVML_NOTE = (
    "links: reported by NVML; inferred: 25 GB/s per NVLink, 10 GB/s for PCIe and CPUs, 10 µs "
    "per message, and additions as fast as on a V100"
)
NVSWITCH_LINKS = 12  # of a GPU, as of an A100, because NVML does not report their number here


def nvml_topology(driver: Driver, gpus: Sequence[int]) -> Topology:
    """Return the topology whose device i is NVML's GPU ``gpus[i]``.

    Each pair uses NVLinks if it has them, else NVSwitches, else PCIe. If the driver does not report
    PCIe positions, each GPU gets its own switch, below a common CPU. The speeds are inferred, so
    they only allow comparisons within the machine. Raises ScheduleError for a GPU unknown to NVML.
    """
    indices = {gpu.index for gpu in driver.gpus}
    missing = [gpu for gpu in gpus if gpu not in indices]
    if missing:
        raise ScheduleError(f"NVML reports GPUs {sorted(indices)}, but not {missing}: check the GPUs with nvidia-smi")
    switches, cpus = (_first_devices_with_same_parent(driver, gpus, level) for level in (SAME_SWITCHES, SAME_CPU))
    routes = dict(pcie_routes(len(gpus), PCIE_AND_CPU, switches.__getitem__, cpus.__getitem__))
    for src, dst in routes:
        one, other = sorted((gpus[src], gpus[dst]))
        nvlinks = driver.nvlinks.get((one, other), 0)
        if nvlinks:
            routes[src, dst] = nvlink_route(src, dst, nvlinks)
        elif one in driver.nvswitch_gpus and other in driver.nvswitch_gpus:
            ports = (f"NVLinks out of {src}", f"NVLinks into {dst}")
            to_switches = tuple(Link(port, NVSWITCH_LINKS * NVLINK) for port in ports)
            routes[src, dst] = Route(to_switches, PEER_COPY_S)
    devices_by_cpu = {cpu: tuple(i for i, other_cpu in enumerate(cpus) if other_cpu == cpu) for cpu in cpus}
    return Topology("this machine", len(gpus), routes, V100, groups=tuple(devices_by_cpu.values()), note=NVML_NOTE)


def _first_devices_with_same_parent(driver: Driver, gpus: Sequence[int], level: int) -> List[int]:
    """Return, for each device, the first device below the same switch or CPU (``level``)."""
    if not driver.pcie_levels:
        return list(range(len(gpus))) if level == SAME_SWITCHES else [0] * len(gpus)

    def share_parent(one: int, other: int) -> bool:
        pair = (min(one, other), max(one, other))
        return one == other or driver.pcie_levels.get(pair, SAME_CPU + 1) <= level

    return [next(i for i, other in enumerate(gpus) if share_parent(one, other)) for one in gpus]


# --- the topology of a run's devices

MIN_DEVICES_TO_PLACE = 3  # the order of two devices makes no difference


class ResolvedTopology(NamedTuple):
    """The topology of some devices, or None if it is unknown, with the reason as a phrase."""

    topology: Optional[Topology]
    reason: str


def resolve_topology(ctxs: Sequence[Any], topology: Optional[str] = None) -> ResolvedTopology:
    """Return the topology of ``ctxs``, from a named machine or from the links that NVML reports.

    ``ctxs``: a list of mx.Context. ``topology``: a machine or a file, ``m.json``. GPU i of a named
    machine is nvidia-smi's GPU i. If ``ctxs`` are CPU devices, the i-th device represents GPU i of
    the named machine. If no machine is named, the topology of CPU devices is unknown. Raises
    ScheduleError for an unknown name, and for devices that the named machine does not have.
    """
    on_gpus = all(ctx.device_type == "gpu" for ctx in ctxs)
    if topology is not None:
        machine = make_topology(topology)
        numbers = nvml_numbers(ctxs) if on_gpus else None
        if numbers is None:  # NVML does not answer: use MXNet's numbers
            numbers = [ctx.device_id for ctx in ctxs] if on_gpus else list(range(len(ctxs)))
        if max(numbers) >= machine.world_size:  # pcie and nvswitch can have more
            machine = make_topology(topology, max(numbers) + 1)
        return ResolvedTopology(machine.subset(numbers), f"by the links of {topology}")
    if not on_gpus or len(ctxs) < MIN_DEVICES_TO_PLACE:
        return ResolvedTopology(None, "")
    driver, numbers = nvml.cached_driver(), nvml_numbers(ctxs)
    if numbers is None:
        reason = driver.error or f"NVML does not report {' '.join(map(str, ctxs))}"
        return ResolvedTopology(None, f"in numerical order, because NVML reports no links ({reason})")
    return ResolvedTopology(nvml_topology(driver, numbers), "by the links that NVML reports")


def nvml_numbers(ctxs: Sequence[Any]) -> Optional[List[int]]:
    """Return NVML's number of each GPU, or None if NVML does not report all of them.

    The GPUs are identified by their PCI bus IDs, because CUDA numbers GPUs differently.
    """
    number_by_bus = {_parse_bus_id(gpu.bus_id): gpu.index for gpu in nvml.cached_driver().gpus}
    numbers = [number_by_bus.get(_parse_bus_id(bus_id)) for bus_id in pci_bus_ids(ctxs)] if number_by_bus else [None]
    return [number for number in numbers if number is not None] if None not in numbers else None


def _parse_bus_id(bus_id: str) -> Tuple[int, str]:
    """Return a PCI bus ID in a form that is the same for CUDA (``0000:00:1b.0``) and NVML."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return int(domain, 16), rest
    except ValueError:  # CUDA reported no bus id
        return -1, bus_id
