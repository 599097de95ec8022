"""Errors that mean that memory, descriptors or threads are used up, and which limit that is."""

from __future__ import annotations

import errno
import resource
from typing import Optional

from gluonlab.errors import NoMemoryError
from gluonlab.host.memory import room

# as Python, C++, MXNet, CUDA, cuDNN, cuBLAS and numpy say it
OUT_OF_MEMORY = (
    "bad_alloc",
    "MemoryError",
    "Memory allocation failed",
    "Failed to allocate CPU Memory",
    "AlignedMallocPitch failed",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "Unable to allocate",
    "Cannot allocate memory",
)
OF_GPUS = ("cuda", "gpu", "cudnn", "cublas")
NO_THREAD = ("can't start new thread", "Resource temporarily unavailable")
LESS_MEMORY = (
    "choose a smaller --batch-size or more --microbatches, or look with --find-batch-size BYTES "
    "for what fits"
)


def used_up(error: BaseException) -> Optional[NoMemoryError]:
    """What to say of an error that comes of a limit of this process or machine; None for others."""
    text, number = f"{type(error).__name__}: {error}", getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):
        return NoMemoryError(
            f"no file descriptor is left: {_descriptors()}; use fewer --decoders, or raise "
            "the limit (ulimit -n)"
        )
    if any(words in text for words in NO_THREAD) or number == errno.EAGAIN:
        limit = memory_limit() or "memory"
        return NoMemoryError(
            f"the system starts no more threads or processes for this one (ulimit -u, or {limit}): "
            "use fewer --decoders, or fewer devices"
        )
    # what Python raises where even its MemoryError finds no room
    bare = isinstance(error, SystemError) and memory_limit() is not None
    if bare or number == errno.ENOMEM or any(words in text for words in OUT_OF_MEMORY):
        return NoMemoryError(f"there is not enough memory: {_memory(text)}; {less_memory()}")
    return None


def _descriptors() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"this process may have {limit:,}" if limit > 0 else "this process may have no more"


def _memory(text: str) -> str:
    if any(word in text.lower() for word in OF_GPUS):
        return "a GPU's is full"
    limit = memory_limit()
    if limit is not None:
        return limit
    there = room()
    return "the machine's is used up" if there is None else f"{there.where} has {_mib(there.total)}"


def less_memory() -> str:
    """What to do where memory is used up."""
    if memory_limit() is None:
        return LESS_MEMORY
    return f"raise the limit, use fewer --threads, {LESS_MEMORY}"


def memory_limit() -> Optional[str]:
    """The limit of this process's own memory, in words; None where it has none."""
    for limit, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            return f"this process may have {_mib(most)} (ulimit {option})"
    return None


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
