"""An operator on a simulated GPU beside MXNet's own on the CPU: the same inputs, the same
gradients, the same requests.
"""

import numpy as np
from mxnet import autograd, cpu, gpu, nd

# ||a - b|| / ||b||: float16 is rounded once where it is stored.
TOLERANCES = {"float64": 1e-6, "float32": 1e-5, "float16": 3e-3}


def drawn(*shape, seed=0):
    return np.random.RandomState(seed + sum(shape)).standard_normal(shape)


def results(ctx, function, arrays, dtype="float32", request="write"):
    """What ``function(*arrays)`` gives, and the gradients of all arrays; before those were 1 where
    they are added to.
    """
    inputs = [nd.array(array, ctx=ctx, dtype=dtype) for array in arrays]
    for array in inputs:
        array.attach_grad(request)
        array.grad[:] = 1
    with autograd.record():
        out = function(*inputs)
    out.backward(nd.array(drawn(*out.shape, seed=1), ctx=ctx, dtype=out.dtype))
    return [out.asnumpy(), *(array.grad.asnumpy() for array in inputs)]


def assert_close(found, wanted, dtype="float32"):
    assert found.shape == wanted.shape
    found, wanted = found.astype("float64"), wanted.astype("float64")
    # sums of few numbers may nearly vanish
    size = np.linalg.norm(wanted) + np.sqrt(wanted.size) * 1e-2
    assert np.linalg.norm(found - wanted) <= TOLERANCES[dtype] * size


def assert_same(function, *arrays, dtype="float32", request="write", device=0):
    """The GPU, in ``dtype``, and the CPU, in float32, give the same, of numbers that both types
    hold.
    """
    arrays = [array.astype("float16") for array in arrays]
    found = results(gpu(device), function, arrays, dtype, request)
    wanted = results(cpu(), function, arrays, "float32", request)
    assert all(array.dtype == np.dtype(dtype) for array in found)
    for ours, theirs in zip(found, wanted):
        assert_close(ours, theirs, "float32" if dtype == "float64" else dtype)
