"""The driver and the GPUs against what mxnet-cu112 1.9.1 was built for; who uses their memory."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import List, Mapping, Optional, Tuple

from gluonlab.doctor.findings import Finding, fault, ok, warning
from gluonlab.doctor.packages import numbers_of
from gluonlab.engine.installing import pip_install
from gluonlab.engine.setup import TF32_VARIABLE
from gluonlab.gpu.arithmetic import TF32_SINCE
from gluonlab.gpu.code import CODE_FOR, LIVING, has_code, sm_of
from gluonlab.gpu.nvml import BINDINGS, Driver
from gluonlab.gpu.visible import in_cuda_order, visible_gpus

OLDEST_DRIVER = "450.80.02"  # of CUDA 11.x, NVIDIA's table of minor version compatibility
CU112 = "mxnet-cu112"
BINDINGS_VERSION = "13.615.71"  # setup.py's
SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))  # of a driver's kernel module


def driver(found: Driver, flavour: str, signs: Tuple[Path, ...] = SIGNS) -> List[Finding]:
    """Whether there is a driver, and new enough for CUDA 11. ``flavour``: the installed MXNet."""
    if found.error:
        return [_no_driver(found.error, flavour, any(sign.exists() for sign in signs))]
    lines = [_silent(number, reason, flavour) for number, reason in found.silent]
    if not found.gpus:
        none = warning(
            "gpus",
            "no GPU",
            f"driver {found.version} shows none",
            "check nvidia-smi; CPU devices stand in for GPUs",
        )
        return lines or [none]
    kinds = ", ".join(
        f"{count} x {name}" for name, count in Counter(gpu.name for gpu in found.gpus).items()
    )
    lines.insert(0, ok("gpus", f"driver {found.version}, {kinds}"))
    if flavour == "mxnet":
        cure = f"pip uninstall -y mxnet, then {pip_install('cu112')}"
        lines.append(
            warning("gpus", "the GPUs are not used", "the installed MXNet is the CPU build", cure)
        )
    if numbers_of(found.version) < numbers_of(OLDEST_DRIVER):
        cause = f"CUDA 11 needs {OLDEST_DRIVER} or newer"
        cure = (
            "install a newer driver; or the CPU build: "
            f"pip uninstall -y mxnet-cu112, {pip_install('cpu')}"
        )
        lines.append(
            (fault if flavour == CU112 else warning)(
                "gpus", f"driver {found.version} is too old", cause, cure
            )
        )
    return lines


def _silent(number: int, reason: str, flavour: str) -> Finding:
    """A GPU that is there, but does not answer."""
    if "permission" in reason.lower():
        return ok("gpus", f"GPU {number} is not for this user or job ({reason})")
    cure = "look into dmesg for what the driver says (NVRM, Xid), and restart the machine"
    return (fault if flavour == CU112 else warning)(
        "gpus", f"GPU {number} does not answer", reason, cure
    )


def _no_driver(error: str, flavour: str, there_is_one: bool) -> Finding:
    needs_none = flavour != CU112 and not there_is_one
    if error.startswith(BINDINGS):
        if needs_none:
            return ok("gpus", "no GPU: there is no NVIDIA driver, and the CPU build needs none")
        again = "" if error.endswith("not installed") else "--force-reinstall "
        return warning(
            "gpus",
            "the GPUs were not looked at",
            error,
            f"pip install {again}{BINDINGS}=={BINDINGS_VERSION}",
        )
    if "Library Not Found" in error:
        if needs_none:
            return ok("gpus", "no GPU: there is no NVIDIA driver, and the CPU build needs none")
        cure = (
            "install the NVIDIA driver, 450.80.02 or newer; "
            "in a container, start it with --gpus all"
        )
        return warning(
            "gpus", "no GPU", "there is no NVIDIA driver (libnvidia-ml.so.1 is missing)", cure
        )
    # as on a machine without a GPU whose disk was made for all kinds
    if "Not Loaded" in error and not there_is_one:
        if needs_none:
            return ok(
                "gpus",
                "no GPU: NVIDIA's driver is installed and not loaded, and the CPU build needs none",
            )
        cure = (
            "with a GPU in this machine, modprobe nvidia, or install the driver again; "
            "without one, CPU devices stand in"
        )
        return warning(
            "gpus",
            "no GPU",
            f"NVIDIA's driver is installed, but its kernel module is not loaded ({error})",
            cure,
        )
    if "mismatch" in error:
        cure = "restart the machine, or unload and load the kernel module nvidia"
        return fault(
            "gpus",
            "the driver does not answer",
            f"{error}: it was updated while its old kernel module was loaded",
            cure,
        )
    return fault(
        "gpus",
        "the driver does not answer",
        error,
        "check nvidia-smi, then restart the machine or install the driver again",
    )


def capabilities(
    found: Driver, flavour: str, environ: Mapping[str, str] = os.environ
) -> List[Finding]:
    """GPUs that the wheel has no code for are named; they are no fault where CUDA_VISIBLE_DEVICES
    hides them.
    """
    lines = []
    shown, _ = visible_gpus(in_cuda_order(found.gpus, environ), environ.get("CUDA_VISIBLE_DEVICES"))
    for capability in sorted({gpu.capability for gpu in found.gpus}):
        gpus = [gpu for gpu in found.gpus if gpu.capability == capability]
        names, sm = ", ".join(f"{gpu.name} (GPU {gpu.index})" for gpu in gpus), sm_of(capability)
        if has_code(capability):
            lines.append(ok("capability", f"{names}: {sm}, runs"))
            continue
        held = ", ".join(sm_of(code) for code in CODE_FOR)
        age = "newer than" if capability > CODE_FOR[-1] else "older than"
        cause = (
            f"mxnet-cu112 1.9.1 has no code for it: its machine code is for {held}, "
            f"without PTX, and {sm} is {age} these"
        )
        severe = fault if flavour == CU112 and any(gpu in shown for gpu in gpus) else warning
        lines.append(severe("capability", f"{names} needs {sm}", cause, f"use {LIVING}"))
    return lines


def products(found: Driver, environ: Mapping[str, str] = os.environ) -> List[Finding]:
    """How GPUs that have TF32 multiply float32; nothing of those that have not."""
    able = [gpu for gpu in found.gpus if gpu.capability >= TF32_SINCE and has_code(gpu.capability)]
    if not able:
        return []
    names, exported = (
        ", ".join(f"{gpu.name} (GPU {gpu.index})" for gpu in able),
        environ.get(TF32_VARIABLE),
    )
    if exported in (None, "0"):
        return [
            ok(
                "products",
                f"{names}: float32 is multiplied exactly, "
                "unless --tf32 allows factors rounded to TF32, which is faster",
            )
        ]
    cause = (
        f"{TF32_VARIABLE}={exported} is exported: k GPUs equal one to TF32's precision only, 1e-3"
    )
    return [
        warning(
            "products",
            f"{names}: factors of float32 products may be rounded to TF32",
            cause,
            f"unset {TF32_VARIABLE}",
        )
    ]


def memory(found: Driver) -> List[Finding]:
    """What is in use of each GPU's memory, and by which processes."""
    lines = []
    free = [
        gpu
        for gpu in found.gpus
        if gpu.used_bytes is not None and gpu.used_bytes * 2 < gpu.memory_bytes
    ]
    for gpu in found.gpus:
        if gpu.used_bytes is None:
            lines.append(
                ok("gpu-memory", f"GPU {gpu.index}: the driver does not tell what is in use")
            )
            continue
        users = ", ".join(
            f"{process.name} ({process.pid}{_amount(process.used_bytes)})"
            for process in gpu.processes
        )
        what = f"GPU {gpu.index}: {_gib(gpu.used_bytes)} of {_gib(gpu.memory_bytes)} GiB in use" + (
            f" by {users}" if users else ""
        )
        if gpu in free:
            lines.append(ok("gpu-memory", what))
            continue
        cause = (
            "other processes hold it"
            if users
            else "processes that the driver does not name here hold it, as in containers"
        )
        others = ",".join(str(other.index) for other in free)
        instead = (
            f", or use others: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={others}"
            if others
            else ""
        )
        lines.append(warning("gpu-memory", what, cause, f"end them if they are yours{instead}"))
    return lines


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"


def _amount(used_bytes: Optional[int]) -> str:
    return "" if used_bytes is None else f", {_gib(used_bytes)} GiB"
