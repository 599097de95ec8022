"""What MXNet's worker threads say of themselves, asked without gluonlab."""

import ctypes
import threading

import mxnet as mx
from mxnet.base import _LIB, check_call

OPENMP = ctypes.CDLL("libgomp.so.1")


class EngineContext(ctypes.Structure):
    _fields_ = [("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32)]


def team_size(ctx):
    """omp_get_max_threads() on the thread that computes for a CPU device."""
    answers = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        lambda run_context, parameter: answers.append((threading.get_ident(), OPENMP.omp_get_max_threads()))
    )
    array = mx.nd.zeros((1,), ctx=ctx)
    where = EngineContext(1, ctx.device_id)
    check_call(
        _LIB.MXEnginePushSyncND(
            function, None, None, ctypes.byref(where), None, 0, ctypes.byref(array.handle), 1, None, 0, b"team_size"
        )
    )
    array.wait_to_read()
    [(thread, size)] = answers
    assert thread != threading.get_ident()
    return size


def compute(ctxs):
    """Work that hangs when two devices open OpenMP teams in OpenBLAS."""
    arrays = [mx.nd.ones((256, 256), ctx=ctx) for ctx in ctxs]
    for _ in range(200):
        products = [mx.nd.dot(array, array) for array in arrays]
    return [float(product[0, 0].asscalar()) for product in products]


def convolve(ctx):
    """Forward and backward of a convolution, which oneDNN compiles for the device's team."""
    images = mx.nd.ones((8, 4, 32, 32), ctx=ctx)
    weight = mx.nd.ones((20, 4, 5, 5), ctx=ctx)
    weight.attach_grad()
    with mx.autograd.record():
        total = mx.nd.Convolution(images, weight, kernel=(5, 5), num_filter=20, no_bias=True).sum()
    total.backward()
    return float(total.asscalar()), float(weight.grad.sum().asscalar())
