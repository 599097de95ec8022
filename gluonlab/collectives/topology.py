"""Topology: which links a message from one device to another passes, and how fast they are.

TOPOLOGIES names the known machines.

A link is one direction of a wire: messages that pass the same link share it, and a wire that works
both ways is two links. What its maker or a measurement says of a machine, and what is only
inferred, stands in the topology's ``note``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from gluonlab.collectives.rings import best_ring
from gluonlab.errors import ScheduleError, unknown

Pair = Tuple[int, int]  # (src, dst)
Place = Callable[[int], int]
INFINITE = float("inf")

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

# MXNet, src/kvstore/gpu_topology.h and tests/cpp/kvstore/gpu_topology_test.cc; nvidia-smi topo -m
# shows the same of a DGX-1V.
TWO_NVLINKS = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
ONE_NVLINK = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
CUBE_MESH = (
    "25 GB/s an NVLink and direction are nominal, about 24 are measured; "
    "pairs without one take PCIe and both CPUs, at 10 GB/s"
)
CUBE_INFERRED = (
    "inferred: that GPUs 0-1, 2-3, 4-5 and 6-7 share a PCIe switch and each quad a CPU, "
    "as on a DGX-1V, that every link of that way carries 10 GB/s, 10 µs a message, "
    "and additions at a third of the memory's speed"
)


class Link(NamedTuple):
    """One direction of a wire, or a bus that all directions share."""

    name: str
    bytes_per_s: float


class Route(NamedTuple):
    """The links that a message passes, all of them at once, and what every message costs however
    short it is.
    """

    links: Tuple[Link, ...]
    latency_s: float

    @property
    def bytes_per_s(self) -> float:
        """The speed of the slowest link on the way."""
        return min(link.bytes_per_s for link in self.links)


@dataclass(frozen=True)
class Topology:
    """Devices 0 to ``world_size`` - 1 and the way from each to each.

    ``reduce_bytes_per_s``: how fast one device adds what it received;
    ``shared_reduce_bytes_per_s``: how fast all of them do together, where they share a memory.
    ``groups``: devices that are closer to each other than to the rest, for the hierarchical
    algorithm; all in one group by default. ``note``: where the figures come from, and which are
    inferred.

    Raises ScheduleError for a pair without a route and for speeds that are none.
    """

    name: str
    world_size: int
    routes: Mapping[Pair, Route]
    reduce_bytes_per_s: float = INFINITE
    shared_reduce_bytes_per_s: float = INFINITE
    groups: Tuple[Tuple[int, ...], ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        _check_devices(self.name, self.world_size)
        pairs = _pairs(self.world_size)
        missing = [pair for pair in pairs if pair not in self.routes]
        if missing or len(self.routes) != len(pairs):
            raise ScheduleError(
                f"{self.name}: {self.world_size} devices have {len(pairs)} routes, "
                "one for every pair (src, dst)"
            )
        for route in self.routes.values():
            if (
                not route.links
                or not route.latency_s >= 0
                or not all(link.bytes_per_s > 0 for link in route.links)
            ):
                raise ScheduleError(
                    f"{self.name}: {route}: a route has links, each with bytes/s above 0, "
                    "and a latency of 0 s or more"
                )
        if not (self.reduce_bytes_per_s > 0 and self.shared_reduce_bytes_per_s > 0):
            raise ScheduleError(
                f"{self.name}: devices that add {self.reduce_bytes_per_s} bytes/s: "
                "more than 0 are possible"
            )
        if not self.groups:
            object.__setattr__(self, "groups", (tuple(range(self.world_size)),))

    def ring_order(self) -> List[int]:
        """The order of devices whose ring, device ``order[i]`` to ``order[i + 1]``, is the fastest;
        for `Schedule.placed`.

        That is the ring whose busiest link is the least busy when all devices send at once; of
        those, the one with the largest sum of the pairs' bytes/s; of those, the first in lexical
        order. Every order is tried unless it can no longer win.
        """
        return best_ring(self.world_size, self.routes)

    def subset(self, devices: Union[int, Sequence[int]]) -> Topology:
        """The machine as the first ``devices`` devices see it, or those that are listed: rank i is
        the i-th of them.
        """
        if not isinstance(devices, Sequence):
            if (
                not isinstance(devices, int)
                or isinstance(devices, bool)
                or not 1 <= devices <= self.world_size
            ):
                raise ScheduleError(
                    f"{self.name} has {self.world_size} devices: "
                    f"choose 1 to {self.world_size}, not {devices!r}"
                )
            devices = range(devices)
        chosen = list(devices)
        if (
            not chosen
            or len(set(chosen)) != len(chosen)
            or not all(device in range(self.world_size) for device in chosen)
        ):
            raise ScheduleError(
                f"{self.name} has devices 0 to {self.world_size - 1}: "
                f"choose each at most once, not {chosen}"
            )
        routes = {(i, j): self.routes[chosen[i], chosen[j]] for i, j in _pairs(len(chosen))}
        groups = [
            tuple(rank for rank, device in enumerate(chosen) if device in group)
            for group in self.groups
        ]
        return replace(
            self,
            world_size=len(chosen),
            routes=routes,
            groups=tuple(group for group in groups if group),
        )


# --- built from figures


def switch(
    world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE
) -> Topology:
    """Every device has one full-duplex port to a switch that is never busy itself; the closed forms
    of `algorithms` hold on it.
    """
    _check_devices("switch", world_size)
    out = [Link(f"out of {device}", bytes_per_s) for device in range(world_size)]
    into = [Link(f"into {device}", bytes_per_s) for device in range(world_size)]
    routes = {
        (src, dst): Route((out[src], into[dst]), latency_s) for src, dst in _pairs(world_size)
    }
    return Topology(
        "switch",
        world_size,
        routes,
        reduce_bytes_per_s,
        note="uniform: the figures are those that it was made of",
    )


def fully_connected(
    world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE
) -> Topology:
    """Every device has a full-duplex wire of its own to every other."""
    _check_devices("fully_connected", world_size)
    routes = {
        (src, dst): Route((Link(f"{src} to {dst}", bytes_per_s),), latency_s)
        for src, dst in _pairs(world_size)
    }
    note = "uniform: the figures are those that it was made of"
    return Topology("fully_connected", world_size, routes, reduce_bytes_per_s, note=note)


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
    _check_devices("this machine", world_size)
    if (
        not min(copy_bytes_per_s, add_bytes_per_s, device_copy_bytes_per_s, device_add_bytes_per_s)
        > 0
    ):
        raise ScheduleError("this machine: measured speeds are above 0 bytes/s")
    memory = Link("memory", copy_bytes_per_s)
    core = min(copy_bytes_per_s, device_copy_bytes_per_s)
    sends = [Link(f"core of {device}, sending", core) for device in range(world_size)]
    receives = [Link(f"core of {device}, receiving", core) for device in range(world_size)]
    routes = {
        (src, dst): Route((memory, sends[src], receives[dst]), latency_s)
        for src, dst in _pairs(world_size)
    }
    alone = _slower_by(core, min(add_bytes_per_s, device_add_bytes_per_s))
    note = (
        "measured: the time of an empty transfer, and the memory's speed in copying and "
        "adding; one memory for all devices"
    )
    together = _slower_by(copy_bytes_per_s, add_bytes_per_s)
    return Topology("this machine", world_size, routes, alone, together, note=note)


def _slower_by(copy_bytes_per_s: float, add_bytes_per_s: float) -> float:
    """The bytes/s of what an addition does beyond a copy; infinite where a noisy measurement found
    additions no slower.
    """
    return (
        1 / (1 / add_bytes_per_s - 1 / copy_bytes_per_s)
        if add_bytes_per_s < copy_bytes_per_s
        else INFINITE
    )


# --- machines that are known


def p3_16xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p3.16xlarge: 8 V100, 6 NVLinks each, in a hybrid cube mesh."""
    note = f"links: MXNet's src/kvstore/gpu_topology.h; {CUBE_MESH}; {CUBE_INFERRED}"
    return _first(_hybrid_cube_mesh("p3.16xlarge", note), world_size)


def p3dn_24xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p3dn.24xlarge: 8 V100 with 32 GB, inferred to be linked like those of p3.16xlarge."""
    note = (
        f"inferred: the links of p3.16xlarge, for want of a published matrix; {CUBE_MESH}; "
        f"{CUBE_INFERRED}"
    )
    return _first(_hybrid_cube_mesh("p3dn.24xlarge", note), world_size)


def p3_8xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS p3.8xlarge: 4 V100, inferred to be linked like the first quad of p3.16xlarge; no pair
    lacks an NVLink.
    """
    note = (
        "inferred: the quad 0-3 of p3.16xlarge, for want of a published matrix; "
        "25 GB/s an NVLink and direction are nominal; inferred: "
        "10 µs a message, and additions at a third of the memory's speed"
    )
    quad = _hybrid_cube_mesh("p3.8xlarge", note).subset(4)
    return _first(quad, world_size)


def g4dn_12xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS g4dn.12xlarge: 4 T4 on PCIe 3.0."""
    note = (
        "12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; "
        "inferred, for want of a published matrix: one CPU, "
        "to which each GPU has 16 lanes of its own, 10 µs a message, "
        "and additions at a third of the memory's speed"
    )
    return _first(_ports("g4dn.12xlarge", 4, PCIE_3, T4, note), world_size)


def g5_12xlarge(world_size: Optional[int] = None) -> Topology:
    """AWS g5.12xlarge: 4 A10G on PCIe 4.0."""
    note = (
        "24 GB/s is NCCL's figure for 16 lanes of PCIe 4.0; "
        "inferred, from aws-ofi-nccl's topology/g5.48xl-topo.xml, "
        "which has four GPUs and no PCIe switch below each CPU: "
        "one CPU, to which each GPU has 16 lanes of its own; inferred: "
        "10 µs a message, and additions at a third of the memory's speed"
    )
    return _first(_ports("g5.12xlarge", 4, PCIE_4, A10G, note), world_size)


def pcie(world_size: Optional[int] = None) -> Topology:
    """Any number of GPUs (8) on PCIe 3.0, two below each PCIe switch, all switches below one
    CPU.
    """
    count = DEFAULT_DEVICES if world_size is None else world_size
    _check_devices("pcie", count)
    note = (
        "12 GB/s is NCCL's figure for 16 lanes of PCIe 3.0; "
        "inferred, as no particular machine is meant: "
        "two GPUs share a switch and its 16 lanes to the CPU, 10 µs a message, "
        "and additions as fast as a V100's"
    )
    routes = {
        (src, dst): pcie_route(src, dst, PCIE_3, _in_pairs, lambda device: 0)
        for src, dst in _pairs(count)
    }
    groups = tuple(tuple(range(first, min(first + 2, count))) for first in range(0, count, 2))
    return Topology("pcie", count, routes, V100, groups=groups, note=note)


def nvswitch(world_size: Optional[int] = None) -> Topology:
    """Any number of GPUs (8), each with all its 12 NVLinks to switches that connect everybody, as
    in p4d.24xlarge's 8 A100.
    """
    note = (
        "300 GB/s a GPU and direction are nominal, 12 NVLinks of 25; inferred: "
        "that the switches are never busy themselves, 10 µs a message, "
        "and additions at a third of the memory's speed"
    )
    return _ports(
        "nvswitch", DEFAULT_DEVICES if world_size is None else world_size, 12 * NVLINK, A100, note
    )


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
    _check_devices(name, world_size)
    return replace(
        switch(world_size, PEER_COPY_S, bytes_per_s, reduce_bytes_per_s), name=name, note=note
    )


def _hybrid_cube_mesh(name: str, note: str) -> Topology:
    routes = {
        (src, dst): pcie_route(src, dst, PCIE_AND_CPU, _in_pairs, lambda device: device // 4)
        for src, dst in _pairs(8)
    }
    for count, pairs in ((2, TWO_NVLINKS), (1, ONE_NVLINK)):
        for a, b in pairs:
            for src, dst in ((a, b), (b, a)):
                routes[src, dst] = nvlink_route(src, dst, count)
    return Topology(name, 8, routes, V100, groups=((0, 1, 2, 3), (4, 5, 6, 7)), note=note)


def nvlink_route(src: int, dst: int, count: int) -> Route:
    """So many NVLinks of their own from one GPU to another."""
    return Route((Link(f"NVLink {src} to {dst}", count * NVLINK),), PEER_COPY_S)


def pcie_route(src: int, dst: int, bytes_per_s: float, switch_of: Place, cpu_of: Place) -> Route:
    """Up to where the ways of both GPUs meet, and down; ``switch_of`` and ``cpu_of``: below which
    switch and CPU each is.
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


def _in_pairs(device: int) -> int:
    return device // 2


def _pairs(world_size: int) -> List[Pair]:
    return [(src, dst) for src in range(world_size) for dst in range(world_size) if src != dst]


def _check_devices(name: str, world_size: int) -> None:
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ScheduleError(f"{name} with {world_size!r} devices: there must be at least 1")
