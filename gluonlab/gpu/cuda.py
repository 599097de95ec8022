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
import os
from contextlib import contextmanager
from itertools import combinations, permutations
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from gluonlab.engine import openmp, setup
from gluonlab.errors import ConfigError, DeviceError, warn

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


def peers_in_words(ctxs: Sequence[Any]) -> str:
    """One line for people; empty for fewer than two GPUs."""
    return peer_words(gpu_numbers(ctxs), peer_pairs(ctxs), setup.peer_access_wanted())


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


TF32_SINCE = (8, 0)  # compute capability


class Arithmetic(NamedTuple):
    """How GPUs compute.

    ``deterministic``: by algorithms that repeat their bits. ``tf32``: float32 products with factors
    rounded to TF32, where a GPU can.
    """

    deterministic: bool
    tf32: bool

    def in_words(self) -> str:
        """For people, as a run says it."""
        products = "products in TF32 where a GPU can" if self.tf32 else "exact products, no TF32"
        fastest = "fastest algorithms, bits may vary"
        return f"{products}; {'same seed, same bits' if self.deterministic else fastest}"


_in_use: Optional[Arithmetic] = None  # by the GPUs of this process
_users: Dict[str, Optional[str]] = {}  # what the variables were before they were first changed


def arithmetic(deterministic: bool = False, tf32: Optional[bool] = None) -> Arithmetic:
    """The Arithmetic that options and exported variables ask for.

    ``tf32`` None: as NVIDIA_TF32_OVERRIDE says, and off where that is not exported.
    """
    exported = {name: _users.get(name, os.environ.get(name)) for name in setup.DETERMINISTIC}
    if tf32 is None:
        allowed = _users.get(setup.TF32_VARIABLE, os.environ.get(setup.TF32_VARIABLE))
        tf32 = allowed not in (None, "0")
    return Arithmetic(deterministic or exported == setup.DETERMINISTIC, tf32)


def check_arithmetic(wanted: Arithmetic, ctxs: Sequence[Any]) -> None:
    """Raise ConfigError if the GPUs among ``ctxs`` (mx.Context) can no longer compute like this."""
    if _in_use is None or not _on_gpus(ctxs):
        return
    if wanted.tf32 != _in_use.tf32:
        how = "in TF32" if _in_use.tf32 else "without TF32"
        option = "--tf32" if wanted.tf32 else "--no-tf32"
        raise ConfigError(
            f"{option}: this process has computed on GPUs {how}, which cannot change any more: "
            "start a new process"
        )
    if wanted.deterministic and not _in_use.deterministic:
        raise ConfigError(
            "--deterministic: this process has computed on GPUs without it, "
            "and convolutions keep their algorithms: start a new process"
        )


def use_arithmetic(wanted: Arithmetic, ctxs: Sequence[Any]) -> None:
    """Have the GPUs among ``ctxs`` compute like this, from the first operation on.

    CPU devices need nothing. Raises ConfigError when this process has computed otherwise on GPUs.
    Warns when it has computed deterministically: convolutions that have run then stay so.
    """
    global _in_use
    check_arithmetic(wanted, ctxs)
    if not _on_gpus(ctxs):
        return
    if _in_use is not None and _in_use.deterministic and not wanted.deterministic:
        message = "convolutions that ran with --deterministic keep those algorithms, maybe slower"
        warn(message)
    variables = (*setup.DETERMINISTIC, setup.TF32_VARIABLE)
    if not _users:
        _users.update({name: os.environ.get(name) for name in variables})
    chosen: Dict[str, Optional[str]] = {name: _users[name] for name in variables}
    if wanted.deterministic:
        chosen.update(setup.DETERMINISTIC)
    if wanted.tf32:
        exported = _users[setup.TF32_VARIABLE]
        chosen[setup.TF32_VARIABLE] = None if exported == "0" else exported
    else:
        chosen[setup.TF32_VARIABLE] = "0"
    openmp.set_variables(chosen)
    if _in_use is None and not wanted.deterministic:
        _announce_nothing(next(ctx for ctx in ctxs if ctx.device_type == "gpu"))
    _in_use = wanted


def _announce_nothing(ctx: Any) -> None:
    """Keep MXNet from printing, before the first tuning, how cuDNN's tuning can be switched off.

    MXNet prints it when it tunes before it knows any convolution. Here it gets to know one of a
    single number, without tuning. Tuning counts for the time to the first step, which a run
    reports.
    """
    from mxnet import nd

    one = nd.ones((1, 1, 1, 1), ctx=ctx)
    nd.Convolution(
        one, one, kernel=(1, 1), num_filter=1, no_bias=True, cudnn_tune="off"
    ).wait_to_read()


def _on_gpus(ctxs: Sequence[Any]) -> bool:
    return any(ctx.device_type == "gpu" for ctx in ctxs)
