"""Checks of the driver and the GPUs: versions, machine code, memory, numbering and links.

The numbering decides which GPU is gpu:0, which is gpu:1, and so on. It depends on
CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. The links are compared with those of known machines.
``gluonlab.doctor.__main__`` lists the checks that the command runs.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple

from gluonlab.collectives.named_topologies import NVLINK, TOPOLOGIES, Topology, make_topology
from gluonlab.doctor.check_software import parse_version
from gluonlab.doctor.findings import Finding, fault, format_count, ok, returns_list, warning
from gluonlab.engine.mxnet_and_cuda_libraries import has_cuda_build, pip_install_command
from gluonlab.engine.mxnet_setup import TF32_VARIABLE
from gluonlab.gpu.cuda import GPU_CHOICES, SUPPORTED_CAPABILITIES, is_supported, sm_name
from gluonlab.gpu.math_modes import TF32_SINCE
from gluonlab.gpu.nvml import BINDINGS, Driver, NvmlGpu, Pair, sort_in_cuda_order, visible_gpus
from gluonlab.host.resources import read_kernel_file

OLDEST_DRIVER = "450.80.02"  # for CUDA 11.x, by NVIDIA's table of minor version compatibility
CU112 = "mxnet-cu112"
FAQ_HINT = "see gluonlab's docs/faq.md"
BINDINGS_VERSION = "13.615.71"  # as in setup.py
DRIVER_FILES = (
    Path("/proc/driver/nvidia/version"),
    Path("/dev/nvidiactl"),
)  # exist if the driver's kernel module is loaded


@returns_list
def check_driver(driver: Driver, flavor: str, driver_files: Tuple[Path, ...] = DRIVER_FILES) -> Iterator[Finding]:
    """Check that NVIDIA's driver works, and is new enough for CUDA 11.

    ``flavor``: the name of the installed MXNet package. ``driver_files``: files that exist if the
    driver's kernel module is loaded.
    """
    severe = fault if flavor == CU112 else warning
    if driver.error:
        yield _missing_driver(driver.error, flavor, any(file.exists() for file in driver_files))
        return
    if driver.gpus:
        kinds = Counter(gpu.name for gpu in driver.gpus).items()
        listing = ", ".join(f"{count} x {name}" for name, count in kinds)
        yield ok("gpus", f"driver {driver.version}, {listing}")
    elif not driver.unreadable_gpus:
        cure = "check nvidia-smi; until then, gluonlab uses CPU devices"
        yield warning("gpus", "no GPU", f"driver {driver.version} does not list any GPU", cure)
    for number, reason in driver.unreadable_gpus:
        if "permission" in reason.lower():
            yield ok("gpus", f"this user or job does not have access to GPU {number} ({reason})")
        else:
            cure = "read the driver's messages (NVRM, Xid) in dmesg, and restart the machine"
            yield severe("gpus", f"GPU {number} does not answer", reason, cure)
    if driver.gpus and flavor == "mxnet":
        cure = f"pip uninstall -y mxnet, then {pip_install_command('cu112')}"
        cause = "the installed MXNet is the CPU build"
        if not has_cuda_build():
            cause, cure = "MXNet has CUDA builds only for Linux on x86-64", "train on CPU devices, or use x86-64"
        yield warning("gpus", "the GPUs are not used", cause, cure)
    if driver.gpus and parse_version(driver.version) < parse_version(OLDEST_DRIVER):
        cause = f"CUDA 11 needs {OLDEST_DRIVER} or newer"
        cure = f"install a newer driver ({FAQ_HINT}); or the CPU build: "
        cure += f"pip uninstall -y {CU112}, {pip_install_command('cpu')}"
        yield severe("gpus", f"driver {driver.version} is too old", cause, cure)


def _missing_driver(error: str, flavor: str, has_files: bool) -> Finding:
    """Return the finding for a driver that is missing or does not answer."""
    missing, unloaded = "Library Not Found" in error, "Not Loaded" in error and not has_files
    if flavor != CU112 and not has_files and (error.startswith(BINDINGS) or missing or unloaded):
        # a disk image for all machines contains the driver even on a machine without a GPU
        reason = "no NVIDIA driver is installed"
        if unloaded:
            reason = "NVIDIA's driver is installed, but not loaded"
        return ok("gpus", f"no GPU: {reason}; the CPU build of MXNet does not need one")
    if error.startswith(BINDINGS):
        option = "" if error.endswith("not installed") else "--force-reinstall "
        cure = f"pip install {option}{BINDINGS}=={BINDINGS_VERSION}"
        return warning("gpus", "the GPUs were not examined", error, cure)
    if missing:
        cause = "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing)"
        cure = f"install the NVIDIA driver, {OLDEST_DRIVER} or newer; "
        return warning("gpus", "no GPU", cause, f"{cure}in a container, start it with --gpus all")
    if unloaded:
        cause = f"NVIDIA's driver is installed, but its kernel module is not loaded ({error})"
        cure = "if this machine has a GPU, run modprobe nvidia, or install the driver again; "
        return warning("gpus", "no GPU", cause, f"{cure}without a GPU, gluonlab uses CPU devices")
    cause, cure = error, "check nvidia-smi, then restart the machine or install the driver again"
    if "mismatch" in error:
        cause = f"{error}: it was updated while its old kernel module was loaded"
        cure = "restart the machine, or unload and load the kernel module nvidia"
    return fault("gpus", "the driver does not answer", cause, cure)


@returns_list
def check_capabilities(driver: Driver, flavor: str, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check that MXNet has machine code for the GPUs.

    If MXNet has no machine code for a GPU, the finding is a fault if CUDA shows the GPU, and
    otherwise a warning.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    shown, _ = visible_gpus(sort_in_cuda_order(driver.gpus, environ), visible)
    for capability in sorted({gpu.capability for gpu in driver.gpus}):
        gpus = [gpu for gpu in driver.gpus if gpu.capability == capability]
        names, sm = _format_gpus(gpus), sm_name(capability)
        if is_supported(capability):
            yield ok("capability", f"{names}: {sm}, runs")
            continue
        supported = ", ".join(sm_name(code) for code in SUPPORTED_CAPABILITIES)
        age = "newer" if capability > SUPPORTED_CAPABILITIES[-1] else "older"
        cause = f"{CU112} 1.9.1 does not support it: its machine code is for {supported}, "
        cause += f"without PTX, and {sm} is {age} than these"
        severe = fault if flavor == CU112 and any(gpu in shown for gpu in gpus) else warning
        yield severe("capability", f"{names} needs {sm}", cause, f"use {GPU_CHOICES}; {FAQ_HINT}")


@returns_list
def check_tf32(driver: Driver, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report whether GPUs with TF32 multiply float32 numbers exactly or round them to TF32."""
    tf32_gpus = [gpu for gpu in driver.gpus if gpu.capability >= TF32_SINCE and is_supported(gpu.capability)]
    exported = environ.get(TF32_VARIABLE)
    if tf32_gpus and exported in (None, "0"):
        what = f"{_format_gpus(tf32_gpus)}: float32 products are exact, "
        what += "unless --tf32 allows rounding to TF32, which is faster"
        yield ok("products", what)
    elif tf32_gpus:
        what = f"{_format_gpus(tf32_gpus)}: factors of float32 products may be rounded to TF32"
        cause = f"{TF32_VARIABLE}={exported} is exported: "
        cause += "results of k GPUs and of one GPU agree only to TF32's precision, 1e-3"
        yield warning("products", what, cause, f"unset {TF32_VARIABLE}")


@returns_list
def check_gpu_memory(driver: Driver) -> Iterator[Finding]:
    """Report each GPU's memory use, and the processes that use the memory."""
    free = [gpu for gpu in driver.gpus if gpu.used_bytes is not None and gpu.used_bytes * 2 < gpu.memory_bytes]
    for gpu in driver.gpus:
        what = f"GPU {gpu.index}: "
        if gpu.used_bytes is None:
            yield ok("gpu-memory", f"{what}the driver does not report the memory in use")
            continue
        users = ", ".join(
            f"{process.name} ({process.pid}{_format_used(process.used_bytes)})" for process in gpu.processes
        )
        what += f"{_format_gib(gpu.used_bytes)} of {_format_gib(gpu.memory_bytes)} GiB in use"
        what += f" by {users}" if users else ""
        if gpu in free:
            yield ok("gpu-memory", what)
            continue
        cause = "other processes use it"
        cause += "" if users else "; the driver does not name them, as in containers"
        cure = "stop them if they are yours"
        if free:
            others = ",".join(str(other.index) for other in free)
            cure += f", or use other GPUs: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={others}"
        yield warning("gpu-memory", what, cause, cure)


def _format_gpus(gpus: Iterable[NvmlGpu]) -> str:
    return ", ".join(f"{gpu.name} (GPU {gpu.index})" for gpu in gpus)


def _format_gib(count: int) -> str:
    return f"{count / 2**30:.1f}"


def _format_used(used_bytes: Optional[int]) -> str:
    return "" if used_bytes is None else f", {_format_gib(used_bytes)} GiB"


@returns_list
def check_gpu_order(driver: Driver, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report which GPU is gpu:0, gpu:1, ...; by default, CUDA numbers the fastest GPU first."""
    if not driver.gpus:
        return
    visible, last = environ.get("CUDA_VISIBLE_DEVICES"), len(driver.gpus) - 1
    settings = f"CUDA_VISIBLE_DEVICES{' is not set' if visible is None else f'={visible}'}"
    shown, problem = visible_gpus(driver.gpus, visible)
    same_model = len({gpu.name for gpu in driver.gpus}) == 1
    if problem:
        what = f"{settings}: {format_count(len(shown), 'GPU')} left"
        numbers = f"numbers from 0 to {last}" if last else "0"
        cure = f"use {numbers}, or UUIDs from nvidia-smi -L, each only once"
        yield (warning if shown else fault)("numbering", what, problem, cure)
    elif not shown:
        cure = "unset CUDA_VISIBLE_DEVICES"
        yield warning("numbering", f"{settings} hides all GPUs", "", cure)
    elif environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and not same_model:
        what = f"gpu:0 may not be nvidia-smi's GPU 0; {settings}"
        cause = "CUDA puts the fastest GPU first, nvidia-smi counts along the PCI bus, "
        cause += "and these GPUs are of different models"
        yield warning("numbering", what, cause, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
        yield from _check_mig_parts(shown, visible)
    elif any(gpu.parts is not None for gpu in shown):
        yield from _check_mig_parts(shown, visible)
    else:
        pairs = ", ".join(f"gpu:{i} is GPU {gpu.index}" for i, gpu in enumerate(shown))
        yield ok("numbering", f"{pairs} of nvidia-smi; {settings}")


def _check_mig_parts(shown: Sequence[NvmlGpu], visible: Optional[str]) -> Iterator[Finding]:
    """Report GPUs in MIG mode. CUDA shows only one MIG device to a process."""
    for gpu in shown:
        whole = f"nvidia-smi -i {gpu.index} -mig 0 switches MIG off"
        if gpu.parts is None:
            continue
        if not gpu.parts:
            what, cause = f"CUDA does not show GPU {gpu.index}", "it is in MIG mode, but has no partitions"
            cure = f"{whole}; nvidia-smi mig -i {gpu.index} -cgi ... -C partitions it"
            yield warning("numbering", what, cause, cure)
        elif visible is not None and visible.strip().startswith("MIG-"):
            what = f"gpu:0 is a MIG partition of nvidia-smi's GPU {gpu.index}; "
            yield ok("numbering", f"{what}CUDA_VISIBLE_DEVICES={visible}")
        else:
            what = f"only one partition of GPU {gpu.index} is visible, as gpu:0"
            cause = f"it has {len(gpu.parts)} MIG partitions, but CUDA shows a process only one"
            cure = f"choose one: export CUDA_VISIBLE_DEVICES={gpu.parts[0]}; {whole}"
            yield warning("numbering", what, cause, cure)


# (GPU model, number of GPUs) -> instance type, for Amazon's machines of unknown type. 8 x
# V100-SXM2-32GB is p3dn.24xlarge, which has the same links as p3.16xlarge.
INSTANCE_BY_GPUS = {
    ("V100", 8): "p3.16xlarge",
    ("V100", 4): "p3.8xlarge",
    ("T4", 4): "g4dn.12xlarge",
    ("A10G", 4): "g5.12xlarge",
}
SWITCHED_INSTANCES = ("p4d.24xlarge",)  # all NVLinks go to switches
# product_name contains the type on EC2's Nitro machines, but not on older ones
DMI_FOLDER = Path("/sys/devices/virtual/dmi/id")
INSTANCE_PATTERN = re.compile(r"(?:ml\.)?([a-z]+\d+[a-z]*\.(?:\d*x?large|metal))")
LINKS_CURE = "compare with nvidia-smi topo -m; "
LINKS_CURE += "stop and start the instance to get another machine"


def instance_type(environ: Mapping[str, str], dmi_folder: Path = DMI_FOLDER) -> Optional[str]:
    """Return the EC2 instance type, such as ``p3.16xlarge``.

    Return "" for an Amazon machine of unknown type, and None for other machines.
    """
    product = read_kernel_file(dmi_folder / "product_name").strip()
    for name in (environ.get("SM_CURRENT_INSTANCE_TYPE", ""), product):
        instance = INSTANCE_PATTERN.fullmatch(name)
        if instance:
            return instance[1]
    # "Xen", "4.11.amazon"
    words = " ".join(read_kernel_file(dmi_folder / name).strip() for name in ("sys_vendor", "bios_version"))
    return "" if "amazon" in words.lower() else None


def known_topology(driver: Driver, instance: Optional[str]) -> Optional[Topology]:
    """Return the topology of the instance type, or None if it is unknown.

    If ``instance`` is "", the type is guessed from the GPUs.
    """
    if instance in TOPOLOGIES:
        return make_topology(instance)
    kinds = {word for gpu in driver.gpus for word in re.split(r"[ -]", gpu.name)}
    for (kind, count), name in INSTANCE_BY_GPUS.items():
        if instance == "" and kind in kinds and count == len(driver.gpus):
            return make_topology(name)
    return None


def topology_nvlinks(topology: Topology) -> Dict[Pair, int]:
    """Return the number of NVLinks for each pair (a, b), a < b, that has NVLinks."""
    routes = {pair: route.links[0] for pair, route in topology.routes.items() if pair[0] < pair[1]}
    return {pair: round(link.bytes_per_s / NVLINK) for pair, link in routes.items() if link.name.startswith("NVLink")}


def format_nvlinks(nvlinks: Mapping[Pair, int]) -> str:
    """Return text such as ``0-1: 1, 0-3: 2``."""
    return ", ".join(f"{a}-{b}: {count}" for (a, b), count in sorted(nvlinks.items()))


def find_renumbering(
    nvlinks: Mapping[Pair, int], expected: Mapping[Pair, int], count: int
) -> Optional[Tuple[int, ...]]:
    """Find an order of ``count`` GPUs whose NVLinks match those of a known machine, or None.

    ``nvlinks`` and ``expected``: the number of NVLinks between each pair of GPUs on this machine
    and on the known machine. In the returned order, ``order[r]`` is this machine's GPU that
    corresponds to GPU r of the known machine. The numbers of the two GPUs may differ, because NVML
    numbers GPUs along the PCI bus.
    """

    def links(table: Mapping[Pair, int], a: int, b: int) -> int:
        return table.get((min(a, b), max(a, b)), 0)

    def extend(order: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
        """Return the first complete order that begins with ``order``, by backtracking."""
        rank = len(order)
        if rank == count:
            return order
        candidates = (
            gpu
            for gpu in range(count)
            if gpu not in order and all(links(nvlinks, gpu, order[r]) == links(expected, rank, r) for r in range(rank))
        )
        return next((whole for whole in (extend((*order, gpu)) for gpu in candidates) if whole), None)

    return extend(())


@returns_list
def check_links(driver: Driver, instance: Optional[str]) -> Iterator[Finding]:
    """Check the NVLinks and the peer access between all pairs of GPUs."""
    if len(driver.gpus) > 1:
        yield _check_nvlinks(driver, known_topology(driver, instance))
        yield _check_peers(driver)


def _check_nvlinks(driver: Driver, topology: Optional[Topology]) -> Finding:
    """Report the GPUs' NVLinks; warn if they differ from those in ``topology``."""
    nvlinks, count = driver.nvlinks, len(driver.gpus)
    switched = ", ".join(map(str, driver.nvswitch_gpus))
    needs_switches = topology is not None and topology.name in SWITCHED_INSTANCES and not driver.unreadable_gpus
    if topology is not None and needs_switches and len(driver.nvswitch_gpus) < count:
        connected = f"GPUs {switched} only" if switched else "no GPU"
        what = f"NVLinks to switches on {connected}, but {topology.name} has them on all {count}"
        return warning("links", what, "links are down", LINKS_CURE)
    if driver.nvswitch_gpus:
        return ok("links", f"NVLinks to switches on GPUs {switched}")
    what = "no NVLinks between the GPUs, all traffic goes over PCIe"
    what = f"NVLinks {format_nvlinks(nvlinks)}" if nvlinks else what
    if topology is None or topology.world_size != count or driver.unreadable_gpus:
        return ok("links", what)
    expected = topology_nvlinks(topology)
    order = find_renumbering(nvlinks, expected, count)
    if order is not None:
        numbers = f", whose GPUs 0, 1, ... are {', '.join(map(str, order))} here"
        same = order == tuple(range(count))
        return ok("links", f"{what}, as {topology.name} has{'' if same else numbers}")
    pairs = sorted({*expected, *nvlinks})
    counts = {pair: (nvlinks.get(pair, 0), expected.get(pair, 0)) for pair in pairs}
    differences = ", ".join(
        f"{a}-{b} has {actual} instead of {required}"
        for (a, b), (actual, required) in counts.items()
        if actual != required
    )
    cause = f"this is another machine; {topology.note.split(';')[0]}"
    cause = "links are down" if sum(nvlinks.values()) < sum(expected.values()) else cause
    what = f"NVLinks differ from {topology.name}: {differences}"
    return warning("links", what, cause, LINKS_CURE)


def _check_peers(driver: Driver) -> Finding:
    """Report the pairs of GPUs without peer-to-peer access; warn if NVLinks connect such a pair."""
    count = len(driver.gpus)
    if not driver.pairs_without_access:
        return ok("peers", f"peer-to-peer access between all {count * (count - 1) // 2} pairs")
    pairs = ", ".join(f"{a}-{b}" for a, b in driver.pairs_without_access)
    what = f"no peer-to-peer access between {pairs}"
    if not any(pair in driver.nvlinks for pair in driver.pairs_without_access):
        # this is normal for GPUs below different CPUs
        return ok("peers", f"{what}: their copies go through the host")
    cause = "the driver denies it, although there are NVLinks"
    cure = "in a virtual machine or container, allow the GPUs direct access to each other; "
    return warning("peers", what, cause, f"{cure}see dmesg for the IOMMU")
