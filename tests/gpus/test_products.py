"""cuBLAS's products on simulated GPUs are numpy's in float64."""

import json

import numpy as np
import pytest
from gpus.commands import run_python
from gpus.compared import TOLERANCES, assert_same, draw_array
from gpus.machines import A100, Machine
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gpu, nd

SIZES = st.integers(1, 70)
DTYPES = st.sampled_from(["float32", "float64", "float16"])


def assert_product(result, a, b, dtype):
    expected = a.astype("float64") @ b.astype("float64")
    # of the terms: a sum may vanish
    bound = np.abs(a).astype("float64") @ np.abs(b).astype("float64")
    assert result.dtype == np.dtype(dtype)
    assert (np.abs(result - expected) <= TOLERANCES[dtype] * bound).all()


@given(m=SIZES, n=SIZES, k=SIZES, turned=st.tuples(st.booleans(), st.booleans()), dtype=DTYPES)
def test_products_of_matrices(m, n, k, turned, dtype):
    a, b = draw_array(m, k).astype(dtype), draw_array(k, n).astype(dtype)
    left, right = (nd.array(array.T if turn else array, ctx=gpu(0), dtype=dtype) for array, turn in zip((a, b), turned))
    result = nd.dot(left, right, transpose_a=turned[0], transpose_b=turned[1]).asnumpy()
    assert_product(result, a, b, dtype)


@given(batch=st.integers(1, 4), m=SIZES, n=SIZES, k=SIZES, turned=st.tuples(st.booleans(), st.booleans()), dtype=DTYPES)
def test_products_of_many_matrices(batch, m, n, k, turned, dtype):
    a, b = draw_array(batch, m, k).astype(dtype), draw_array(batch, k, n).astype(dtype)
    left, right = (
        nd.array(array.transpose(0, 2, 1) if turn else array, ctx=gpu(0), dtype=dtype)
        for array, turn in zip((a, b), turned)
    )
    result = nd.batch_dot(left, right, transpose_a=turned[0], transpose_b=turned[1]).asnumpy()
    assert_product(result, a, b, dtype)


REQUESTS = st.sampled_from(["write", "add"])


@given(shape=st.tuples(st.integers(1, 9), SIZES), units=SIZES, dtype=DTYPES, biased=st.booleans(), request=REQUESTS)
def test_dense_layers_and_their_gradients(shape, units, dtype, biased, request):
    arrays = [draw_array(*shape), draw_array(units, shape[1])] + [draw_array(units, seed=2)] * biased
    dense = lambda *them: nd.FullyConnected(*them, num_hidden=units, no_bias=not biased)  # noqa: E731
    assert_same(dense, *arrays, dtype=dtype, request=request)


def triangle(size, lower):
    full = draw_array(size, size) + 3 * size * np.eye(size)
    return np.tril(full) if lower else np.triu(full)


@given(n=st.integers(1, 9), m=st.integers(1, 9), lower=st.booleans(), right=st.booleans(), turned=st.booleans())
def test_triangles_multiply_and_solve(n, m, lower, right, turned):
    a = triangle(n, lower)
    b = draw_array(m, n) if right else draw_array(n, m)
    with_a = a.T if turned else a
    product = b @ with_a if right else with_a @ b
    solved = b @ np.linalg.inv(with_a) if right else np.linalg.inv(with_a) @ b
    # the other half is not read
    both = [nd.array(array, ctx=gpu(0), dtype="float64") for array in (a + 7 * (a == 0), b)]
    how = dict(transpose=turned, rightside=right, lower=lower)
    np.testing.assert_allclose(nd.linalg.trmm(*both, **how).asnumpy(), product, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(nd.linalg.trsm(*both, **how).asnumpy(), solved, rtol=1e-9, atol=1e-9)


@given(n=st.integers(1, 9), k=st.integers(1, 9), turned=st.booleans(), dtype=st.sampled_from(["float32", "float64"]))
def test_a_matrix_times_itself_turned(n, k, turned, dtype):
    a = draw_array(n, k)
    result = nd.linalg.syrk(nd.array(a, ctx=gpu(0), dtype=dtype), transpose=turned, alpha=0.5).asnumpy()
    np.testing.assert_allclose(result, 0.5 * (a.T @ a if turned else a @ a.T), rtol=1e-4, atol=1e-5)


@given(size=st.integers(1, 500), dtype=st.sampled_from(["float32", "float64"]))
def test_products_of_vectors(size, dtype):
    a, b = draw_array(size), draw_array(size, seed=9)
    result = nd.dot(*(nd.array(array, ctx=gpu(0), dtype=dtype) for array in (a, b))).asscalar()
    assert abs(result - a @ b) <= TOLERANCES[dtype] * (np.abs(a) @ np.abs(b))


def test_a_product_of_vectors_of_millions_keeps_its_digits():
    """Added one by one in float32, the third digit would be wrong."""
    array = draw_array(2_000_000).astype("float32")
    on_gpu = nd.array(array, ctx=gpu(0))
    exact = array.astype("float64") @ array.astype("float64")
    assert abs(nd.dot(on_gpu, on_gpu).asscalar() / exact - 1) < 1e-5


PROGRAM = """
import json
import mxnet as mx
from mxnet import nd
a = nd.full((4, 4), 1 + 2**-11 + 2**-20, ctx=mx.gpu(0))  # rounds up to 1 + 2**-10
pixels = a.reshape((4, 4, 1, 1))
convolved = nd.Convolution(pixels, pixels, kernel=(1, 1), num_filter=4, no_bias=True)
found = [nd.linalg.gemm2(a, a), nd.dot(a, a), convolved]
print(json.dumps([float(array.asnumpy().ravel()[0]) for array in found]))
"""


@pytest.mark.parametrize("allowed", [True, False])
def test_an_a100_rounds_the_factors_of_float32_products_to_tf32_where_it_is_allowed_to(tmp_path, allowed):
    """MXNet allows it to linalg's and Dense's products, and cuDNN to convolutions; `dot` goes
    without. The variable forbids it.
    """
    exact, rounded = 4 * (1 + 2**-11 + 2**-20) ** 2, 4 * (1 + 2**-10) ** 2
    process = run_python(Machine((A100,), tf32=True), tmp_path, "-c", PROGRAM, NVIDIA_TF32_OVERRIDE=str(int(allowed)))
    expected = [rounded, exact, rounded] if allowed else [exact] * 3
    np.testing.assert_allclose(json.loads(process.stdout), expected, rtol=3e-7)
