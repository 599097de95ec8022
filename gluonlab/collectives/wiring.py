"""Topologies and routes from figures: uniform ones, NVLinks, and PCIe below switches and CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Optional, Tuple

from gluonlab.collectives.links import INFINITE, Link, Route, Topology, check_devices
from gluonlab.collectives.routes import Ways, pairs_of
from gluonlab.errors import ScheduleError

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
K80, V100, T4, A10G, A100 = (memory / 3 for memory in (240e9, 900e9, 320e9, 600e9, 1555e9))
# fitted to allreduces of 1 KiB to 64 MiB on 2 and 4 devices of a two-core EPYC: an operation of the
# executor, payload bytes/s that all devices copy and add, and how much of that one alone does
CPU_CALL_S, CPU_COPY, CPU_ADD, OF_ALL = 22e-6, 17.5e9, 4e9, 2 / 3
UNIFORM = "uniform: the figures are those that it was made of"


def switch(
    world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE
) -> Topology:
    """Every device has one full-duplex port to a switch that is never busy itself.

    The closed forms of `algorithms` hold on it.
    """
    check_devices("switch", world_size)
    out, into = (
        [(Link(f"{way} {device}", bytes_per_s),) for device in range(world_size)]
        for way in ("out of", "into")
    )
    routes = Ways(out, into, latency_s, {})
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
    ``copy_bytes_per_s`` of it as transfer, and what is left as reduction, once for all devices
    whose chunks are added to one in a step.

    ``latency_s``: of one transfer without bytes. ``copy_bytes_per_s``, ``add_bytes_per_s``: payload
    that all devices together copy and add while all are busy. ``device_...``: the same of one
    device alone, which binds where one device does all the work; by default one device is as fast
    as all.
    """
    check_devices("this machine", world_size)
    add, device_add = add_bytes_per_s, device_add_bytes_per_s
    if not min(copy_bytes_per_s, device_copy_bytes_per_s, add, device_add) > 0:
        raise ScheduleError("this machine: measured speeds are above 0 bytes/s")
    core, devices = min(copy_bytes_per_s, device_copy_bytes_per_s), range(world_size)
    memory = Link("memory", copy_bytes_per_s)
    out = [(memory, Link(f"core of {device}, sending", core)) for device in devices]
    into = [(Link(f"core of {device}, receiving", core),) for device in devices]
    routes = Ways(out, into, latency_s, {})
    alone = _slower_by(core, min(add, device_add))
    note = (
        "measured: the time of an empty transfer, "
        "and the memory's speed in copying and adding; one memory for all devices"
    )
    together = _slower_by(copy_bytes_per_s, add)
    return Topology("this machine", world_size, routes, alone, together, note=note)


def cpu_devices(world_size: int) -> Topology:
    """`this_machine` as it usually is, for choices that are to be the same in every run."""
    usual = this_machine(
        world_size,
        CPU_CALL_S,
        CPU_COPY,
        CPU_ADD,
        device_copy_bytes_per_s=CPU_COPY * OF_ALL,
        device_add_bytes_per_s=CPU_ADD * OF_ALL,
    )
    note = "CPU devices with the usual speeds of two cores; bench links --save measures others"
    return replace(usual, name="CPU devices", note=note)


def _slower_by(copy_bytes_per_s: float, add_bytes_per_s: float) -> float:
    """bytes/s of what an addition costs beyond a copy; infinite if additions are no slower.

    A noisy measurement may say so.
    """
    if add_bytes_per_s >= copy_bytes_per_s:
        return INFINITE
    return 1 / (1 / add_bytes_per_s - 1 / copy_bytes_per_s)


# --- routes


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
