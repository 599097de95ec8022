"""Direct copies from GPU to GPU.

CUDA copies from one GPU to another directly only where the one was given access to the other's
memory; all else goes through the host. MXNet 1.9.1 asks for that access in one place, when a
``device`` store first sums (EnableP2P of src/kvstore/comm.h). So every other copy of MXNet's, which
are those of schedules, of graphs of several devices and of arrays by hand, was direct or not by
what the process had done before. Here it is asked for once, for the devices that arrays lie on.

What is asked is the CUDA runtime that libmxnet.so itself has loaded. Access is a matter of the
process: it holds for all threads, and until the end.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from itertools import combinations, permutations
from typing import Any, Iterator, List, Sequence, Set, Tuple

from gluonlab.engine import setup

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
    if not wanted or not setup.peer_access_wanted():
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
    if len(numbers) < 2 or not setup.peer_access_wanted():
        return []
    cuda = _runtime()
    return [
        (a, b)
        for a, b in combinations(numbers, 2)
        if _can_access(cuda, a, b) and _can_access(cuda, b, a)
    ]


def in_words(ctxs: Sequence[Any]) -> str:
    """One line for people; empty for fewer than two GPUs."""
    return words_for(gpu_numbers(ctxs), peer_pairs(ctxs), setup.peer_access_wanted())


def words_for(numbers: Sequence[int], pairs: Sequence[Pair], wanted: bool = True) -> str:
    """`in_words`, of GPUs by their numbers and of the pairs that have access."""
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
