"""How the GPUs are linked, beside how this machine's should be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

from gluonlab.collectives.topology import NVLINK, TOPOLOGIES, Topology, make_topology
from gluonlab.doctor.findings import Finding, ok, warning
from gluonlab.gpu.nvml import Driver, Pair
from gluonlab.host.control_groups import text_of

# When nobody says which of Amazon's machines this is: its GPUs tell. 8 x V100-SXM2-32GB is p3dn,
# which is linked alike.
BY_GPUS = {
    ("V100", 8): "p3.16xlarge",
    ("V100", 4): "p3.8xlarge",
    ("T4", 4): "g4dn.12xlarge",
    ("A10G", 4): "g5.12xlarge",
}
# EC2's Nitro machines have their type in product_name, the older ones none
MACHINE = Path("/sys/devices/virtual/dmi/id")
UNCURABLE = (
    "stop and start the instance, so that it comes up on another machine; "
    "compare with nvidia-smi topo -m"
)


def instance_type(environ: Mapping[str, str], machine: Path = MACHINE) -> Optional[str]:
    """``p3.16xlarge``, from SageMaker's environment or the machine's own name; empty for one of
    Amazon's of another name.

    None for a machine that is not Amazon's.
    """
    for told in (
        environ.get("SM_CURRENT_INSTANCE_TYPE", ""),
        text_of(machine / "product_name").strip(),
    ):
        found = re.fullmatch(r"(?:ml\.)?([a-z]+\d+[a-z]*\.(?:\d*x?large|metal))", told)
        if found:
            return found[1]
    # "Xen", "4.11.amazon"
    words = " ".join(text_of(machine / name).strip() for name in ("sys_vendor", "bios_version"))
    return "" if "amazon" in words.lower() else None


def expected(found: Driver, instance: Optional[str]) -> Optional[Topology]:
    """The known machine that this one is, or, among Amazon's, looks like."""
    if instance in TOPOLOGIES:
        return make_topology(instance)
    kinds = {word for gpu in found.gpus for word in re.split(r"[ -]", gpu.name)}
    names = [
        name
        for (kind, count), name in BY_GPUS.items()
        if kind in kinds and count == len(found.gpus)
    ]
    return make_topology(names[0]) if names and instance == "" else None


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
    """``order``: GPU r of the known machine is GPU order[r] here, so that all links are the same;
    None if there is no such order.

    NVML counts along the PCI bus, and nobody promises that a machine's buses are numbered as those
    of the table were.
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


def links(found: Driver, instance: Optional[str]) -> List[Finding]:
    """The NVLinks and peer-to-peer access between all pairs of GPUs."""
    count = len(found.gpus)
    if count < 2:
        return []
    topology = expected(found, instance)
    return [*_nvlinks(found, topology, count), *_peers(found, count)]


def _nvlinks(found: Driver, topology: Optional[Topology], count: int) -> List[Finding]:
    if found.switched:
        return [ok("links", f"NVLinks to switches on GPUs {', '.join(map(str, found.switched))}")]
    here = (
        f"NVLinks {matrix(found.nvlinks)}"
        if found.nvlinks
        else "no NVLinks between the GPUs, all go over PCIe"
    )
    if topology is None or topology.world_size != count or found.silent:
        return [ok("links", here)]
    wanted = nvlinks_of(topology)
    order = renumbering(found.nvlinks, wanted, count)
    if order is not None:
        numbers = (
            ""
            if order == tuple(range(count))
            else f", whose GPUs 0, 1, ... are {', '.join(map(str, order))} here"
        )
        return [ok("links", f"{here}, as {topology.name} has{numbers}")]
    pairs = sorted(
        pair
        for pair in {*wanted, *found.nvlinks}
        if wanted.get(pair, 0) != found.nvlinks.get(pair, 0)
    )
    told = ", ".join(
        f"{a}-{b} has {found.nvlinks.get((a, b), 0)} instead of {wanted.get((a, b), 0)}"
        for a, b in pairs
    )
    return [
        warning(
            "links",
            f"NVLinks differ from those of {topology.name}: {told}",
            _why(found, topology),
            UNCURABLE,
        )
    ]


def _why(found: Driver, topology: Topology) -> str:
    fewer = sum(found.nvlinks.values()) < sum(nvlinks_of(topology).values())
    return "links are down" if fewer else f"this is another machine; {topology.note.split(';')[0]}"


def _peers(found: Driver, count: int) -> List[Finding]:
    pairs = count * (count - 1) // 2
    if not found.no_peers:
        return [ok("peers", f"peer-to-peer access between all {pairs} pairs")]
    told = ", ".join(f"{a}-{b}" for a, b in found.no_peers)
    linked = [pair for pair in found.no_peers if pair in found.nvlinks]
    if not linked:  # GPUs below different CPUs have none
        return [
            ok("peers", f"no peer-to-peer access between {told}: their copies go through the host")
        ]
    cure = (
        "in a virtual machine or container, ask for direct access of the GPUs to each other; "
        "see dmesg for the IOMMU"
    )
    return [
        warning(
            "peers",
            f"no peer-to-peer access between {told}",
            "the driver denies it although NVLinks are there",
            cure,
        )
    ]
