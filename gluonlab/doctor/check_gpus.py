"""The driver and the GPUs, beside what mxnet-cu112 1.9.1 was built for; who uses their memory.

Which of them CUDA shows and calls gpu:0, gpu:1, ..., as CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
decide; and how they are linked, compared with how this machine's should be.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple

from gluonlab.collectives.named_topologies import NVLINK, TOPOLOGIES, Topology, make_topology
from gluonlab.doctor.check_software import numbers_of
from gluonlab.doctor.findings import Finding, fault, listed, ok, plural, warning
from gluonlab.engine.mxnet_installation import pip_install_command
from gluonlab.engine.mxnet_setup import TF32_VARIABLE
from gluonlab.gpu.cuda import CODE_FOR, LIVING, has_code, sm_of
from gluonlab.gpu.math_modes import TF32_SINCE
from gluonlab.gpu.nvml import BINDINGS, Driver, NvmlGpu, Pair, in_cuda_order, visible_gpus
from gluonlab.host.resources import read_kernel_file

OLDEST_DRIVER = "450.80.02"  # of CUDA 11.x, NVIDIA's table of minor version compatibility
CU112 = "mxnet-cu112"
MORE = "gluonlab's docs/faq.md says more"
BINDINGS_VERSION = "13.615.71"  # setup.py's
SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))  # of a driver's kernel module


@listed
def driver(driver: Driver, flavour: str, signs: Tuple[Path, ...] = SIGNS) -> Iterator[Finding]:
    """Whether there is a driver, new enough for CUDA 11. ``flavour``: the installed MXNet."""
    severe = fault if flavour == CU112 else warning
    if driver.error:
        yield _no_driver(driver.error, flavour, any(sign.exists() for sign in signs))
        return
    if driver.gpus:
        kinds = Counter(gpu.name for gpu in driver.gpus).items()
        listing = ", ".join(f"{count} x {name}" for name, count in kinds)
        yield ok("gpus", f"driver {driver.version}, {listing}")
    elif not driver.silent:
        cure = "check nvidia-smi; CPU devices stand in for GPUs"
        yield warning("gpus", "no GPU", f"driver {driver.version} shows none", cure)
    for number, reason in driver.silent:
        if "permission" in reason.lower():
            yield ok("gpus", f"this user or job may not use GPU {number} ({reason})")
        else:
            cure = "read the driver's messages (NVRM, Xid) in dmesg, and restart the machine"
            yield severe("gpus", f"GPU {number} does not answer", reason, cure)
    if driver.gpus and flavour == "mxnet":
        cure = f"pip uninstall -y mxnet, then {pip_install_command('cu112')}"
        cause = "the installed MXNet is the CPU build"
        yield warning("gpus", "the GPUs are not used", cause, cure)
    if driver.gpus and numbers_of(driver.version) < numbers_of(OLDEST_DRIVER):
        cause = f"CUDA 11 needs {OLDEST_DRIVER} or newer"
        cure = f"install a newer driver ({MORE}); or the CPU build: "
        cure += f"pip uninstall -y {CU112}, {pip_install_command('cpu')}"
        yield severe("gpus", f"driver {driver.version} is too old", cause, cure)


def _no_driver(error: str, flavour: str, has_signs: bool) -> Finding:
    missing, unloaded = "Library Not Found" in error, "Not Loaded" in error and not has_signs
    if flavour != CU112 and not has_signs and (error.startswith(BINDINGS) or missing or unloaded):
        # unloaded: as on a machine without a GPU whose disk was made for all kinds
        none = "NVIDIA's driver is installed, but not loaded" if unloaded else None
        none = none or "there is no NVIDIA driver"
        return ok("gpus", f"no GPU: {none}, and the CPU build needs none")
    if error.startswith(BINDINGS):
        again = "" if error.endswith("not installed") else "--force-reinstall "
        cure = f"pip install {again}{BINDINGS}=={BINDINGS_VERSION}"
        return warning("gpus", "the GPUs were not examined", error, cure)
    if missing:
        cause = "there is no NVIDIA driver (libnvidia-ml.so.1 is missing)"
        cure = f"install the NVIDIA driver, {OLDEST_DRIVER} or newer; "
        return warning("gpus", "no GPU", cause, f"{cure}in a container, start it with --gpus all")
    if unloaded:
        cause = f"NVIDIA's driver is installed, but its kernel module is not loaded ({error})"
        cure = "with a GPU in this machine, modprobe nvidia, or install the driver again; "
        return warning("gpus", "no GPU", cause, f"{cure}without one, CPU devices stand in")
    cause, cure = error, "check nvidia-smi, then restart the machine or install the driver again"
    if "mismatch" in error:
        cause = f"{error}: it was updated while its old kernel module was loaded"
        cure = "restart the machine, or unload and load the kernel module nvidia"
    return fault("gpus", "the driver does not answer", cause, cure)


@listed
def capabilities(
    driver: Driver, flavour: str, environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Which GPUs the wheel has code for; those without are a fault only where CUDA shows them."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    shown, _ = visible_gpus(in_cuda_order(driver.gpus, environ), visible)
    for capability in sorted({gpu.capability for gpu in driver.gpus}):
        gpus = [gpu for gpu in driver.gpus if gpu.capability == capability]
        names, sm = _names(gpus), sm_of(capability)
        if has_code(capability):
            yield ok("capability", f"{names}: {sm}, runs")
            continue
        held = ", ".join(sm_of(code) for code in CODE_FOR)
        age = "newer" if capability > CODE_FOR[-1] else "older"
        cause = f"{CU112} 1.9.1 has no code for it: its machine code is for {held}, "
        cause += f"without PTX, and {sm} is {age} than these"
        severe = fault if flavour == CU112 and any(gpu in shown for gpu in gpus) else warning
        yield severe("capability", f"{names} needs {sm}", cause, f"use {LIVING}; {MORE}")


@listed
def products(driver: Driver, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """How the GPUs that have TF32 multiply float32."""
    able = [gpu for gpu in driver.gpus if gpu.capability >= TF32_SINCE and has_code(gpu.capability)]
    exported = environ.get(TF32_VARIABLE)
    if able and exported in (None, "0"):
        what = f"{_names(able)}: float32 is multiplied exactly, "
        what += "unless --tf32 allows factors rounded to TF32, which is faster"
        yield ok("products", what)
    elif able:
        what = f"{_names(able)}: factors of float32 products may be rounded to TF32"
        cause = f"{TF32_VARIABLE}={exported} is exported: "
        cause += "k GPUs equal one to TF32's precision only, 1e-3"
        yield warning("products", what, cause, f"unset {TF32_VARIABLE}")


@listed
def memory(driver: Driver) -> Iterator[Finding]:
    """How much of each GPU's memory is in use, and by which processes."""
    free = [
        gpu
        for gpu in driver.gpus
        if gpu.used_bytes is not None and gpu.used_bytes * 2 < gpu.memory_bytes
    ]
    for gpu in driver.gpus:
        what = f"GPU {gpu.index}: "
        if gpu.used_bytes is None:
            yield ok("gpu-memory", f"{what}the driver does not report the memory in use")
            continue
        users = ", ".join(
            f"{process.name} ({process.pid}{_amount(process.used_bytes)})"
            for process in gpu.processes
        )
        what += f"{_gib(gpu.used_bytes)} of {_gib(gpu.memory_bytes)} GiB in use"
        what += f" by {users}" if users else ""
        if gpu in free:
            yield ok("gpu-memory", what)
            continue
        cause = "other processes hold it"
        cause += "" if users else "; the driver does not name them, as in containers"
        cure = "end them if they are yours"
        if free:
            others = ",".join(str(other.index) for other in free)
            cure += f", or use others: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={others}"
        yield warning("gpu-memory", what, cause, cure)


def _names(gpus: Iterable[NvmlGpu]) -> str:
    return ", ".join(f"{gpu.name} (GPU {gpu.index})" for gpu in gpus)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"


def _amount(used_bytes: Optional[int]) -> str:
    return "" if used_bytes is None else f", {_gib(used_bytes)} GiB"


@listed
def numbering(driver: Driver, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Which GPU gpu:0 is, and gpu:1, ...: CUDA counts those it is shown, the fastest first."""
    if not driver.gpus:
        return
    visible, last = environ.get("CUDA_VISIBLE_DEVICES"), len(driver.gpus) - 1
    settings = f"CUDA_VISIBLE_DEVICES{' is not set' if visible is None else f'={visible}'}"
    shown, problem = visible_gpus(driver.gpus, visible)
    alike = len({gpu.name for gpu in driver.gpus}) == 1
    if problem:
        what = f"{settings}: {plural(len(shown), 'GPU')} left"
        numbers = f"numbers from 0 to {last}" if last else "0"
        cure = f"give {numbers}, or UUIDs as nvidia-smi -L shows them, each once"
        yield (warning if shown else fault)("numbering", what, problem, cure)
    elif not shown:
        cure = "unset CUDA_VISIBLE_DEVICES"
        yield warning("numbering", f"{settings} hides all GPUs", "", cure)
    elif environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and not alike:
        what = f"gpu:0 may not be nvidia-smi's GPU 0; {settings}"
        cause = "CUDA puts the fastest GPU first, nvidia-smi counts along the PCI bus, "
        cause += "and these GPUs are not alike"
        yield warning("numbering", what, cause, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
        yield from _mig_parts(shown, visible)
    elif any(gpu.parts is not None for gpu in shown):
        yield from _mig_parts(shown, visible)
    else:
        pairs = ", ".join(f"gpu:{i} is GPU {gpu.index}" for i, gpu in enumerate(shown))
        yield ok("numbering", f"{pairs} of nvidia-smi; {settings}")


def _mig_parts(shown: Sequence[NvmlGpu], visible: Optional[str]) -> Iterator[Finding]:
    """GPUs that are divided (MIG), of which CUDA shows a process one part."""
    for gpu in shown:
        whole = f"nvidia-smi -i {gpu.index} -mig 0 makes it whole again"
        if gpu.parts is None:
            continue
        if not gpu.parts:
            what, cause = f"CUDA does not show GPU {gpu.index}", "it is in MIG mode, without parts"
            cure = f"{whole}; nvidia-smi mig -i {gpu.index} -cgi ... -C divides it"
            yield warning("numbering", what, cause, cure)
        elif visible is not None and visible.strip().startswith("MIG-"):
            what = f"gpu:0 is a part (MIG) of GPU {gpu.index} of nvidia-smi; "
            yield ok("numbering", f"{what}CUDA_VISIBLE_DEVICES={visible}")
        else:
            what = f"one part of GPU {gpu.index} is shown, as gpu:0"
            cause = f"it has {len(gpu.parts)} parts (MIG), and CUDA shows a process only one"
            cure = f"choose one: export CUDA_VISIBLE_DEVICES={gpu.parts[0]}; {whole}"
            yield warning("numbering", what, cause, cure)


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
    product = read_kernel_file(machine / "product_name").strip()
    for name in (environ.get("SM_CURRENT_INSTANCE_TYPE", ""), product):
        instance = INSTANCE.fullmatch(name)
        if instance:
            return instance[1]
    # "Xen", "4.11.amazon"
    words = " ".join(
        read_kernel_file(machine / name).strip() for name in ("sys_vendor", "bios_version")
    )
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
