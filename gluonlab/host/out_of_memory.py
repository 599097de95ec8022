"""Memory, descriptors or threads are used up: one line says which limit that is.

Where Python still runs, an error becomes that line (`used_up`). Where memory ends in C++, Python
cannot print anything: nobody catches what MXNet's threads raise, and the code that oneDNN compiles
is run even if there was no room for it, so C++ ends the process by SIGABRT or SIGSEGV. A handler in
Python would need memory, and the lock that another thread holds. So the line is made ready in time
(`prepare`), and printed by functions of the C library alone::

    SIGSEGV -> abort()        raises SIGABRT
    SIGABRT -> quick_exit(6)  calls what is registered with it, without an argument, and ends with 6
               fflush(NULL)   writes what all streams hold; one holds the line for standard error

Nothing else in Python or MXNet calls quick_exit(3). Another C library than GNU's may lack one of
these functions: then no line is printed.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import faulthandler
import os
import resource
import signal
import sys
from contextlib import contextmanager, suppress
from typing import Any, Iterator, List, NoReturn, Optional

from gluonlab.errors import NoMemoryError
from gluonlab.host.resources import room

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


# --- The last line of a process that C++ ends

SET_TERMINATE = "_ZSt13set_terminatePFvvE"  # std::set_terminate
FULL = 0  # _IOFBF of stdio.h: a stream is written when its buffer is full, or when it is flushed
THREADS = 16  # that may fail at once: all but the first wait for its line before they end all
LOADING_S = 20.0  # of the processor's time, of which it takes 1 to 2
_ready: List[Any] = []  # what C refers to as long as this process lives
RESERVE_BYTES = 4 * 2**20  # of addresses: nothing is written there
_reserve: List[bytearray] = []


def prepare() -> None:
    """Where the memory of this process is limited (ulimit -v or -d), make its last line ready.

    To be called before MXNet is loaded. Has no effect without a limit, when it is called again, or
    where Python is to show tracebacks of such ends (PYTHONFAULTHANDLER).
    """
    limit = memory_limit()
    if limit is None or is_ready() or faulthandler.is_enabled():
        return
    said = f"error: MXNet was ended, most likely for want of memory: {limit}; {less_memory()}\n"
    with suppress(AttributeError, OSError, MemoryError):  # another C library, for example
        _hold(said.encode())


def is_ready() -> bool:
    """Whether this process has last words."""
    return bool(_ready)


def arm() -> None:
    """Have the line said, if one is ready; again when MXNet is loaded, which takes SIGSEGV."""
    if is_ready():
        libc = ctypes.CDLL(None)
        _set_handler(signal.SIGABRT, libc["quick_exit"])
        _set_handler(signal.SIGSEGV, libc["abort"])
        with suppress(OSError, AttributeError):  # C++ is to say nothing itself, but to abort
            ctypes.CDLL("libstdc++.so.6")[SET_TERMINATE](libc["abort"])


@contextmanager
def loading() -> Iterator[None]:
    """MXNet is loaded in this block, and OpenBLAS, which tries for ever to get its memory.

    If a line is ready, it is said when that has taken LOADING_S.
    """
    free = is_ready() and signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
    if free:
        _set_handler(signal.SIGPROF, ctypes.CDLL(None)["abort"])
        signal.setitimer(signal.ITIMER_PROF, LOADING_S)
    try:
        yield
    finally:
        if free:
            signal.setitimer(signal.ITIMER_PROF, 0)
            _set_handler(signal.SIGPROF, None)
        arm()


def make_room() -> None:
    """Give back what is kept for the words of an error: one that Python raises can say more."""
    _reserve.clear()


def end(status: int) -> NoReturn:
    """End the process here: MXNet's own end waits for its threads, and may want memory."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _hold(line: bytes) -> None:
    """Write ``line`` into a stream that only `fflush` empties, and have quick_exit call that."""
    libc = ctypes.CDLL(None)
    functions = [libc[name] for name in ("__cxa_at_quick_exit", "fdopen", "setvbuf", "fputs")]
    at_quick_exit, fdopen, setvbuf, fputs = functions
    purge, fdopen.restype = libc["__fpurge"], ctypes.c_void_p
    buffer = ctypes.create_string_buffer(len(line) + 1)
    stream = ctypes.c_void_p(fdopen(os.dup(2), b"w"))
    setvbuf(stream, buffer, FULL, ctypes.c_size_t(len(buffer)))
    fputs(line, stream)
    for _ in range(THREADS):
        at_quick_exit(libc["fflush"], None)
    _ready.append(buffer)
    _reserve.append(bytearray(RESERVE_BYTES))
    atexit.register(purge, stream)  # else C's own end of a process would say it
    os.register_at_fork(after_in_child=_disarm)
    arm()


def _disarm() -> None:
    """In a fork's child, whose end this process tells."""
    for number in (signal.SIGABRT, signal.SIGSEGV):
        _set_handler(number, None)


def _set_handler(number: int, function: Any) -> None:
    """Have C call a function of its own; None: do what is usual. signal.signal takes none of C."""
    ctypes.CDLL(None)["signal"](int(number), function)
