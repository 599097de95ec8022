"""NCCL, called through ctypes as a C program would."""

import ctypes
from contextlib import contextmanager

NCCL = ctypes.CDLL("libnccl.so.2")
TYPES = {"int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8}
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3}


@contextmanager
def communicators(devices):
    """Yield a communicator for each device, in the order of ranks."""
    handles = (ctypes.c_void_p * len(devices))()
    assert NCCL.ncclCommInitAll(handles, len(devices), (ctypes.c_int * len(devices))(*devices)) == 0
    yield [ctypes.c_void_p(handle) for handle in handles]
    for handle in handles:
        NCCL.ncclCommDestroy(ctypes.c_void_p(handle))


@contextmanager
def group():
    """Group the calls of several ranks by one thread."""
    NCCL.ncclGroupStart()
    yield
    assert NCCL.ncclGroupEnd() == 0


def reduce(send, receive, count, dtype, operation, root, communicator, stream):
    """Queue a reduction; ``receive`` is None for a rank that receives nothing."""
    number = ctypes.c_size_t(count)
    return NCCL.ncclReduce(
        send, receive, number, TYPES[dtype], OPERATIONS[operation], root, communicator, stream.handle
    )


def broadcast(buffer, count, dtype, root, communicator, stream):
    """Queue a broadcast in place."""
    return NCCL.ncclBcast(buffer, ctypes.c_size_t(count), TYPES[dtype], root, communicator, stream.handle)
