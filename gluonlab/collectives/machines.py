"""TOPOLOGIES, the known machines by name.

What its maker or a measurement says of a machine, and what is only inferred, stands in the
topology's ``note``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, Optional

from gluonlab.collectives.links import Topology, check_devices
from gluonlab.collectives.wiring import (
    A10G,
    A100,
    K80,
    NVLINK,
    PCIE_3,
    PCIE_4,
    PCIE_AND_CPU,
    PEER_COPY_S,
    T4,
    V100,
    nvlink_route,
    pcie_routes,
    switch,
)

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


def p2_16xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p2.16xlarge: 8 boards K80 of two GPUs each, on PCIe 3.0."""
    note = (
        "Amazon presented it as 16 GPUs with peer-to-peer access over PCIe; a K80 is two GPUs "
        "below a switch of the board; 12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; inferred, "
        "for want of a published matrix: GPUs 0-1, 2-3, ... are boards, all below one root, "
        f"{INFERRED}"
    )
    routes = pcie_routes(16, PCIE_3, in_pairs, lambda device: 0)
    boards = tuple((first, first + 1) for first in range(0, 16, 2))
    return _first(Topology("p2.16xlarge", 16, routes, K80, groups=boards, note=note), world_size)


def p3_2xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p3.2xlarge: one V100, for several hosts of it."""
    note = f"one GPU has no links to others; inferred: {INFERRED}"
    return _first(Topology("p3.2xlarge", 1, {}, V100, note=note), world_size)


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


def g5_48xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS g5.48xlarge: 8 A10G on PCIe 4.0, four below each of two CPUs."""
    note = (
        f"four GPUs below each CPU and no PCIe switch: {EFA_FILES}/g5.48xl-topo.xml; "
        "24 GB/s for 16 lanes of PCIe 4.0, and 16 GB/s between two CPUs of AMD, are NCCL's "
        f"figures; inferred: that each GPU has 16 lanes of its own, {INFERRED}"
    )
    routes = pcie_routes(8, PCIE_4, itself, lambda device: device // 4, AMD_CPUS)
    quads = ((0, 1, 2, 3), (4, 5, 6, 7))
    return _first(Topology("g5.48xlarge", 8, routes, A10G, groups=quads, note=note), world_size)


def p4d_24xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p4d.24xlarge: 8 A100, each with 12 NVLinks to switches."""
    return _first(replace(nvswitch(8), name="p4d.24xlarge"), world_size)


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
    routes = pcie_routes(count, PCIE_3, in_pairs, lambda device: 0)
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


def _first(topology: Topology, world_size: Optional[int]) -> Topology:
    return topology if world_size is None else topology.subset(world_size)


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
