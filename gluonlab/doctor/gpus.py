"""The driver and the GPUs, beside what mxnet-cu112 1.9.1 was built for; who uses their memory."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Iterable, Iterator, Mapping, Optional, Tuple

from gluonlab.doctor.findings import Finding, fault, listed, ok, warning
from gluonlab.doctor.packages import numbers_of
from gluonlab.engine.installation import pip_install
from gluonlab.engine.setup import TF32_VARIABLE
from gluonlab.gpu.arithmetic import TF32_SINCE
from gluonlab.gpu.code import CODE_FOR, LIVING, has_code, sm_of
from gluonlab.gpu.nvml import BINDINGS, Driver, Gpu
from gluonlab.gpu.visible import in_cuda_order, visible_gpus

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
        cure = f"pip uninstall -y mxnet, then {pip_install('cu112')}"
        cause = "the installed MXNet is the CPU build"
        yield warning("gpus", "the GPUs are not used", cause, cure)
    if driver.gpus and numbers_of(driver.version) < numbers_of(OLDEST_DRIVER):
        cause = f"CUDA 11 needs {OLDEST_DRIVER} or newer"
        cure = f"install a newer driver ({MORE}); or the CPU build: "
        cure += f"pip uninstall -y {CU112}, {pip_install('cpu')}"
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


def _names(gpus: Iterable[Gpu]) -> str:
    return ", ".join(f"{gpu.name} (GPU {gpu.index})" for gpu in gpus)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"


def _amount(used_bytes: Optional[int]) -> str:
    return "" if used_bytes is None else f", {_gib(used_bytes)} GiB"
