"""Counters and faults of the simulated GPUs of this process."""

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace

LIBRARY = "libsimulated_gpus.so"


def _library():
    return ctypes.CDLL(LIBRARY)


def _text(function):
    size = function(None, 0) + 4096  # it may grow meanwhile
    buffer = ctypes.create_string_buffer(size)
    function(buffer, ctypes.c_long(size))
    return buffer.value.decode("utf-8")


def faults():
    """Return a text for each fault since `forget_faults`."""
    return _text(_library().gpus_faults).splitlines()


def forget_faults():
    _library().gpus_forget_faults()


def counters():
    """Return the counters since the process began, such as ``launches`` and ``copies_staged``."""
    library = _library()
    library.gpus_counter.restype = ctypes.c_long
    return {name: library.gpus_counter(name.encode()) for name in _text(library.gpus_counters).splitlines()}


def names():
    """Return {name: times} of all kernels and library calls."""
    lines = (line.partition(" ") for line in _text(_library().gpus_names).splitlines())
    return {name: int(times) for times, _, name in lines}


def bytes_in_use(device):
    """Return the allocated bytes of a GPU."""
    library = _library()
    library.gpus_bytes_in_use.restype = ctypes.c_long
    return library.gpus_bytes_in_use(device)


def bytes_left(device, expected, patience_s=1):
    """Wait at most ``patience_s`` until a GPU has ``expected`` allocated bytes or fewer; return them."""
    library = _library()
    library.gpus_bytes_left.restype = ctypes.c_long
    return library.gpus_bytes_left(device, ctypes.c_long(expected), ctypes.c_long(int(patience_s * 1000)))


@contextmanager
def delays(most_us, seed):
    """Delay all work that is queued in the block by a random time, ``most_us`` at most."""
    _library().gpus_delay(most_us, ctypes.c_uint(seed))
    try:
        yield
    finally:
        _library().gpus_delay(-1, ctypes.c_uint(0))


@contextmanager
def counting():
    """Yield a namespace that gets the counters of the block at its end, and ``names``."""
    import mxnet as mx

    mx.nd.waitall()
    happened = SimpleNamespace()
    before, named = counters(), names()
    yield happened
    mx.nd.waitall()
    vars(happened).update({name: count - before[name] for name, count in counters().items()})
    happened.names = {name: count - named.get(name, 0) for name, count in names().items() if count > named.get(name, 0)}
