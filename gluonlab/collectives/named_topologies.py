"""Topologies by name, and the one of this machine.

`make_topology` gives a known machine, ``p3.16xlarge``; several hosts, ``p3.16xlarge*8``; or what a
file says, ``m.json``. `nvml_topology` has the links that NVML reports, and `ground_of` is the
topology of a run's devices. What its maker or a
measurement says of a machine, and what is only inferred, stands in the topology's ``note``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.schedule import is_whole
from gluonlab.collectives.topology import Link as Link
from gluonlab.collectives.topology import Pair, Ways, check_devices, pairs_of
from gluonlab.collectives.topology import Route as Route
from gluonlab.collectives.topology import Topology as Topology
from gluonlab.collectives.topology import fully_connected as fully_connected
from gluonlab.collectives.topology import switch as switch
from gluonlab.collectives.topology import this_machine as this_machine
from gluonlab.collectives.topology_file import is_file_name, read_topology
from gluonlab.errors import ScheduleError, unknown
from gluonlab.gpu import nvml
from gluonlab.gpu.cuda import pci_bus_ids
from gluonlab.gpu.nvml import SAME_CPU, SAME_SWITCHES, Driver

# --- routes over NVLinks, and over PCIe below switches and CPUs

Place = Callable[[int], int]  # of a device: the switch or the CPU above it
Way = Callable[[int], Tuple[Link, ...]]  # of a device

NVLINK = 25e9  # bytes/s of one NVLink 2.0 and direction
# bytes/s from GPU to GPU through PCIe and CPUs, as MXNet's design page of its tree allreduce counts
# it
PCIE_AND_CPU = 10e9
# bytes/s of 16 lanes and direction, as NCCL counts them (src/graph/topo.h); nominal 16 and 32
PCIE_3, PCIE_4 = 12e9, 24e9
# to start one copy from GPU to GPU: inferred, the order of magnitude; measure where it matters
PEER_COPY_S = 10e-6
# bytes/s added: two reads, one write
K80, V100, T4, A10G, A100 = (memory / 3 for memory in (240e9, 900e9, 320e9, 600e9, 1555e9))


def nvlink_route(src: int, dst: int, count: int) -> Route:
    """``count`` NVLinks of their own from one GPU to another."""
    return Route((Link(f"NVLink {src} to {dst}", count * NVLINK),), PEER_COPY_S)


def pcie_out(src: int, bytes_per_s: float, switch_of: Place) -> Tuple[Link, Link]:
    """From a GPU up to its CPU."""
    names = f"PCIe out of {src}", f"PCIe switch {switch_of(src)} up"
    return Link(names[0], bytes_per_s), Link(names[1], bytes_per_s)


def pcie_into(dst: int, bytes_per_s: float, switch_of: Place) -> Tuple[Link, Link]:
    """From its CPU down to a GPU."""
    names = f"PCIe switch {switch_of(dst)} down", f"PCIe into {dst}"
    return Link(names[0], bytes_per_s), Link(names[1], bytes_per_s)


def pcie_route(
    src: int,
    dst: int,
    bytes_per_s: float,
    switch_of: Place,
    cpu_of: Place,
    cpus_bytes_per_s: Optional[float] = None,
) -> Route:
    """Up to where the ways of both GPUs meet, and down again.

    ``switch_of`` and ``cpu_of`` give the switch and the CPU above a GPU; ``cpus_bytes_per_s`` is
    the speed between CPUs, by default that of PCIe.
    """
    up, down = pcie_out(src, bytes_per_s, switch_of), pcie_into(dst, bytes_per_s, switch_of)
    if switch_of(src) == switch_of(dst):
        return Route((up[0], down[1]), PEER_COPY_S)
    if cpu_of(src) == cpu_of(dst):
        return Route((*up, *down), PEER_COPY_S)
    between = Link(f"CPU {cpu_of(src)} to {cpu_of(dst)}", cpus_bytes_per_s or bytes_per_s)
    return Route((*up, between, *down), PEER_COPY_S)


def pcie_routes(
    world_size: int,
    bytes_per_s: float,
    switch_of: Place,
    cpu_of: Place,
    cpus_bytes_per_s: Optional[float] = None,
) -> Ways:
    """`pcie_route` for every pair."""
    near = {
        pair: pcie_route(*pair, bytes_per_s, switch_of, cpu_of, cpus_bytes_per_s)
        for pair in pairs_of(world_size)
        if len({*map(switch_of, pair)}) == 1 or len({*map(cpu_of, pair)}) == 2
    }
    devices = range(world_size)
    out, into = (
        [way(of, bytes_per_s, switch_of) for of in devices] for way in (pcie_out, pcie_into)
    )
    return Ways(out, into, PEER_COPY_S, near)


# --- known machines

DEFAULT_DEVICES = 8
AMD_CPUS = 16e9  # bytes/s between two CPUs of AMD and direction, as NCCL counts (src/graph/topo.h)
EFA_FILES = "aws-ofi-nccl's topology"

# MXNet, src/kvstore/gpu_topology.h and tests/cpp/kvstore/gpu_topology_test.cc; nvidia-smi topo -m
# shows the same of a DGX-1V.
TWO_NVLINKS = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
ONE_NVLINK = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
INFERRED = "10 µs a message, and additions at a third of the memory's speed"
CUBE_MESH = (
    "25 GB/s an NVLink and direction are nominal, about 24 are measured; "
    "pairs without one take PCIe and both CPUs, at 10 GB/s"
)
CUBE_INFERRED = (
    "inferred: that GPUs 0-1, 2-3, 4-5 and 6-7 share a PCIe switch and each quad a CPU, "
    f"as on a DGX-1V, that every link of that way carries 10 GB/s, {INFERRED}"
)


def p2_16xlarge() -> Topology:
    """AWS p2.16xlarge: 8 boards K80 of two GPUs each, on PCIe 3.0."""
    note = (
        "Amazon presented it as 16 GPUs with peer-to-peer access over PCIe; a K80 is two GPUs "
        "below a switch of the board; 12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; inferred, "
        "for want of a published matrix: GPUs 0-1, 2-3, ... are boards, all below one root, "
        f"{INFERRED}"
    )
    routes = pcie_routes(16, PCIE_3, in_pairs, lambda device: 0)
    boards = tuple((first, first + 1) for first in range(0, 16, 2))
    return Topology("p2.16xlarge", 16, routes, K80, groups=boards, note=note)


def p3_2xlarge() -> Topology:
    """AWS p3.2xlarge: one V100, for several hosts of it."""
    note = f"one GPU has no links to others; inferred: {INFERRED}"
    return Topology("p3.2xlarge", 1, {}, V100, note=note)


def p3_16xlarge() -> Topology:
    """AWS p3.16xlarge: 8 V100, 6 NVLinks each, in a hybrid cube mesh."""
    note = f"links: MXNet's src/kvstore/gpu_topology.h; {CUBE_MESH}; {CUBE_INFERRED}"
    return _hybrid_cube_mesh("p3.16xlarge", note)


def p3dn_24xlarge() -> Topology:
    """AWS p3dn.24xlarge: 8 V100 with 32 GB, inferred to be linked like those of p3.16xlarge."""
    origin = "inferred: the links of p3.16xlarge, for want of a published matrix"
    note = f"{origin}; {CUBE_MESH}; {CUBE_INFERRED}"
    return _hybrid_cube_mesh("p3dn.24xlarge", note)


def p3_8xlarge() -> Topology:
    """AWS p3.8xlarge: 4 V100, inferred to be linked like the first quad of p3.16xlarge.

    No pair lacks an NVLink.
    """
    origin = "inferred: the quad 0-3 of p3.16xlarge, for want of a published matrix"
    note = f"{origin}; 25 GB/s an NVLink and direction are nominal; inferred: {INFERRED}"
    return _hybrid_cube_mesh("p3.8xlarge", note).subset(4)


def g4dn_12xlarge() -> Topology:
    """AWS g4dn.12xlarge: 4 T4 on PCIe 3.0."""
    note = (
        "12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; "
        "inferred, for want of a published matrix: one CPU, "
        f"to which each GPU has 16 lanes of its own, {INFERRED}"
    )
    return _ports("g4dn.12xlarge", 4, PCIE_3, T4, note)


def g5_12xlarge() -> Topology:
    """AWS g5.12xlarge: 4 A10G on PCIe 4.0."""
    note = (
        "24 GB/s is NCCL's figure for 16 lanes of PCIe 4.0; "
        "inferred, from aws-ofi-nccl's topology/g5.48xl-topo.xml, "
        "which has four GPUs and no PCIe switch below each CPU: "
        f"one CPU, to which each GPU has 16 lanes of its own; inferred: {INFERRED}"
    )
    return _ports("g5.12xlarge", 4, PCIE_4, A10G, note)


def g5_48xlarge() -> Topology:
    """AWS g5.48xlarge: 8 A10G on PCIe 4.0, four below each of two CPUs."""
    note = (
        f"four GPUs below each CPU and no PCIe switch: {EFA_FILES}/g5.48xl-topo.xml; "
        "24 GB/s for 16 lanes of PCIe 4.0, and 16 GB/s between two CPUs of AMD, are NCCL's "
        f"figures; inferred: that each GPU has 16 lanes of its own, {INFERRED}"
    )
    routes = pcie_routes(8, PCIE_4, itself, lambda device: device // 4, AMD_CPUS)
    quads = ((0, 1, 2, 3), (4, 5, 6, 7))
    return Topology("g5.48xlarge", 8, routes, A10G, groups=quads, note=note)


def p4d_24xlarge() -> Topology:
    """AWS p4d.24xlarge: 8 A100, each with 12 NVLinks to switches."""
    return replace(nvswitch(8), name="p4d.24xlarge")


def pcie(world_size: int = DEFAULT_DEVICES) -> Topology:
    """Any number of GPUs (8) on PCIe 3.0: two below each switch, all switches below one CPU."""
    check_devices("pcie", world_size)
    note = (
        "12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; "
        "inferred, as no particular machine is meant: "
        "two GPUs share a switch and its 16 lanes to the CPU, 10 µs a message, "
        "and additions as fast as a V100's"
    )
    routes = pcie_routes(world_size, PCIE_3, in_pairs, lambda device: 0)
    groups = tuple(
        tuple(range(first, min(first + 2, world_size))) for first in range(0, world_size, 2)
    )
    return Topology("pcie", world_size, routes, V100, groups=groups, note=note)


def nvswitch(world_size: int = DEFAULT_DEVICES) -> Topology:
    """Any number of GPUs (8), each with 12 NVLinks to switches, as p4d.24xlarge's 8 A100."""
    note = (
        "300 GB/s a GPU and direction are nominal, 12 NVLinks of 25; inferred: "
        f"that the switches are never busy themselves, {INFERRED}"
    )
    return _ports("nvswitch", world_size, 12 * NVLINK, A100, note)


TOPOLOGIES: Dict[str, Callable[..., Topology]] = {
    "p2.16xlarge": p2_16xlarge,
    "p3.2xlarge": p3_2xlarge,
    "p3.8xlarge": p3_8xlarge,
    "p3.16xlarge": p3_16xlarge,
    "p3dn.24xlarge": p3dn_24xlarge,
    "p4d.24xlarge": p4d_24xlarge,
    "g4dn.12xlarge": g4dn_12xlarge,
    "g5.12xlarge": g5_12xlarge,
    "g5.48xlarge": g5_48xlarge,
    "pcie": pcie,
    "nvswitch": nvswitch,
}
OF_ANY_SIZE = ("pcie", "nvswitch")


def _ports(
    name: str, world_size: int, bytes_per_s: float, reduce_bytes_per_s: float, note: str
) -> Topology:
    check_devices(name, world_size)
    ports = switch(world_size, PEER_COPY_S, bytes_per_s, reduce_bytes_per_s)
    return replace(ports, name=name, note=note)


def _hybrid_cube_mesh(name: str, note: str) -> Topology:
    routes = dict(pcie_routes(8, PCIE_AND_CPU, in_pairs, lambda device: device // 4))
    for count, pairs in ((2, TWO_NVLINKS), (1, ONE_NVLINK)):
        for a, b in pairs:
            for src, dst in ((a, b), (b, a)):
                routes[src, dst] = nvlink_route(src, dst, count)
    return Topology(name, 8, routes, V100, groups=((0, 1, 2, 3), (4, 5, 6, 7)), note=note)


def in_pairs(device: int) -> int:
    """The switch above a GPU, where two GPUs share one."""
    return device // 2


def itself(device: int) -> int:
    """The same of GPUs that share none: each is below one of its own."""
    return device


# --- several hosts: one host's links, as often as there are hosts, and a network
#
# A message to another host passes the sender's way to its network card (NIC), both NICs, and the
# way from the NIC to the receiver. The devices of a host share its NICs; the network between NICs
# is never busy itself.

MOST_HOSTS = 128  # of 8 GPUs each, 1,024 devices: prices of them take seconds
GBIT = 1e9 / 8  # bytes/s


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


def _behind_switches(
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
    "p2.16xlarge": _behind_switches(20, TCP_S, PCIE_3, in_pairs),
    "p3.2xlarge": _behind_switches(10, TCP_S, PCIE_AND_CPU, itself),
    "p3.8xlarge": _behind_switches(10, TCP_S, PCIE_AND_CPU, in_pairs),
    "p3.16xlarge": _behind_switches(25, TCP_S, PCIE_AND_CPU, in_pairs),
    "p3dn.24xlarge": _behind_switches(100, EFA_S, PCIE_AND_CPU, in_pairs),
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
    "g5.48xlarge": _behind_switches(100, EFA_S, PCIE_4, itself),
}


# --- by name

FILES = "a machine of your own, or one that bench links --save has measured, is a file, m.json"
NAMES = (
    f"{', '.join(TOPOLOGIES)}; NAME*HOSTS, such as p3.16xlarge*8, is several of Amazon's; {FILES}"
)


def make_topology(name: str, world_size: Optional[int] = None) -> Topology:
    """The first ``world_size`` devices (all) of the machine of this name, or of several hosts.

    ``p3.16xlarge*8`` is eight such hosts and their network; whatever ends in ``.json`` is a file
    (`topology_file`). Raises ScheduleError, with the choices, for other names, for more hosts than
    128, for hosts whose network is not known, and for files with a mistake.
    """
    if is_file_name(name):
        written = read_topology(name)
        return written if world_size is None else written.subset(world_size)
    machine, hosts = _parsed(name)
    if is_file_name(machine):
        raise ScheduleError(
            f"topology {name!r}: a file says itself how many hosts there are, under hosts: "
            f"give {machine} alone"
        )
    if machine not in TOPOLOGIES:
        hint = f"; several hosts are NAME*HOSTS, up to {MOST_HOSTS}; {FILES}"
        raise ScheduleError(unknown("topology", machine, TOPOLOGIES) + hint)
    if machine in OF_ANY_SIZE and hosts is None and world_size is not None:
        return TOPOLOGIES[machine](world_size)
    whole = TOPOLOGIES[machine]()
    if hosts is not None and machine not in NETWORKS:
        raise ScheduleError(
            f"topology {name!r}: {machine} is no particular machine, and has no network to other "
            f"hosts: choose several of {', '.join(NETWORKS)}"
        )
    if hosts is not None:
        whole = several_hosts(whole, hosts, NETWORKS[machine])
    return whole if world_size is None else whole.subset(world_size)


def _parsed(name: str) -> Tuple[str, Optional[int]]:
    """The machine, and how many hosts are asked for, if any are."""
    machine, star, hosts = name.partition("*") if isinstance(name, str) else (name, "", "")
    if not star:
        return machine, None
    number = int(hosts) if re.fullmatch(r" *[0-9]{1,9} *", hosts) else 0
    if not 1 <= number <= MOST_HOSTS:
        raise ScheduleError(
            f"topology {name!r}: {hosts.strip()!r} is no number of hosts: give 1 to {MOST_HOSTS}, "
            "as in p3.16xlarge*8"
        )
    return machine.strip(), number


# --- this machine's GPUs, by the links that NVML reports

NVML_NOTE = (
    "links: as NVML reports them; inferred: 25 GB/s an NVLink, 10 GB/s of PCIe and CPUs, "
    "10 µs a message, and additions as fast as a V100's"
)
# NVLinks of a GPU that go to switches, as those of an A100: NVML does not count them here
MOST_LINKS = 12


def nvml_topology(driver: Driver, gpus: Sequence[int]) -> Topology:
    """Device i is NVML's GPU ``gpus[i]``. NVLinks first, then switches of NVLinks, then PCIe.

    Where the driver does not tell how the GPUs hang on PCIe, each is below a CPU that is theirs
    together by a switch of its own. Its figures compare ways within the machine; what they are in
    bytes/s is inferred. Raises ScheduleError for a GPU that NVML did not tell of.
    """
    known = {gpu.index for gpu in driver.gpus}
    missing = [gpu for gpu in gpus if gpu not in known]
    if missing:
        raise ScheduleError(f"NVML reports GPUs {sorted(known)}, not {missing}: see nvidia-smi")
    switches, cpus = (_below(driver, gpus, level) for level in (SAME_SWITCHES, SAME_CPU))
    routes = dict(pcie_routes(len(gpus), PCIE_AND_CPU, switches.__getitem__, cpus.__getitem__))
    for src, dst in routes:
        one, other = sorted((gpus[src], gpus[dst]))
        links = driver.nvlinks.get((one, other), 0)
        if links:
            routes[src, dst] = nvlink_route(src, dst, links)
        elif one in driver.switched and other in driver.switched:
            ports = (f"NVLinks out of {src}", f"NVLinks into {dst}")
            to_switches = tuple(Link(port, MOST_LINKS * NVLINK) for port in ports)
            routes[src, dst] = Route(to_switches, PEER_COPY_S)
    halves = {cpu: tuple(i for i, own in enumerate(cpus) if own == cpu) for cpu in cpus}
    return Topology(
        "this machine", len(gpus), routes, V100, groups=tuple(halves.values()), note=NVML_NOTE
    )


def _below(driver: Driver, gpus: Sequence[int], level: int) -> List[int]:
    """For each device the first one that shares a switch or CPU of this level with it."""
    if not driver.apart:
        return list(range(len(gpus))) if level == SAME_SWITCHES else [0] * len(gpus)

    def meet(one: int, other: int) -> bool:
        pair = (min(one, other), max(one, other))
        return one == other or driver.apart.get(pair, SAME_CPU + 1) <= level

    return [next(i for i, other in enumerate(gpus) if meet(one, other)) for one in gpus]


# --- the topology of a run's devices

FEWEST_TO_PLACE = 3  # two devices have one way of being neighbours


class Ground(NamedTuple):
    """The topology of some devices, if it is known, and why it is that one, or unknown."""

    topology: Optional[Topology]
    why: str


def ground_of(ctxs: Sequence[Any], topology: Optional[str] = None) -> Ground:
    """The topology of ``ctxs``: of the machine named ``topology``, or as NVML reports the links.

    ``ctxs``: each an mx.Context. The name may be a file's, ``m.json``. GPU i of a named machine is
    nvidia-smi's GPU i here; of CPU devices the first stands for its GPU 0, and so on. Without a
    name nothing is asked for CPU devices. Raises ScheduleError for an unknown name, and for devices
    that the named machine has not.
    """
    on_gpus = all(ctx.device_type == "gpu" for ctx in ctxs)
    if topology is not None:
        machine = make_topology(topology)
        numbers = nvml_numbers(ctxs) if on_gpus else None
        if numbers is None:  # NVML does not answer: as MXNet counts them
            numbers = [ctx.device_id for ctx in ctxs] if on_gpus else list(range(len(ctxs)))
        if max(numbers) >= machine.world_size:  # of pcie and nvswitch there may be more
            machine = make_topology(topology, max(numbers) + 1)
        return Ground(machine.subset(numbers), f"by the links of {topology}")
    if not on_gpus or len(ctxs) < FEWEST_TO_PLACE:
        return Ground(None, "")
    driver, numbers = nvml.cached_driver(), nvml_numbers(ctxs)
    if numbers is None:
        reason = driver.error or f"it does not know {' '.join(map(str, ctxs))}"
        return Ground(None, f"as numbered: NVML reports no links ({reason})")
    return Ground(nvml_topology(driver, numbers), "by the links that NVML reports")


def nvml_numbers(ctxs: Sequence[Any]) -> Optional[List[int]]:
    """NVML's number of each GPU, by its place on the PCI bus.

    CUDA numbers GPUs in its own way. None where NVML does not know them all.
    """
    at = {_bus(gpu.bus_id): gpu.index for gpu in nvml.cached_driver().gpus}
    numbers = [at.get(_bus(bus_id)) for bus_id in pci_bus_ids(ctxs)] if at else [None]
    return [number for number in numbers if number is not None] if None not in numbers else None


def _bus(bus_id: str) -> Tuple[int, str]:
    """``0000:00:1b.0`` of CUDA and ``00000000:00:1B.0`` of NVML are the same."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return int(domain, 16), rest
    except ValueError:  # CUDA did not tell
        return -1, bus_id
