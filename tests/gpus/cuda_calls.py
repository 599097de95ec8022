"""The CUDA runtime of the simulated machine, called through ctypes as a C program would."""

import ctypes
from contextlib import contextmanager

import numpy as np

SUCCESS, OUT_OF_MEMORY, ALREADY_ENABLED, NOT_ENABLED, NO_PEERS = 0, 2, 704, 705, 217
NON_BLOCKING = 1
ANY_DIRECTION = 4  # cudaMemcpyDefault


class CudaError(Exception):
    """An error of the CUDA runtime; ``number``: what the call returned."""

    def __init__(self, number):
        super().__init__(f"CUDA error {number}")
        self.number = number


def _raise_on_error(number, *_):
    if number != SUCCESS:
        raise CudaError(number)
    return number


def load_runtime():
    """Return the library; its functions raise CudaError."""
    library = ctypes.CDLL("libcudart.so.11.0")
    for name in (
        "cudaSetDevice", "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost",
        "cudaMemcpyAsync", "cudaMemcpyPeerAsync", "cudaMemsetAsync", "cudaStreamCreateWithFlags",
        "cudaStreamDestroy", "cudaStreamSynchronize", "cudaEventCreateWithFlags", "cudaEventRecord",
        "cudaStreamWaitEvent", "cudaEventDestroy", "cudaDeviceEnablePeerAccess",
        "cudaDeviceDisablePeerAccess", "cudaLaunchKernel",
    ):  # fmt: skip
        getattr(library, name).restype = _raise_on_error
    return library


CUDA = load_runtime()
TEST = ctypes.CDLL("libsimulated_gpus.so")
TEST.gpus_hold.restype = ctypes.c_void_p


class Memory:
    """Memory of a GPU for ``count`` float32."""

    def __init__(self, count, device=0):
        self.bytes, self.device, self.address = 4 * count, device, ctypes.c_void_p()
        CUDA.cudaSetDevice(device)
        CUDA.cudaMalloc(ctypes.byref(self.address), ctypes.c_size_t(self.bytes))

    def free(self):
        CUDA.cudaFree(self.address)

    def address_of(self, place):
        """Return the address of an element."""
        return ctypes.c_void_p(self.address.value + 4 * place)


class Stream:
    """A stream of a GPU.

    Work that is queued after ``hold()`` waits for ``release()``.
    """

    def __init__(self, device=0, blocking=True):
        self.device, self.handle, self._held = device, ctypes.c_void_p(), None
        CUDA.cudaSetDevice(device)
        CUDA.cudaStreamCreateWithFlags(ctypes.byref(self.handle), 0 if blocking else NON_BLOCKING)

    def hold(self):
        self._use()
        self._held = TEST.gpus_hold(self.handle)

    def release(self):
        TEST.gpus_let_go(ctypes.c_void_p(self._held))

    def copy(self, target, source, count):
        """Queue a copy of float32; ``target`` and ``source``: Memory, or numpy arrays of the host."""
        self._use()
        to, origin = _address_of(target), _address_of(source)
        CUDA.cudaMemcpyAsync(to, origin, ctypes.c_size_t(4 * count), ANY_DIRECTION, self.handle)

    def fill(self, target, byte, count):
        """Queue a memset of float32."""
        self._use()
        CUDA.cudaMemsetAsync(_address_of(target), byte, ctypes.c_size_t(4 * count), self.handle)

    def synchronize(self):
        CUDA.cudaStreamSynchronize(self.handle)

    def record(self, event):
        self._use()
        CUDA.cudaEventRecord(event, self.handle)

    def wait_for(self, event):
        self._use()
        CUDA.cudaStreamWaitEvent(self.handle, event, 0)

    def read(self, source, count):
        """Return the content once all queued work is done."""
        result = np.zeros(count, "float32")
        self.copy(result, source, count)
        self.synchronize()
        return result

    def _use(self):
        CUDA.cudaSetDevice(self.device)

    def destroy(self):
        CUDA.cudaStreamDestroy(self.handle)


@contextmanager
def stream(device=0, blocking=True):
    """Yield a stream; destroy it at the end."""
    new = Stream(device, blocking)
    yield new
    new.synchronize()
    new.destroy()


@contextmanager
def memory(count, device=0):
    """Yield memory; free it at the end."""
    block = Memory(count, device)
    yield block
    block.free()


@contextmanager
def no_peer_access(device, other):
    """Disable the access of ``device`` to the memory of ``other`` until the block ends."""
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
    """Yield an event; destroy it at the end."""
    handle = ctypes.c_void_p()
    CUDA.cudaEventCreateWithFlags(ctypes.byref(handle), 2)
    yield handle
    CUDA.cudaEventDestroy(handle)


def _address_of(place):
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
