"""How the GPUs are linked, beside how this machine's should be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Mapping, Optional

from gluonlab.collectives.topology import NVLINK, TOPOLOGIES, Topology, make_topology
from gluonlab.doctor.findings import Finding, ok, warning
from gluonlab.doctor.nvml import Driver, Pair

# When nobody says which instance this is: its GPUs tell. 8 x V100-SXM2-32GB is p3dn, which is linked alike.
BY_GPUS = {("V100", 8): "p3.16xlarge", ("V100", 4): "p3.8xlarge", ("T4", 4): "g4dn.12xlarge", ("A10G", 4): "g5.12xlarge"}
PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")  # EC2's Nitro machines have their type here
UNCURABLE = "stop and start the instance, so that it comes up on another machine; compare with nvidia-smi topo -m"


def instance_type(environ: Mapping[str, str], product: Path = PRODUCT) -> str:
    """``p3.16xlarge``, from SageMaker's environment or the machine's own name; empty when neither tells."""
    told = environ.get("SM_CURRENT_INSTANCE_TYPE", "")
    try:
        told = told or product.read_text().strip()
    except OSError:
        pass
    found = re.fullmatch(r"(?:ml\.)?([a-z]+\d+[a-z]*\.(?:\d*x?large|metal))", told)
    return found[1] if found else ""


def expected(found: Driver, instance: str) -> Optional[Topology]:
    """The known machine that this one is or looks like."""
    if instance in TOPOLOGIES:
        return make_topology(instance)
    kinds = {word for gpu in found.gpus for word in re.split(r"[ -]", gpu.name)}
    names = [name for (kind, count), name in BY_GPUS.items() if kind in kinds and count == len(found.gpus)]
    return make_topology(names[0]) if names and not instance else None


def nvlinks_of(topology: Topology) -> Dict[Pair, int]:
    """(a, b), a < b -> how many NVLinks the topology's route has; pairs without are left out."""
    routes = {pair: route.links[0] for pair, route in topology.routes.items() if pair[0] < pair[1]}
    return {pair: round(link.bytes_per_s / NVLINK) for pair, link in routes.items() if link.name.startswith("NVLink")}


def matrix(nvlinks: Mapping[Pair, int], count: int) -> str:
    """``0-1: 1, 0-3: 2``: the pairs that have NVLinks."""
    return ", ".join(f"{a}-{b}: {nvlinks[a, b]}" for a in range(count) for b in range(count) if (a, b) in nvlinks)


def links(found: Driver, instance: str) -> List[Finding]:
    """The NVLinks and peer-to-peer access between all pairs of GPUs."""
    count = len(found.gpus)
    if count < 2:
        return []
    topology = expected(found, instance)
    return [*_nvlinks(found, topology, count), *_peers(found, count)]


def _nvlinks(found: Driver, topology: Optional[Topology], count: int) -> List[Finding]:
    if found.switched:
        return [ok("links", f"NVLinks to switches on GPUs {', '.join(map(str, found.switched))}")]
    here = f"NVLinks {matrix(found.nvlinks, count)}" if found.nvlinks else "no NVLinks between the GPUs, all go over PCIe"
    if topology is None or topology.world_size != count:
        return [ok("links", here)]
    wanted = nvlinks_of(topology)
    pairs = sorted(pair for pair in {*wanted, *found.nvlinks} if wanted.get(pair, 0) != found.nvlinks.get(pair, 0))
    if not pairs:
        return [ok("links", f"{here}, as {topology.name} has")]
    told = ", ".join(f"{a}-{b} has {found.nvlinks.get((a, b), 0)} instead of {wanted.get((a, b), 0)}" for a, b in pairs)
    return [warning("links", f"NVLinks differ from those of {topology.name}: {told}", _why(found, topology), UNCURABLE)]


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
        return [ok("peers", f"no peer-to-peer access between {told}: their copies go through the host")]
    cure = "in a virtual machine or container, ask for direct access of the GPUs to each other; see dmesg for the IOMMU"
    return [warning("peers", f"no peer-to-peer access between {told}", "the driver denies it although NVLinks are there", cure)]
