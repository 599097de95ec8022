"""The topology of this machine's GPUs, from the links that NVML reports."""

from __future__ import annotations

from typing import List, Sequence

from gluonlab.collectives.links import Link, Route, Topology
from gluonlab.collectives.wiring import (
    NVLINK,
    PCIE_AND_CPU,
    PEER_COPY_S,
    V100,
    nvlink_route,
    pcie_routes,
)
from gluonlab.errors import ScheduleError
from gluonlab.gpu.nvml import SAME_CPU, SAME_SWITCHES, Driver

NAME = "this machine"
NOTE = (
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
            routes[src, dst] = _through_switches(src, dst)
    halves = {cpu: tuple(i for i, own in enumerate(cpus) if own == cpu) for cpu in cpus}
    return Topology(NAME, len(gpus), routes, V100, groups=tuple(halves.values()), note=NOTE)


def _below(driver: Driver, gpus: Sequence[int], level: int) -> List[int]:
    """For each device the first one that shares a switch or CPU of this level with it."""
    if not driver.apart:
        return list(range(len(gpus))) if level == SAME_SWITCHES else [0] * len(gpus)

    def meet(one: int, other: int) -> bool:
        pair = (min(one, other), max(one, other))
        return one == other or driver.apart.get(pair, SAME_CPU + 1) <= level

    return [next(i for i, other in enumerate(gpus) if meet(one, other)) for one in gpus]


def _through_switches(src: int, dst: int) -> Route:
    ports = (f"NVLinks out of {src}", f"NVLinks into {dst}")
    return Route(tuple(Link(port, MOST_LINKS * NVLINK) for port in ports), PEER_COPY_S)
