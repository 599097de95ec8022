"""How the GPUs are linked, compared with how this machine's should be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Iterator, Mapping, Optional, Tuple

from gluonlab.collectives.topology import NVLINK, TOPOLOGIES, Topology, make_topology
from gluonlab.doctor.findings import Finding, listed, ok, warning
from gluonlab.gpu.nvml import Driver, Pair
from gluonlab.host.resources import text_of

# For a machine of Amazon's whose type is unknown: its GPUs tell. 8 x V100-SXM2-32GB is p3dn, which
# is linked alike.
BY_GPUS = {
    ("V100", 8): "p3.16xlarge",
    ("V100", 4): "p3.8xlarge",
    ("T4", 4): "g4dn.12xlarge",
    ("A10G", 4): "g5.12xlarge",
}
SWITCHED = ("p4d.24xlarge",)  # whose NVLinks all go to switches
# EC2's Nitro machines have their type in product_name, the older ones none
MACHINE = Path("/sys/devices/virtual/dmi/id")
INSTANCE = re.compile(r"(?:ml\.)?([a-z]+\d+[a-z]*\.(?:\d*x?large|metal))")
UNCURABLE = "compare with nvidia-smi topo -m; "
UNCURABLE += "stop and start the instance, to get another machine"


def instance_type(environ: Mapping[str, str], machine: Path = MACHINE) -> Optional[str]:
    """``p3.16xlarge``, from SageMaker's environment or the machine's own name.

    Empty for one of Amazon's of another name, None for a machine that is not Amazon's.
    """
    product = text_of(machine / "product_name").strip()
    for name in (environ.get("SM_CURRENT_INSTANCE_TYPE", ""), product):
        instance = INSTANCE.fullmatch(name)
        if instance:
            return instance[1]
    # "Xen", "4.11.amazon"
    words = " ".join(text_of(machine / name).strip() for name in ("sys_vendor", "bios_version"))
    return "" if "amazon" in words.lower() else None


def expected(driver: Driver, instance: Optional[str]) -> Optional[Topology]:
    """The known machine that this one is, or, among Amazon's, looks like."""
    if instance in TOPOLOGIES:
        return make_topology(instance)
    kinds = {word for gpu in driver.gpus for word in re.split(r"[ -]", gpu.name)}
    for (kind, count), name in BY_GPUS.items():
        if instance == "" and kind in kinds and count == len(driver.gpus):
            return make_topology(name)
    return None


def nvlinks_of(topology: Topology) -> Dict[Pair, int]:
    """(a, b), a < b -> how many NVLinks the topology's route has; pairs without are left out."""
    routes = {pair: route.links[0] for pair, route in topology.routes.items() if pair[0] < pair[1]}
    return {
        pair: round(link.bytes_per_s / NVLINK)
        for pair, link in routes.items()
        if link.name.startswith("NVLink")
    }


def matrix(nvlinks: Mapping[Pair, int]) -> str:
    """``0-1: 1, 0-3: 2``: the pairs that have NVLinks."""
    return ", ".join(f"{a}-{b}: {count}" for (a, b), count in sorted(nvlinks.items()))


def renumbering(
    here: Mapping[Pair, int], wanted: Mapping[Pair, int], count: int
) -> Optional[Tuple[int, ...]]:
    """``order``: GPU r of the known machine is GPU order[r] here, with the same links; or None.

    NVML counts along the PCI bus, and this machine's bus may be numbered differently from that of
    the known one.
    """

    def links(table: Mapping[Pair, int], a: int, b: int) -> int:
        return table.get((min(a, b), max(a, b)), 0)

    def extend(order: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
        rank = len(order)
        if rank == count:
            return order
        fitting = (
            gpu
            for gpu in range(count)
            if gpu not in order
            and all(links(here, gpu, order[r]) == links(wanted, rank, r) for r in range(rank))
        )
        return next((whole for whole in (extend((*order, gpu)) for gpu in fitting) if whole), None)

    return extend(())


@listed
def links(driver: Driver, instance: Optional[str]) -> Iterator[Finding]:
    """The NVLinks and peer-to-peer access between all pairs of GPUs."""
    if len(driver.gpus) > 1:
        yield _nvlinks(driver, expected(driver, instance))
        yield _peers(driver)


def _nvlinks(driver: Driver, topology: Optional[Topology]) -> Finding:
    here, count = driver.nvlinks, len(driver.gpus)
    switched = ", ".join(map(str, driver.switched))
    wants_all = topology is not None and topology.name in SWITCHED and not driver.silent
    if topology is not None and wants_all and len(driver.switched) < count:
        found = f"GPUs {switched} only" if switched else "no GPU"
        what = f"NVLinks to switches on {found}, and {topology.name} has them on all {count}"
        return warning("links", what, "links are down", UNCURABLE)
    if driver.switched:
        return ok("links", f"NVLinks to switches on GPUs {switched}")
    what = "no NVLinks between the GPUs, all traffic goes over PCIe"
    what = f"NVLinks {matrix(here)}" if here else what
    if topology is None or topology.world_size != count or driver.silent:
        return ok("links", what)
    wanted = nvlinks_of(topology)
    order = renumbering(here, wanted, count)
    if order is not None:
        numbers = f", whose GPUs 0, 1, ... are {', '.join(map(str, order))} here"
        same = order == tuple(range(count))
        return ok("links", f"{what}, as {topology.name} has{'' if same else numbers}")
    counts = {pair: (here.get(pair, 0), wanted.get(pair, 0)) for pair in sorted({*wanted, *here})}
    differences = ", ".join(
        f"{a}-{b} has {has} instead of {wants}"
        for (a, b), (has, wants) in counts.items()
        if has != wants
    )
    cause = f"this is another machine; {topology.note.split(';')[0]}"
    cause = "links are down" if sum(here.values()) < sum(wanted.values()) else cause
    what = f"NVLinks differ from those of {topology.name}: {differences}"
    return warning("links", what, cause, UNCURABLE)


def _peers(driver: Driver) -> Finding:
    count = len(driver.gpus)
    if not driver.no_peers:
        return ok("peers", f"peer-to-peer access between all {count * (count - 1) // 2} pairs")
    pairs = ", ".join(f"{a}-{b}" for a, b in driver.no_peers)
    what = f"no peer-to-peer access between {pairs}"
    if not any(pair in driver.nvlinks for pair in driver.no_peers):
        # GPUs below different CPUs have none
        return ok("peers", f"{what}: their copies go through the host")
    cause = "the driver denies it, although there are NVLinks"
    cure = "in a virtual machine or container, allow the GPUs direct access to each other; "
    return warning("peers", what, cause, f"{cure}see dmesg for the IOMMU")
