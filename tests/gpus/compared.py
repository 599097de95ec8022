"""Comparison of operators on a simulated GPU with MXNet's on the CPU, and strategies for their inputs."""

import numpy as np
from hypothesis import strategies as st
from mxnet import autograd, cpu, gpu, nd

# ||a - b|| / ||b||: float16 is rounded once where it is stored.
TOLERANCES = {"float64": 1e-6, "float32": 1e-5, "float16": 3e-3}
REALS, EXACT = st.sampled_from(sorted(TOLERANCES)), st.sampled_from(["float32", "float64"])
REQUESTS = st.sampled_from(["write", "add"])
HOW = st.fixed_dictionaries({"dtype": REALS, "request": REQUESTS})  # for `assert_same`
TYPES = ["float32", "float64", "float16", "int32", "int64", "int8", "uint8"]
YES, SEEDS = st.booleans(), st.integers(0, 99)


def integers_up_to(most):
    """Return a strategy of whole numbers from 1."""
    return st.integers(1, most)


def shapes_of_axes(count, most=6):
    """Return a strategy of shapes with ``count`` axes."""
    return st.tuples(*[integers_up_to(most)] * count)


def shapes(most=6, axes=4, least=1):
    """Return a strategy of shapes with ``least`` to ``axes`` axes."""
    return st.lists(integers_up_to(most), min_size=least, max_size=axes).map(tuple)


def draw_array(*shape, seed=0):
    return np.random.RandomState(seed + sum(shape)).standard_normal(shape)


def output_and_gradients(ctx, function, arrays, dtype="float32", request="write"):
    """Return the output of ``function(*arrays)`` and the gradients, which start at 1."""
    inputs = [nd.array(array, ctx=ctx, dtype=dtype) for array in arrays]
    for array in inputs:
        array.attach_grad(request)
        array.grad[:] = 1
    with autograd.record():
        out = function(*inputs)
    out.backward(nd.array(draw_array(*out.shape, seed=1), ctx=ctx, dtype=out.dtype))
    return [out.asnumpy(), *(array.grad.asnumpy() for array in inputs)]


def assert_close(result, expected, dtype="float32"):
    assert result.shape == expected.shape
    result, expected = result.astype("float64"), expected.astype("float64")
    # sums of few numbers may nearly vanish
    size = np.linalg.norm(expected) + np.sqrt(expected.size) * 1e-2
    assert np.linalg.norm(result - expected) <= TOLERANCES[dtype] * size


def assert_same(function, *arrays, dtype="float32", request="write", device=0):
    """Check outputs and gradients on the GPU, in ``dtype``, against the CPU's in float32."""
    arrays = [array.astype("float16") for array in arrays]
    result = output_and_gradients(gpu(device), function, arrays, dtype, request)
    expected = output_and_gradients(cpu(), function, arrays, "float32", request)
    assert all(array.dtype == np.dtype(dtype) for array in result)
    for on_gpu, on_cpu in zip(result, expected):
        assert_close(on_gpu, on_cpu, "float32" if dtype == "float64" else dtype)


def assert_equal(function):
    """Check that ``function(ctx)``, an array or several, has the same bits on GPU and CPU."""
    for on_gpu, on_cpu in zip(*run_on_both(function)):
        assert on_gpu.dtype == on_cpu.dtype
        np.testing.assert_array_equal(on_gpu, on_cpu)


def assert_alike(function, dtype="float32"):
    """Check that ``function(ctx)`` is the same on GPU and CPU but for rounding."""
    for on_gpu, on_cpu in zip(*run_on_both(function)):
        assert on_gpu.dtype == on_cpu.dtype
        assert_close(on_gpu, on_cpu, dtype)


def run_on_both(function):
    for ctx in (gpu(0), cpu()):
        result = function(ctx)
        several = result if isinstance(result, (list, tuple)) else [result]
        yield [one if isinstance(one, np.ndarray) else one.asnumpy() for one in several]
