"""Which GPUs mxnet-cu112 1.9.1 has code for, and the check before anything is put on one.

On others MXNet ends the process, or fails at its first operator with "no kernel image is available
for execution on the device", after data sets have been read.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional, Sequence, Tuple

from gluonlab.errors import DeviceError
from gluonlab.gpu.peers import gpu_numbers

# Machine code in the wheel (read from its fat binaries); no PTX that a driver could compile.
CODE_FOR = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
CPU_DEVICES = "CPU devices: --devices 'cpu*2'"
LIVING = (
    f"a V100, T4, RTX 20 or 30, A100, A10G or L4 (ml.g4dn, ml.g5, ml.g6, ml.p4d), or {CPU_DEVICES}"
)
SUCCESS = 0
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


class NoCode(DeviceError):
    """A GPU that this MXNet has no code for."""


class Kind(NamedTuple):
    """A GPU as the driver names it: ``NVIDIA A10G``, (8, 6)."""

    name: str
    capability: Tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name} ({sm_of(self.capability)})"


def has_code(capability: Tuple[int, int]) -> bool:
    """Machine code runs on its own major version, from its own minor version on."""
    major, minor = capability
    return any(major == code[0] and minor >= code[1] for code in CODE_FOR)


def sm_of(capability: Tuple[int, int]) -> str:
    """``sm_90`` of (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}"


def check_code(ctxs: Sequence[Any], count: int) -> None:
    """Raise NoCode for the GPUs among ``ctxs`` (mx.Context) that the wheel has no code for.

    ``count``: how many GPUs CUDA shows here. No GPU gets a CUDA context.
    """
    problem = lacking(gpu_numbers(ctxs), count)
    if problem:
        raise NoCode(problem)


def lacking(numbers: Sequence[int], count: int) -> str:
    """One line on those of the GPUs ``numbers`` that cannot compute here; empty if all can."""
    kinds = {number: kind_of(number) for number in numbers}
    unable = {gpu: kind for gpu, kind in kinds.items() if kind and not has_code(kind.capability)}
    if not unable:
        return ""
    first = next(iter(unable.values()))
    alike = [number for number, kind in unable.items() if kind == first]
    able = [number for number in range(count) if number not in unable and _computes(number)]
    held = ", ".join(sm_of(code) for code in CODE_FOR)
    cure = f"{_named(able, 'or')} of this machine, or {CPU_DEVICES}" if able else LIVING
    verb = "is" if len(alike) == 1 else "are each"
    are = f"{_named(alike, 'and')} {verb} {_article(first.name)} {first}"
    return f"{are}, and mxnet-cu112 1.9.1 has code only for {held}: use {cure}"


def _named(numbers: Sequence[int], last: str) -> str:
    """``gpu:0, gpu:1 and gpu:2``"""
    *others, end = [f"gpu:{number}" for number in numbers]
    return f"{', '.join(others)} {last} {end}" if others else end


def _article(name: str) -> str:
    return "an" if name.startswith(("NVIDIA", "A", "E", "I", "O", "U")) else "a"


def _computes(number: int) -> bool:
    kind = kind_of(number)
    return kind is not None and has_code(kind.capability)


def kind_of(number: int) -> Optional[Kind]:
    """The kind of gpu:``number``, from the driver that libmxnet.so has loaded; None if it fails."""
    import mxnet as mx

    # a look-up in libmxnet.so goes on in the libraries that it needs
    driver, device = mx.base._LIB, ctypes.c_int()
    try:
        if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number):
            return None  # CUDA_SUCCESS is 0
        capability = [_attribute(driver, attribute, device) for attribute in (MAJOR, MINOR)]
        name = ctypes.create_string_buffer(256)
        driver.cuDeviceGetName(name, len(name), device)
    except AttributeError:  # MXNet's CPU build
        return None
    major, minor = capability
    if major is None or minor is None:
        return None
    return Kind(name.value.decode("utf-8", "replace"), (major, minor))


def _attribute(driver: Any, attribute: int, device: ctypes.c_int) -> Optional[int]:
    value = ctypes.c_int()
    told = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == SUCCESS
    return value.value if told else None
