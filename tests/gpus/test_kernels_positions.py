"""Kernels of positions on simulated GPUs, beside the CPU's and numpy's: topk along any axis, masks,
diagonals, triangles.
"""

import mxnet as mx
import numpy as np
import pytest
from gpus.compared import (
    HOW,
    REQUESTS,
    SEEDS,
    YES,
    assert_equal,
    assert_same,
    draw_array,
    integers_up_to,
    output_and_gradients,
    run_on_both,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon, gpu, nd

DTYPES = st.sampled_from(["float16", "float32", "float64", "int32", "uint8"])


@pytest.fixture(scope="module", autouse=True)
def scratch_memory():
    nd.argsort(nd.zeros((300_000,), ctx=gpu(0)))
    nd.waitall()


def permuted(shape, seed):
    return np.random.RandomState(seed).permutation(int(np.prod(shape))).reshape(shape)


@given(
    shape=shapes(), axis=st.integers(0, 3), most=integers_up_to(6), ascends=YES,
    kind=st.sampled_from(["value", "indices", "mask", "both"]),
    dtype=st.sampled_from(["float32", "float64", "int32"]),
)  # fmt: skip
def test_topk_along_any_axis(shape, axis, most, kind, dtype, ascends):
    axis %= len(shape)
    how = dict(axis=axis, k=min(most, shape[axis]), ret_typ=kind, is_ascend=ascends)
    values = permuted(shape, axis)
    assert_equal(lambda ctx: nd.topk(nd.array(values, ctx=ctx, dtype=dtype), **how))


@given(shape=shapes(most=5, least=2), axis=st.integers(0, 3), request=REQUESTS, kind=st.sampled_from(["value", "both"]))
def test_gradients_of_topk_and_sort_along_any_axis(shape, axis, kind, request):
    axis %= len(shape)
    values = permuted(shape, axis)

    def largest(array):
        out = nd.topk(array, axis=axis, k=min(2, shape[axis]), ret_typ=kind)
        return out[0] if kind == "both" else out

    assert_same(largest, values, request=request)
    assert_same(lambda array: nd.sort(array, axis=axis), values, request=request)


@given(rows=integers_up_to(9), columns=integers_up_to(5), seed=SEEDS, request=REQUESTS)
def test_rows_chosen_by_a_mask(rows, columns, seed, request):
    """The CPU's gradient, where it is to be added, lacks the last row."""
    mask = np.random.RandomState(seed).randint(0, 2, rows)
    mask[seed % rows] = 1
    values = draw_array(rows, columns, seed=seed).astype("float32")
    choose = lambda array: nd.contrib.boolean_mask(array, nd.array(mask, ctx=gpu(0)))  # noqa: E731
    out, slope = output_and_gradients(gpu(0), choose, [values], request=request)
    np.testing.assert_array_equal(out, values[mask == 1])
    expected = np.full(values.shape, 1.0 if request == "add" else 0.0, "float32")
    expected[mask == 1] += draw_array(*out.shape, seed=1).astype("float32")
    np.testing.assert_array_equal(slope, expected)


@given(shape=shapes(most=5, axes=3), dtype=DTYPES, seed=SEEDS)
def test_elements_chosen_by_a_mask_and_the_places_of_what_is_not_0(shape, dtype, seed):
    values = np.random.RandomState(seed).randint(0, 3, shape)
    values.flat[0] = 1
    array = mx.np.array(values, ctx=gpu(0), dtype=dtype)
    np.testing.assert_array_equal(mx.npx.nonzero(array).asnumpy(), np.argwhere(values))
    if dtype != "float16":
        np.testing.assert_array_equal(array[array > 0].asnumpy(), values[values > 0])


@given(rows=integers_up_to(6), columns=integers_up_to(6), k=st.integers(-4, 4), dtype=DTYPES)
def test_matrices_that_are_made_by_position(rows, columns, k, dtype):
    made = {"ctx": gpu(0), "dtype": dtype}
    diagonal = nd.eye(rows, columns, k, **made).asnumpy()
    np.testing.assert_array_equal(diagonal, np.eye(rows, columns, k))
    np.testing.assert_array_equal(mx.np.identity(rows, **made).asnumpy(), np.identity(rows))
    numbers = mx.np.linspace(1, rows + 1, columns, **made).asnumpy()
    expected = np.linspace(1, rows + 1, columns).astype(dtype)
    np.testing.assert_allclose(numbers, expected, rtol=1e-3 if dtype == "float16" else 1e-6)


@given(rows=integers_up_to(6), columns=integers_up_to(6), k=st.integers(-2, 2), how=HOW)
def test_triangles_and_diagonals_of_matrices(rows, columns, k, how):
    matrix = draw_array(rows, columns)
    both = np.stack([matrix, matrix + 1])

    def assert_same_in_np(function, array):
        assert_same(lambda x: function(x.as_np_ndarray()).as_nd_ndarray(), array, **how)

    assert_same_in_np(lambda array: mx.np.tril(array, k), matrix)
    if -rows < k < columns:
        assert_same_in_np(lambda array: mx.np.diag(array, k), matrix)
    assert_same_in_np(lambda array: mx.np.diag(array, k), matrix[0])
    assert_same_in_np(lambda array: mx.np.diagonal(array, axis1=1, axis2=2), both)
    assert_same(lambda array: nd.diag(array, axis1=1, axis2=2), both, **how)


@given(batch=st.integers(2, 6), features=integers_up_to(5))
def test_the_loss_of_smoothed_metric_learning(batch, features):
    arrays = [draw_array(batch, features, seed=seed).astype("float32") for seed in (0, 7)]
    for on_gpu, on_cpu in zip(*run_on_both(lambda ctx: output_and_gradients(ctx, gluon.loss.SDMLLoss(), arrays))):
        # what is left of probabilities that are nearly equal
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-4, atol=2e-5)
