"""The driver and the GPUs against what mxnet-cu112 1.9.1 was built for; who uses their memory; what CUDA calls them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Mapping, Optional, Tuple

from gluonlab.doctor.findings import Finding, fault, ok, warning
from gluonlab.doctor.nvml import Driver, Gpu
from gluonlab.doctor.packages import numbers_of

OLDEST_DRIVER = "450.80.02"  # of CUDA 11.x, NVIDIA's table of minor version compatibility
CODE_FOR = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))  # machine code in mxnet-cu112 1.9.1; no PTX that a driver could compile
CU112 = "mxnet-cu112"
SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))  # of a driver's kernel module
LIVING = "a V100, T4, RTX 20 or 30, A100, A10G or L4 (ml.g4dn, ml.g5, ml.p4d), or CPU devices: --devices 'cpu*2'"


def driver(found: Driver, flavour: str, signs: Tuple[Path, ...] = SIGNS) -> List[Finding]:
    """Whether there is a driver, and new enough for CUDA 11. ``flavour``: the installed MXNet."""
    if found.error:
        return [_no_driver(found.error, flavour, any(sign.exists() for sign in signs))]
    if not found.gpus:
        return [warning("gpus", "no GPU", f"driver {found.version} shows none", "check nvidia-smi; CPU devices stand in for GPUs")]
    lines = [ok("gpus", f"driver {found.version}, {len(found.gpus)} x {', '.join(dict.fromkeys(gpu.name for gpu in found.gpus))}")]
    if flavour == "mxnet":
        cure = "pip uninstall -y mxnet, then pip install 'gluonlab[cu112]'"
        lines.append(warning("gpus", "the GPUs are not used", "the installed MXNet is the CPU build", cure))
    if numbers_of(found.version) < numbers_of(OLDEST_DRIVER):
        cause = f"CUDA 11 needs {OLDEST_DRIVER} or newer"
        cure = "install a newer driver; or the CPU build: pip uninstall -y mxnet-cu112, pip install 'gluonlab[cpu]'"
        lines.append((fault if flavour == CU112 else warning)("gpus", f"driver {found.version} is too old", cause, cure))
    return lines


def _no_driver(error: str, flavour: str, there_is_one: bool) -> Finding:
    if "not installed" in error:
        if not there_is_one and flavour != CU112:
            return ok("gpus", "no GPU: there is no NVIDIA driver, and the CPU build needs none")
        return warning("gpus", "the GPUs were not looked at", error, "pip install nvidia-ml-py==13.615.71")
    if "Library Not Found" in error or "Shared Library" in error or "not found" in error.lower():
        if flavour != CU112 and not there_is_one:
            return ok("gpus", "no GPU: there is no NVIDIA driver, and the CPU build needs none")
        cure = "install the NVIDIA driver, 450.80.02 or newer; in a container, start it with --gpus all"
        return warning("gpus", "no GPU", "there is no NVIDIA driver (libnvidia-ml.so.1 is missing)", cure)
    if "mismatch" in error:
        cure = "restart the machine, or unload and load the kernel module nvidia"
        return fault("gpus", "the driver does not answer", f"{error}: it was updated while its old kernel module was loaded", cure)
    return fault(
        "gpus", "the driver does not answer", error, "check nvidia-smi, then restart the machine or install the driver again"
    )


def capabilities(found: Driver, flavour: str, environ: Mapping[str, str] = os.environ) -> List[Finding]:
    """GPUs that the wheel has no code for are named; they are no fault where CUDA_VISIBLE_DEVICES hides them."""
    lines = []
    shown, _ = visible_gpus(found.gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    for capability in sorted({gpu.capability for gpu in found.gpus}):
        gpus = [gpu for gpu in found.gpus if gpu.capability == capability]
        names, sm = ", ".join(f"{gpu.name} (GPU {gpu.index})" for gpu in gpus), sm_of(capability)
        if has_code(capability):
            lines.append(ok("capability", f"{names}: {sm}, runs"))
            continue
        held = ", ".join(sm_of(code) for code in CODE_FOR)
        age = "newer than" if capability > CODE_FOR[-1] else "older than"
        cause = f"mxnet-cu112 1.9.1 has no code for it: its machine code is for {held}, without PTX, and {sm} is {age} these"
        severe = fault if flavour == CU112 and any(gpu in shown for gpu in gpus) else warning
        lines.append(severe("capability", f"{names} needs {sm}", cause, f"use {LIVING}"))
    return lines


def has_code(capability: Tuple[int, int]) -> bool:
    """Machine code runs on its own major version, from its own minor version on."""
    major, minor = capability
    return any(major == code[0] and minor >= code[1] for code in CODE_FOR)


def sm_of(capability: Tuple[int, int]) -> str:
    """``sm_90`` of (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}"


def memory(found: Driver) -> List[Finding]:
    """What is in use of each GPU's memory, and by which processes."""
    lines = []
    for gpu in found.gpus:
        users = ", ".join(f"{process.name} ({process.pid}{_amount(process.used_bytes)})" for process in gpu.processes)
        what = f"GPU {gpu.index}: {_gib(gpu.used_bytes)} of {_gib(gpu.memory_bytes)} GiB in use" + (f" by {users}" if users else "")
        if gpu.used_bytes * 2 < gpu.memory_bytes:
            lines.append(ok("gpu-memory", what))
            continue
        cause = "other processes hold it" if users else "processes that the driver does not name here hold it, as in containers"
        others = ",".join(str(other.index) for other in found.gpus if other.used_bytes * 2 < other.memory_bytes)
        instead = f", or use others: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={others}" if others else ""
        lines.append(warning("gpu-memory", what, cause, f"end them if they are yours{instead}"))
    return lines


def numbering(found: Driver, environ: Mapping[str, str] = os.environ) -> List[Finding]:
    """Which GPU gpu:0, gpu:1, ... are: CUDA counts those that it is shown, and by default the fastest first."""
    if not found.gpus:
        return []
    order, visible = environ.get("CUDA_DEVICE_ORDER", ""), environ.get("CUDA_VISIBLE_DEVICES")
    alike = len({gpu.name for gpu in found.gpus}) == 1
    shown, unknown = visible_gpus(found.gpus, visible)
    settings = f"CUDA_VISIBLE_DEVICES={visible}" if visible is not None else "CUDA_VISIBLE_DEVICES is not set"
    if unknown is not None:
        cause = f"CUDA stops at {unknown!r}, which is none of the {len(found.gpus)} GPUs here, and hides what follows"
        what = f"{settings}: {len(shown) or 'no'} GPU{'' if len(shown) == 1 else 's'} left"
        cure = f"give numbers from 0 to {len(found.gpus) - 1}, or UUIDs as nvidia-smi -L shows them"
        return [(warning if shown else fault)("numbering", what, cause, cure)]
    if not shown:
        return [warning("numbering", f"{settings} hides all GPUs", "", "unset CUDA_VISIBLE_DEVICES")]
    if order != "PCI_BUS_ID" and not alike:
        cause = "CUDA puts the fastest GPU first, nvidia-smi counts along the PCI bus, and these GPUs are not alike"
        return [
            warning("numbering", f"gpu:0 may not be nvidia-smi's GPU 0; {settings}", cause, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
        ]
    pairs = ", ".join(f"gpu:{i} is GPU {gpu.index}" for i, gpu in enumerate(shown))
    return [ok("numbering", f"{pairs} of nvidia-smi; {settings}")]


def visible_gpus(gpus: Tuple[Gpu, ...], visible: Optional[str]) -> Tuple[List[Gpu], Optional[str]]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets through, and the first word that names none of them, where CUDA stops."""
    if visible is None:
        return list(gpus), None
    shown: List[Gpu] = []
    for word in [word.strip() for word in visible.split(",")] if visible.strip() else []:
        if word.startswith("MIG-") or word == "-1":
            return shown, None  # parts of GPUs, which NVML's numbers do not count; -1 means none
        match = [gpu for gpu in gpus if word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))]
        if len(match) != 1 or match[0] in shown:
            return shown, word
        shown += match
    return shown, None


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"


def _amount(used_bytes: Optional[int]) -> str:
    return "" if used_bytes is None else f", {_gib(used_bytes)} GiB"
