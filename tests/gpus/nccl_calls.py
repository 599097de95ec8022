"""NCCL's communicators, called as a program in C would."""

import ctypes
from contextlib import contextmanager

NCCL = ctypes.CDLL("libnccl.so.2")
TYPES = {"int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8}
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3}


@contextmanager
def communicators(devices):
    """One for each device, in the order of ranks."""
    made = (ctypes.c_void_p * len(devices))()
    assert NCCL.ncclCommInitAll(made, len(devices), (ctypes.c_int * len(devices))(*devices)) == 0
    yield [ctypes.c_void_p(one) for one in made]
    for one in made:
        NCCL.ncclCommDestroy(ctypes.c_void_p(one))


@contextmanager
def group():
    """Calls for several ranks from one thread."""
    NCCL.ncclGroupStart()
    yield
    assert NCCL.ncclGroupEnd() == 0


def reduce(send, receive, count, dtype, operation, root, communicator, stream):
    """``send``, ``receive``: addresses; None where a rank receives nothing."""
    number = ctypes.c_size_t(count)
    return NCCL.ncclReduce(
        send, receive, number, TYPES[dtype], OPERATIONS[operation], root, communicator, stream.handle
    )


def broadcast(buffer, count, dtype, root, communicator, stream):
    """In place."""
    return NCCL.ncclBcast(buffer, ctypes.c_size_t(count), TYPES[dtype], root, communicator, stream.handle)
