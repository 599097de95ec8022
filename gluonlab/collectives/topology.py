"""Topologies from figures, and TOPOLOGIES, the known machines by name.

What its maker or a measurement says of a machine, and what is only inferred, stands in the
topology's ``note``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, Optional

from gluonlab.collectives.links import INFINITE, Pair, check_devices, pairs_of
from gluonlab.collectives.links import Link as Link
from gluonlab.collectives.links import Route as Route
from gluonlab.collectives.links import Topology as Topology
from gluonlab.errors import ScheduleError, unknown

Place = Callable[[int], int]

NVLINK = 25e9  # bytes/s of one NVLink 2.0 and direction
# bytes/s from GPU to GPU through PCIe and CPUs, as MXNet's design page of its tree allreduce counts
# it
PCIE_AND_CPU = 10e9
# bytes/s of 16 lanes and direction, as NCCL counts them (src/graph/topo.h); nominal 16 and 32
PCIE_3, PCIE_4 = 12e9, 24e9
# to start one copy from GPU to GPU: inferred, the order of magnitude; measure where it matters
PEER_COPY_S = 10e-6
# bytes/s added: two reads, one write
V100, T4, A10G, A100 = (memory / 3 for memory in (900e9, 320e9, 600e9, 1555e9))
DEFAULT_DEVICES = 8
UNIFORM = "uniform: the figures are those that it was made of"

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


# --- built from figures


def switch(
    world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE
) -> Topology:
    """Every device has one full-duplex port to a switch that is never busy itself.

    The closed forms of `algorithms` hold on it.
    """
    check_devices("switch", world_size)
    routes = {}
    for src, dst in pairs_of(world_size):
        links = Link(f"out of {src}", bytes_per_s), Link(f"into {dst}", bytes_per_s)
        routes[src, dst] = Route(links, latency_s)
    return Topology("switch", world_size, routes, reduce_bytes_per_s, note=UNIFORM)


def fully_connected(
    world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE
) -> Topology:
    """Every device has a full-duplex wire of its own to every other."""
    check_devices("fully_connected", world_size)
    routes = {
        (src, dst): Route((Link(f"{src} to {dst}", bytes_per_s),), latency_s)
        for src, dst in pairs_of(world_size)
    }
    return Topology("fully_connected", world_size, routes, reduce_bytes_per_s, note=UNIFORM)


def this_machine(
    world_size: int,
    latency_s: float,
    copy_bytes_per_s: float,
    add_bytes_per_s: float,
    *,
    device_copy_bytes_per_s: float = INFINITE,
    device_add_bytes_per_s: float = INFINITE,
) -> Topology:
    """CPU devices in one process, from measured figures.

    They share one memory, so all messages share one link; and one Python thread queues them, so
    their latencies add up, too. Each device has one core, through which all goes that it sends, and
    all that it receives: the executor adds on the device that is written, and copies on the one
    that is read. A byte that is added costs 1 / ``add_bytes_per_s`` in all; the price counts 1 /
    ``copy_bytes_per_s`` of it as transfer, and what is left as reduction.

    ``latency_s``: of one transfer without bytes. ``copy_bytes_per_s``, ``add_bytes_per_s``: payload
    that all devices together copy and add while all are busy. ``device_...``: the same of one
    device alone, which binds where one device does all the work; by default one device is as fast
    as all.
    """
    check_devices("this machine", world_size)
    add, device_add = add_bytes_per_s, device_add_bytes_per_s
    if not min(copy_bytes_per_s, device_copy_bytes_per_s, add, device_add) > 0:
        raise ScheduleError("this machine: measured speeds are above 0 bytes/s")
    core, routes = min(copy_bytes_per_s, device_copy_bytes_per_s), {}
    for src, dst in pairs_of(world_size):
        sends, receives = f"core of {src}, sending", f"core of {dst}, receiving"
        links = Link("memory", copy_bytes_per_s), Link(sends, core), Link(receives, core)
        routes[src, dst] = Route(links, latency_s)
    alone = _slower_by(core, min(add, device_add))
    note = (
        "measured: the time of an empty transfer, "
        "and the memory's speed in copying and adding; one memory for all devices"
    )
    together = _slower_by(copy_bytes_per_s, add)
    return Topology("this machine", world_size, routes, alone, together, note=note)


def _slower_by(copy_bytes_per_s: float, add_bytes_per_s: float) -> float:
    """bytes/s of what an addition costs beyond a copy; infinite if additions are no slower.

    A noisy measurement may say so.
    """
    if add_bytes_per_s >= copy_bytes_per_s:
        return INFINITE
    return 1 / (1 / add_bytes_per_s - 1 / copy_bytes_per_s)


# --- machines that are known


def p3_16xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p3.16xlarge: 8 V100, 6 NVLinks each, in a hybrid cube mesh."""
    note = f"links: MXNet's src/kvstore/gpu_topology.h; {CUBE_MESH}; {CUBE_INFERRED}"
    return _first(_hybrid_cube_mesh("p3.16xlarge", note), world_size)


def p3dn_24xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p3dn.24xlarge: 8 V100 with 32 GB, inferred to be linked like those of p3.16xlarge."""
    origin = "inferred: the links of p3.16xlarge, for want of a published matrix"
    note = f"{origin}; {CUBE_MESH}; {CUBE_INFERRED}"
    return _first(_hybrid_cube_mesh("p3dn.24xlarge", note), world_size)


def p3_8xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p3.8xlarge: 4 V100, inferred to be linked like the first quad of p3.16xlarge.

    No pair lacks an NVLink.
    """
    origin = "inferred: the quad 0-3 of p3.16xlarge, for want of a published matrix"
    note = f"{origin}; 25 GB/s an NVLink and direction are nominal; inferred: {INFERRED}"
    return _first(_hybrid_cube_mesh("p3.8xlarge", note).subset(4), world_size)


def g4dn_12xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS g4dn.12xlarge: 4 T4 on PCIe 3.0."""
    note = (
        "12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; "
        "inferred, for want of a published matrix: one CPU, "
        f"to which each GPU has 16 lanes of its own, {INFERRED}"
    )
    return _first(_ports("g4dn.12xlarge", 4, PCIE_3, T4, note), world_size)


def g5_12xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS g5.12xlarge: 4 A10G on PCIe 4.0."""
    note = (
        "24 GB/s is NCCL's figure for 16 lanes of PCIe 4.0; "
        "inferred, from aws-ofi-nccl's topology/g5.48xl-topo.xml, "
        "which has four GPUs and no PCIe switch below each CPU: "
        f"one CPU, to which each GPU has 16 lanes of its own; inferred: {INFERRED}"
    )
    return _first(_ports("g5.12xlarge", 4, PCIE_4, A10G, note), world_size)


def pcie(world_size: Optional[int] = None) -> Topology:
    """Any number of GPUs (8) on PCIe 3.0: two below each switch, all switches below one CPU."""
    count = DEFAULT_DEVICES if world_size is None else world_size
    check_devices("pcie", count)
    note = (
        "12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; "
        "inferred, as no particular machine is meant: "
        "two GPUs share a switch and its 16 lanes to the CPU, 10 µs a message, "
        "and additions as fast as a V100's"
    )
    routes = pcie_routes(count, PCIE_3, _in_pairs, lambda device: 0)
    groups = tuple(tuple(range(first, min(first + 2, count))) for first in range(0, count, 2))
    return Topology("pcie", count, routes, V100, groups=groups, note=note)


def nvswitch(world_size: Optional[int] = None) -> Topology:
    """Any number of GPUs (8), each with 12 NVLinks to switches, as p4d.24xlarge's 8 A100."""
    count = DEFAULT_DEVICES if world_size is None else world_size
    note = (
        "300 GB/s a GPU and direction are nominal, 12 NVLinks of 25; inferred: "
        f"that the switches are never busy themselves, {INFERRED}"
    )
    return _ports("nvswitch", count, 12 * NVLINK, A100, note)


TOPOLOGIES: Dict[str, Callable[[Optional[int]], Topology]] = {
    "p3.8xlarge": p3_8xlarge,
    "p3.16xlarge": p3_16xlarge,
    "p3dn.24xlarge": p3dn_24xlarge,
    "g4dn.12xlarge": g4dn_12xlarge,
    "g5.12xlarge": g5_12xlarge,
    "pcie": pcie,
    "nvswitch": nvswitch,
}


def make_topology(name: str, world_size: Optional[int] = None) -> Topology:
    """The first ``world_size`` devices (all) of the machine of this name.

    Raises ScheduleError, with the choices, for others.
    """
    if name not in TOPOLOGIES:
        raise ScheduleError(unknown("topology", name, TOPOLOGIES))
    return TOPOLOGIES[name](world_size)


def _first(topology: Topology, world_size: Optional[int]) -> Topology:
    return topology if world_size is None else topology.subset(world_size)


def _ports(
    name: str, world_size: int, bytes_per_s: float, reduce_bytes_per_s: float, note: str
) -> Topology:
    check_devices(name, world_size)
    ports = switch(world_size, PEER_COPY_S, bytes_per_s, reduce_bytes_per_s)
    return replace(ports, name=name, note=note)


def _hybrid_cube_mesh(name: str, note: str) -> Topology:
    routes = pcie_routes(8, PCIE_AND_CPU, _in_pairs, lambda device: device // 4)
    for count, pairs in ((2, TWO_NVLINKS), (1, ONE_NVLINK)):
        for a, b in pairs:
            for src, dst in ((a, b), (b, a)):
                routes[src, dst] = nvlink_route(src, dst, count)
    return Topology(name, 8, routes, V100, groups=((0, 1, 2, 3), (4, 5, 6, 7)), note=note)


def nvlink_route(src: int, dst: int, count: int) -> Route:
    """``count`` NVLinks of their own from one GPU to another."""
    return Route((Link(f"NVLink {src} to {dst}", count * NVLINK),), PEER_COPY_S)


def pcie_route(src: int, dst: int, bytes_per_s: float, switch_of: Place, cpu_of: Place) -> Route:
    """Up to where the ways of both GPUs meet, and down again.

    ``switch_of`` and ``cpu_of`` give the switch and the CPU above a GPU.
    """
    way = [f"PCIe out of {src}"]
    above, below = switch_of(src), switch_of(dst)
    if above != below:
        way.append(f"PCIe switch {above} up")
        if cpu_of(src) != cpu_of(dst):
            way.append(f"CPU {cpu_of(src)} to {cpu_of(dst)}")
        way.append(f"PCIe switch {below} down")
    way.append(f"PCIe into {dst}")
    return Route(tuple(Link(name, bytes_per_s) for name in way), PEER_COPY_S)


def pcie_routes(
    world_size: int, bytes_per_s: float, switch_of: Place, cpu_of: Place
) -> Dict[Pair, Route]:
    """`pcie_route` for every pair."""
    pairs = pairs_of(world_size)
    return {pair: pcie_route(*pair, bytes_per_s, switch_of, cpu_of) for pair in pairs}


def _in_pairs(device: int) -> int:
    return device // 2
