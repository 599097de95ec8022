"""Queries CUDA through libmxnet.so: peer access between GPUs, and GPU models.

CUDA copies directly from one GPU to another only if the first has access to the other's memory. All
other copies go through the host. MXNet 1.9.1 enables access in only one place, when a ``device``
store first sums arrays (EnableP2P in src/kvstore/comm.h). Without `enable_peer_access`, allreduce
schedules and graphs on several devices would copy directly only if a ``device`` store had summed
arrays earlier in the process. `enable_peer_access` enables access between the devices in its
argument, once for each pair.

The module calls the CUDA runtime that libmxnet.so has loaded. Access stays enabled for all threads
until the process ends.

mxnet-cu112 1.9.1 contains machine code for only some GPUs. On other GPUs, MXNet ends the process,
or fails at its first operator with "no kernel image is available for execution on the device". By
then, time has been wasted on reading data sets. So `check_gpus_supported` raises an error before
any array is created on a GPU.
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

_requested_pairs: Set[Pair] = set()  # CUDA accepts each pair only once per process


def enable_peer_access(ctxs: Sequence[Any]) -> None:
    """Enable direct copies between the GPUs in ``ctxs`` (mx.Context), if CUDA supports such copies.

    Copies between other pairs go through the host. This function does nothing for CPU devices, or
    if MXNET_ENABLE_GPU_P2P=0 is set. The function creates a CUDA context on each GPU.
    """
    numbers = gpu_numbers(ctxs)
    new_pairs = [pair for pair in permutations(numbers, 2) if pair not in _requested_pairs]
    if not new_pairs or not mxnet_setup.is_peer_access_allowed():
        return
    cuda = _cuda_library()
    with _restore_device(cuda):
        for device, other in new_pairs:
            if _can_access(cuda, device, other):
                status = cuda.cudaSetDevice(device) or cuda.cudaDeviceEnablePeerAccess(other, 0)
                if status != SUCCESS:
                    # clear the error, which the next caller in this thread would receive
                    cuda.cudaGetLastError()
    _requested_pairs.update(new_pairs)


def peer_pairs(ctxs: Sequence[Any]) -> List[Pair]:
    """Return the pairs of GPUs (a, b), a < b, between which CUDA can copy directly.

    ``a`` and ``b`` are MXNet's GPU numbers. The list is empty if MXNET_ENABLE_GPU_P2P=0 is set. The
    function creates no CUDA context.
    """
    numbers = sorted(gpu_numbers(ctxs))
    if len(numbers) < 2 or not mxnet_setup.is_peer_access_allowed():
        return []
    cuda = _cuda_library()
    return [(a, b) for a, b in combinations(numbers, 2) if _can_access(cuda, a, b) and _can_access(cuda, b, a)]


def describe_peer_access(ctxs: Sequence[Any]) -> str:
    """Return one line about direct copies between ``ctxs``, or "" for fewer than two GPUs."""
    return format_peer_access(gpu_numbers(ctxs), peer_pairs(ctxs), mxnet_setup.is_peer_access_allowed())


def format_peer_access(numbers: Sequence[int], pairs: Sequence[Pair], enabled: bool = True) -> str:
    """Return one line about direct copies, or "" for fewer than two GPUs.

    Args:
        numbers: MXNet's numbers for the GPUs.
        pairs: The pairs (a, b) of GPUs with access to each other's memory.
        enabled: Whether MXNET_ENABLE_GPU_P2P allows access.
    """
    count = len(numbers) * (len(numbers) - 1) // 2
    if not count:
        return ""
    if not enabled:
        return "all copies between GPUs go through the host, because MXNET_ENABLE_GPU_P2P=0 is set"
    if not pairs:
        return "no two GPUs can access each other's memory: all copies go through the host"
    if len(pairs) == count:
        return f"copies between GPUs are direct for all {count} pairs"
    direct = " ".join(f"{a}-{b}" for a, b in sorted(pairs))
    return f"copies between GPUs are direct for {len(pairs)} of {count} pairs, {direct}; the others go through the host"


def pci_bus_ids(ctxs: Sequence[Any]) -> List[str]:
    """Return the PCI bus id of each GPU, such as ``0000:00:1b.0``, or "" if unknown.

    CUDA and NVML may number GPUs differently, but report the same bus ids.
    """
    cuda, bus_ids = _cuda_library(), []
    for number in gpu_numbers(ctxs):
        text = ctypes.create_string_buffer(32)
        succeeded = cuda.cudaDeviceGetPCIBusId(text, len(text), number) == SUCCESS
        bus_ids.append(text.value.decode("ascii", "replace").lower() if succeeded else "")
    return bus_ids


def gpu_numbers(ctxs: Sequence[Any]) -> List[int]:
    """Return MXNet's numbers for the GPUs in ``ctxs``, without duplicates."""
    return list(dict.fromkeys(ctx.device_id for ctx in ctxs if ctx.device_type == "gpu"))


def _cuda_library() -> Any:
    """Return the handle of libmxnet.so, through which libcudart's functions can also be called."""
    import mxnet as mx

    return mx.base._LIB


def _can_access(cuda: Any, device: int, other: int) -> bool:
    """Return whether GPU ``device`` can access the memory of GPU ``other``."""
    can_access = ctypes.c_int(0)
    status = cuda.cudaDeviceCanAccessPeer(ctypes.byref(can_access), device, other)
    if status != SUCCESS:
        cuda.cudaGetLastError()  # clears the error
    return status == SUCCESS and bool(can_access.value)


@contextmanager
def _restore_device(cuda: Any) -> Iterator[None]:
    """Restore this thread's current GPU after the with block."""
    previous = ctypes.c_int(0)
    cuda.cudaGetDevice(ctypes.byref(previous))
    try:
        yield
    finally:
        cuda.cudaSetDevice(previous.value)


# Compute capabilities of the machine code in the wheel, read from its fat binaries. It contains no
# PTX that a driver could compile.
SUPPORTED_CAPABILITIES = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
CPU_DEVICES = "CPU devices: --devices 'cpu*2'"
GPU_CHOICES = f"a V100, T4, RTX 20 or 30, A100, A10G or L4 (ml.g4dn, ml.g5, ml.g6, ml.p4d), or {CPU_DEVICES}"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


class UnsupportedGpuError(DeviceError):
    """Error for a GPU for which this MXNet has no machine code."""


class GpuModel(NamedTuple):
    """The name and compute capability of a GPU, such as ``NVIDIA A10G``, (8, 6)."""

    name: str
    capability: Tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name} ({sm_name(self.capability)})"


def is_supported(capability: Tuple[int, int]) -> bool:
    """Return whether MXNet's wheel has machine code for this compute capability."""
    major, minor = capability
    # machine code runs on the same major version, from its minor version on
    return any(major == code[0] and minor >= code[1] for code in SUPPORTED_CAPABILITIES)


def sm_name(capability: Tuple[int, int]) -> str:
    """Return the name of a compute capability, such as ``sm_90`` for (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}"


def check_gpus_supported(ctxs: Sequence[Any], count: int) -> None:
    """Raise UnsupportedGpuError if MXNet's wheel lacks machine code for a GPU in ``ctxs``.

    ``count``: the number of GPUs that are visible to CUDA. The function creates no CUDA context.
    """
    problem = describe_unsupported(gpu_numbers(ctxs), count)
    if problem:
        raise UnsupportedGpuError(problem)


def describe_unsupported(numbers: Sequence[int], count: int) -> str:
    """Return a line about the GPUs for which MXNet has no machine code; "" if there are none.

    ``numbers``: MXNet's numbers for the GPUs. ``count``: the number of GPUs that are visible to
    CUDA.
    """
    models = {number: gpu_model(number) for number in numbers}
    unsupported = {number: model for number, model in models.items() if model and not is_supported(model.capability)}
    if not unsupported:
        return ""
    first = next(iter(unsupported.values()))
    same_model = [number for number, model in unsupported.items() if model == first]
    usable = [number for number in range(count) if number not in unsupported and _is_usable(number)]
    supported = ", ".join(sm_name(code) for code in SUPPORTED_CAPABILITIES)
    cure = f"{_join_names(usable, 'or')} of this machine, or {CPU_DEVICES}" if usable else GPU_CHOICES
    verb = "is" if len(same_model) == 1 else "are each"
    subject = f"{_join_names(same_model, 'and')} {verb} {_article(first.name)} {first}"
    return f"{subject}, but mxnet-cu112 1.9.1 only supports {supported}: use {cure}"


def _join_names(numbers: Sequence[int], last: str) -> str:
    """Return text such as ``gpu:0, gpu:1 and gpu:2``. ``last``: the conjunction, such as "and"."""
    *others, end = [f"gpu:{number}" for number in numbers]
    return f"{', '.join(others)} {last} {end}" if others else end


def _article(name: str) -> str:
    return "an" if name.startswith(("NVIDIA", "A", "E", "I", "O", "U")) else "a"


def _is_usable(number: int) -> bool:
    model = gpu_model(number)
    return model is not None and is_supported(model.capability)


def gpu_model(number: int) -> Optional[GpuModel]:
    """Return the model of gpu:``number`` that the driver reports, or None if the query fails."""
    import mxnet as mx

    # symbols are also looked up in the libraries that libmxnet.so needs, such as libcuda
    driver, device = mx.base._LIB, ctypes.c_int()
    try:
        if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number):
            return None  # CUDA_SUCCESS is 0
        capability = [_device_attribute(driver, attribute, device) for attribute in (MAJOR, MINOR)]
        name = ctypes.create_string_buffer(256)
        driver.cuDeviceGetName(name, len(name), device)
    except AttributeError:  # MXNet's CPU build
        return None
    major, minor = capability
    if major is None or minor is None:
        return None
    return GpuModel(name.value.decode("utf-8", "replace"), (major, minor))


def _device_attribute(driver: Any, attribute: int, device: ctypes.c_int) -> Optional[int]:
    value = ctypes.c_int()
    status = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value if status == SUCCESS else None
