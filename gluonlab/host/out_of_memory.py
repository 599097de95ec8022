"""Prints a one-line error when memory, file descriptors or threads are exhausted.

If Python raises an exception, `explain_exhausted_resource` returns the error to print.

If C++ runs out of memory, Python cannot print anything, because SIGABRT or SIGSEGV ends the
process. This can happen in MXNet's threads, whose exceptions are not caught, and in code that
oneDNN compiles. A signal handler in Python would need memory, and a lock that another thread may
hold. So `prepare_last_line` stores the line in advance, and only C library functions print it::

    SIGSEGV -> abort()        raises SIGABRT
    SIGABRT -> quick_exit(6)  calls its registered functions, and exits with status 6
               fflush(NULL)   writes the buffers of all streams; one buffer contains the line

Nothing else in Python or MXNet calls quick_exit(3). If the C library lacks one of these functions,
no line is printed.
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
from gluonlab.host.resources import available_memory

# Parts of the out-of-memory messages of Python, C++, MXNet, CUDA, cuDNN, cuBLAS and numpy.
OUT_OF_MEMORY_MESSAGES = (
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
UNMAPPED_LIBRARY = "failed to map segment from shared object"
GPU_WORDS = ("cuda", "gpu", "cudnn", "cublas")
NO_THREAD_MESSAGES = ("can't start new thread", "Resource temporarily unavailable")
MEMORY_ADVICE = (
    "choose a smaller --batch-size or more --microbatches, or find one that fits with gluonlab find-batch-size BYTES"
)


def explain_exhausted_resource(error: BaseException) -> Optional[NoMemoryError]:
    """Return a NoMemoryError that names the exhausted resource, or None for other errors."""
    text, number = f"{type(error).__name__}: {error}", getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):
        return NoMemoryError(
            f"there are no free file descriptors: {_describe_descriptor_limit()}; use fewer "
            "--workers, or raise the limit (ulimit -n)"
        )
    if any(words in text for words in NO_THREAD_MESSAGES) or number == errno.EAGAIN:
        limit = memory_limit() or "memory"
        return NoMemoryError(
            f"the system cannot start more threads or processes (ulimit -u, or {limit}): use fewer "
            "--workers, or fewer devices"
        )
    # Python raises SystemError if there is too little memory to create a MemoryError. The linker does
    # not say why it cannot map a library, for example when numpy is imported.
    is_memoryless = memory_limit() is not None and (isinstance(error, SystemError) or UNMAPPED_LIBRARY in text)
    if is_memoryless or number == errno.ENOMEM or any(words in text for words in OUT_OF_MEMORY_MESSAGES):
        return NoMemoryError(f"there is not enough memory: {_describe_memory_limit(text)}; {memory_advice()}")
    return None


def _describe_descriptor_limit() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"this process may open {limit:,}" if limit > 0 else "this process may not open more"


def _describe_memory_limit(text: str) -> str:
    """Return text that explains which memory is exhausted. ``text``: the error message."""
    if any(word in text.lower() for word in GPU_WORDS):
        return "the memory of a GPU is full"
    limit = memory_limit()
    if limit is not None:
        return limit
    memory = available_memory()
    return "the memory of the machine is full" if memory is None else f"{memory.where} has {_mib(memory.total)}"


def memory_advice() -> str:
    """Return text about the options that reduce memory use."""
    if memory_limit() is None:
        return MEMORY_ADVICE
    return f"raise the limit, use fewer --threads, {MEMORY_ADVICE}"


def memory_limit() -> Optional[str]:
    """Return text with this process's memory limit (ulimit -v or -d); None if unlimited."""
    for limit, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        max_bytes = resource.getrlimit(limit)[0]
        if max_bytes != resource.RLIM_INFINITY:
            return f"this process may use {_mib(max_bytes)} (ulimit {option})"
    return None


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


# --- The last line of a process that C++ aborts

SET_TERMINATE = "_ZSt13set_terminatePFvvE"  # std::set_terminate
FULL_BUFFERING = 0  # _IOFBF of stdio.h: a stream is written when its buffer is full, or when it is flushed
MAX_FAILING_THREADS = 16  # number of threads that may fail at once; each uses up a registration
MAX_IMPORT_CPU_S = 20.0  # limit of processor time in seconds; MXNet's import takes 1 to 2 seconds
_kept_buffers: List[Any] = []  # buffers that C uses as long as this process lives
RESERVE_BYTES = 4 * 2**20  # reserved address space, which is freed to build an error message
_reserved_memory: List[bytearray] = []


def prepare_last_line() -> None:
    """Prepare the error line that is printed if C++ runs out of memory.

    Call this function before MXNet is loaded. It has no effect if memory is not limited (ulimit -v
    or -d), if it has been called before, or if Python prints tracebacks of crashes
    (PYTHONFAULTHANDLER).
    """
    limit = memory_limit()
    if limit is None or is_last_line_ready() or faulthandler.is_enabled():
        return
    line = f"error: MXNet was terminated, probably because memory was full: {limit}; {memory_advice()}\n"
    with suppress(AttributeError, OSError, MemoryError):  # another C library, for example
        _store_last_line(line.encode())


def is_last_line_ready() -> bool:
    """Check if `prepare_last_line` has stored the line."""
    return bool(_kept_buffers)


def install_last_line_handlers() -> None:
    """Install C handlers that print the line of `prepare_last_line` when MXNet aborts or crashes.

    Call this function again after importing MXNet, which replaces the SIGSEGV handler.
    """
    if is_last_line_ready():
        libc = ctypes.CDLL(None)
        _set_c_handler(signal.SIGABRT, libc["quick_exit"])
        _set_c_handler(signal.SIGSEGV, libc["abort"])
        with suppress(OSError, AttributeError):  # C++ should abort without its own message
            ctypes.CDLL("libstdc++.so.6")[SET_TERMINATE](libc["abort"])


@contextmanager
def limit_import_time() -> Iterator[None]:
    """Abort the process if the with block, which loads MXNet, takes more than MAX_IMPORT_CPU_S.

    Otherwise OpenBLAS would retry forever if memory is exhausted. The limit only applies if
    `prepare_last_line` has stored the line.
    """
    sets_timer = is_last_line_ready() and signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
    if sets_timer:
        _set_c_handler(signal.SIGPROF, ctypes.CDLL(None)["abort"])
        signal.setitimer(signal.ITIMER_PROF, MAX_IMPORT_CPU_S)
    try:
        yield
    finally:
        if sets_timer:
            signal.setitimer(signal.ITIMER_PROF, 0)
            _set_c_handler(signal.SIGPROF, None)
        install_last_line_handlers()


def free_reserved_memory() -> None:
    """Free the reserved memory, so that Python can build an error message."""
    _reserved_memory.clear()


def exit_process(status: int) -> NoReturn:
    """Exit immediately. MXNet's exit would wait for its threads and may need memory."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _store_last_line(line: bytes) -> None:
    """Store the line in the buffer of a C stream, and make quick_exit write all buffers."""
    libc = ctypes.CDLL(None)
    functions = [libc[name] for name in ("__cxa_at_quick_exit", "fdopen", "setvbuf", "fputs")]
    at_quick_exit, fdopen, setvbuf, fputs = functions
    purge, fdopen.restype = libc["__fpurge"], ctypes.c_void_p
    buffer = ctypes.create_string_buffer(len(line) + 1)
    stream = ctypes.c_void_p(fdopen(os.dup(2), b"w"))
    setvbuf(stream, buffer, FULL_BUFFERING, ctypes.c_size_t(len(buffer)))
    fputs(line, stream)
    for _ in range(MAX_FAILING_THREADS):
        at_quick_exit(libc["fflush"], None)
    _kept_buffers.append(buffer)
    _reserved_memory.append(bytearray(RESERVE_BYTES))
    atexit.register(purge, stream)  # otherwise C would print the line at every exit
    os.register_at_fork(after_in_child=_remove_last_line_handlers)
    install_last_line_handlers()


def _remove_last_line_handlers() -> None:
    """Restore the default handlers in a forked child. The parent reports the child's crash."""
    for number in (signal.SIGABRT, signal.SIGSEGV):
        _set_c_handler(number, None)


def _set_c_handler(number: int, function: Any) -> None:
    """Set a signal's handler to a C function or, for None, to the default."""
    ctypes.CDLL(None)["signal"](int(number), function)
