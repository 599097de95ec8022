"""The CUDA runtime of the simulated machine, called as a program in C would: what tests of the
machine itself use.
"""

import ctypes
from contextlib import contextmanager

import numpy as np

SUCCESS, OUT_OF_MEMORY, ALREADY_ENABLED, NOT_ENABLED, NO_PEERS = 0, 2, 704, 705, 217
NON_BLOCKING = 1
ANY_DIRECTION = 4  # cudaMemcpyDefault


class CudaError(Exception):
    """``number``: what a call returned."""

    def __init__(self, number):
        super().__init__(f"CUDA error {number}")
        self.number = number


def _checked(number, *_):
    if number != SUCCESS:
        raise CudaError(number)
    return number


def runtime():
    """The library; each function raises CudaError for what is no success."""
    library = ctypes.CDLL("libcudart.so.11.0")
    for name in (
        "cudaSetDevice", "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost",
        "cudaMemcpyAsync", "cudaMemcpyPeerAsync", "cudaMemsetAsync", "cudaStreamCreateWithFlags",
        "cudaStreamDestroy", "cudaStreamSynchronize", "cudaEventCreateWithFlags", "cudaEventRecord",
        "cudaStreamWaitEvent", "cudaEventDestroy", "cudaDeviceEnablePeerAccess",
        "cudaDeviceDisablePeerAccess", "cudaLaunchKernel",
    ):  # fmt: skip
        getattr(library, name).restype = _checked
    return library


CUDA = runtime()
TEST = ctypes.CDLL("libsimulated_gpus.so")
TEST.gpus_hold.restype = ctypes.c_void_p


class Memory:
    """``count`` float32 of a GPU."""

    def __init__(self, count, device=0):
        self.bytes, self.device, self.address = 4 * count, device, ctypes.c_void_p()
        CUDA.cudaSetDevice(device)
        CUDA.cudaMalloc(ctypes.byref(self.address), ctypes.c_size_t(self.bytes))

    def free(self):
        CUDA.cudaFree(self.address)

    def at(self, place):
        """The address of an element."""
        return ctypes.c_void_p(self.address.value + 4 * place)


class Stream:
    """A stream of a GPU.

    Between ``hold()`` and ``let_go()`` nothing that is queued on it begins.
    """

    def __init__(self, device=0, blocking=True):
        self.device, self.handle, self._held = device, ctypes.c_void_p(), None
        CUDA.cudaSetDevice(device)
        CUDA.cudaStreamCreateWithFlags(ctypes.byref(self.handle), 0 if blocking else NON_BLOCKING)

    def hold(self):
        self._use()
        self._held = TEST.gpus_hold(self.handle)

    def let_go(self):
        TEST.gpus_let_go(ctypes.c_void_p(self._held))

    def copy(self, target, source, count):
        """Queue a copy of float32; ``target`` and ``source``: Memory, or numpy arrays of the host."""
        self._use()
        to, origin = _address(target), _address(source)
        CUDA.cudaMemcpyAsync(to, origin, ctypes.c_size_t(4 * count), ANY_DIRECTION, self.handle)

    def fill(self, target, byte, count):
        """Queue a memset of float32."""
        self._use()
        CUDA.cudaMemsetAsync(_address(target), byte, ctypes.c_size_t(4 * count), self.handle)

    def synchronise(self):
        CUDA.cudaStreamSynchronize(self.handle)

    def record(self, event):
        self._use()
        CUDA.cudaEventRecord(event, self.handle)

    def wait_for(self, event):
        self._use()
        CUDA.cudaStreamWaitEvent(self.handle, event, 0)

    def read(self, source, count):
        """What is there when all that was queued is done."""
        result = np.zeros(count, "float32")
        self.copy(result, source, count)
        self.synchronise()
        return result

    def _use(self):
        CUDA.cudaSetDevice(self.device)

    def end(self):
        CUDA.cudaStreamDestroy(self.handle)


@contextmanager
def stream(device=0, blocking=True):
    """A stream, for a while."""
    made = Stream(device, blocking)
    yield made
    made.synchronise()
    made.end()


@contextmanager
def memory(count, device=0):
    """Memory, for a while."""
    made = Memory(count, device)
    yield made
    made.free()


@contextmanager
def no_peer_access(device, other):
    """``device`` has no access to the memory of ``other`` for a while, whoever asked for it before."""
    CUDA.cudaSetDevice(device)
    try:
        CUDA.cudaDeviceDisablePeerAccess(other)
    except CudaError as error:
        assert error.number == NOT_ENABLED
        yield
        return
    try:
        yield
    finally:
        CUDA.cudaSetDevice(device)
        CUDA.cudaDeviceEnablePeerAccess(other, 0)


@contextmanager
def event():
    """An event, for a while."""
    made = ctypes.c_void_p()
    CUDA.cudaEventCreateWithFlags(ctypes.byref(made), 2)
    yield made
    CUDA.cudaEventDestroy(made)


def _address(place):
    if isinstance(place, np.ndarray):
        return ctypes.c_void_p(place.ctypes.data)
    return place.address if isinstance(place, Memory) else place


class _Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


def launch_unknown():
    """Launch ``void mxnet::op::no_such_kernel<float>(int, float*)``, which no library knows."""
    host_function = ctypes.create_string_buffer(8)
    name = b"_ZN5mxnet2op14no_such_kernelIfEEviPT_"
    getattr(CUDA, "__cudaRegisterFunction")(None, host_function, None, name, 0, None, None, None, None, None)
    count, address = ctypes.c_int(4), ctypes.c_void_p()
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(count), ctypes.addressof(address))
    CUDA.cudaLaunchKernel(host_function, _Dim3(1, 1, 1), _Dim3(1, 1, 1), arguments, ctypes.c_size_t(0), None)
