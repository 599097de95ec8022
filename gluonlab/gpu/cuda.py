"""What CUDA is asked through libmxnet.so: direct copies between GPUs, and what GPUs they are.

CUDA copies from one GPU to another directly only where the one was given access to the other's
memory; all else goes through the host. MXNet 1.9.1 asks for that access in one place, when a
``device`` store first sums (EnableP2P of src/kvstore/comm.h). So every other copy of MXNet's, which
are those of schedules, of graphs of several devices and of arrays by hand, was direct or not by
what the process had done before. Here it is asked for once, for the devices that arrays lie on.

What is asked is the CUDA runtime that libmxnet.so itself has loaded. Access is a matter of the
process: it holds for all threads, and until the end.

mxnet-cu112 1.9.1 has code for some GPUs only. On others MXNet ends the process, or fails at its
first operator with "no kernel image is available for execution on the device", after data sets have
been read: `check_code` looks before anything is put on one.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from itertools import combinations, permutations
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from gluonlab.engine import mxnet_setup
from gluonlab.errors import DeviceError

Pair = Tuple[int, int]
SUCCESS = 0  # of cudaError_t

_asked: Set[Pair] = set()  # CUDA takes it once, and so does a process


def enable_peer_access(ctxs: Sequence[Any]) -> None:
    """Let the GPUs among ``ctxs`` (mx.Context) copy to each other directly, where CUDA can do it.

    A pair that cannot is no error: its copies go through the host. Nothing is done for CPU devices,
    nor under MXNET_ENABLE_GPU_P2P=0. Each GPU gets its CUDA context here, if it has none yet.
    """
    numbers = gpu_numbers(ctxs)
    wanted = [pair for pair in permutations(numbers, 2) if pair not in _asked]
    if not wanted or not mxnet_setup.is_peer_access_allowed():
        return
    cuda = _runtime()
    with _device_restored(cuda):
        for device, other in wanted:
            if _can_access(cuda, device, other):
                status = cuda.cudaSetDevice(device) or cuda.cudaDeviceEnablePeerAccess(other, 0)
                if status != SUCCESS:
                    # It would stay with this thread, for whoever asks next whether all was well.
                    cuda.cudaGetLastError()
    _asked.update(wanted)


def peer_pairs(ctxs: Sequence[Any]) -> List[Pair]:
    """The pairs of GPUs (a, b), a < b, that CUDA lets copy to each other directly.

    They are as MXNet numbers them. None under MXNET_ENABLE_GPU_P2P=0. No GPU gets a CUDA context.
    """
    numbers = sorted(gpu_numbers(ctxs))
    if len(numbers) < 2 or not mxnet_setup.is_peer_access_allowed():
        return []
    cuda = _runtime()
    return [
        (a, b)
        for a, b in combinations(numbers, 2)
        if _can_access(cuda, a, b) and _can_access(cuda, b, a)
    ]


def peers_in_words(ctxs: Sequence[Any]) -> str:
    """One line for people; empty for fewer than two GPUs."""
    return peer_words(gpu_numbers(ctxs), peer_pairs(ctxs), mxnet_setup.is_peer_access_allowed())


def peer_words(numbers: Sequence[int], pairs: Sequence[Pair], wanted: bool = True) -> str:
    """`peers_in_words`, of GPUs by their numbers and of the pairs that have access."""
    count = len(numbers) * (len(numbers) - 1) // 2
    if not count:
        return ""
    if not wanted:
        return "all copies between GPUs go through the host, because MXNET_ENABLE_GPU_P2P=0 is set"
    if not pairs:
        return "no two GPUs have access to each other's memory: all copies go through the host"
    if len(pairs) == count:
        return f"copies between GPUs are direct, {count} of {count} pairs"
    able = " ".join(f"{a}-{b}" for a, b in sorted(pairs))
    through_host = "the others go through the host"
    return (
        f"copies between GPUs are direct for {len(pairs)} of {count} pairs, {able}; {through_host}"
    )


def pci_bus_ids(ctxs: Sequence[Any]) -> List[str]:
    """Where each GPU sits, as ``0000:00:1b.0``: the same whatever CUDA or NVML number it by."""
    cuda, found = _runtime(), []
    for number in gpu_numbers(ctxs):
        text = ctypes.create_string_buffer(32)
        told = cuda.cudaDeviceGetPCIBusId(text, len(text), number) == SUCCESS
        found.append(text.value.decode("ascii", "replace").lower() if told else "")
    return found


def gpu_numbers(ctxs: Sequence[Any]) -> List[int]:
    """The GPUs among ``ctxs``, by MXNet's numbers, each once."""
    return list(dict.fromkeys(ctx.device_id for ctx in ctxs if ctx.device_type == "gpu"))


def _runtime() -> Any:
    """The functions of libcudart, found through libmxnet.so, which needs it."""
    import mxnet as mx

    return mx.base._LIB


def _can_access(cuda: Any, device: int, other: int) -> bool:
    able = ctypes.c_int(0)
    told = cuda.cudaDeviceCanAccessPeer(ctypes.byref(able), device, other) == SUCCESS
    if not told:
        cuda.cudaGetLastError()
    return told and bool(able.value)


@contextmanager
def _device_restored(cuda: Any) -> Iterator[None]:
    """This thread's current GPU is afterwards what it was."""
    before = ctypes.c_int(0)
    cuda.cudaGetDevice(ctypes.byref(before))
    try:
        yield
    finally:
        cuda.cudaSetDevice(before.value)


# Machine code in the wheel (read from its fat binaries); no PTX that a driver could compile.
CODE_FOR = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
CPU_DEVICES = "CPU devices: --devices 'cpu*2'"
LIVING = (
    f"a V100, T4, RTX 20 or 30, A100, A10G or L4 (ml.g4dn, ml.g5, ml.g6, ml.p4d), or {CPU_DEVICES}"
)
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
