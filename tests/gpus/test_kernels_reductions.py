"""MXNet's reductions along any axes, and softmax, are on simulated GPUs what they are on the CPU."""

import numpy as np
import pytest
from gpus.compared import (
    EXACT,
    HOW,
    REALS,
    REQUESTS,
    YES,
    assert_alike,
    assert_equal,
    assert_same,
    draw_array,
    integers_up_to,
    output_and_gradients,
    shapes,
    shapes_of_axes,
)
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gpu, nd


@st.composite
def shapes_and_axes(draw):
    shape = draw(shapes(most=9, axes=5))
    return shape, tuple(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))


def distinct(*shape):
    """Numbers of which no two are equal, in float16 neither: the places of the largest one are no
    matter of luck.
    """
    size = int(np.prod(shape))
    return (np.random.RandomState(size).permutation(size) - size / 2).reshape(shape) / 8


@given(
    name=st.sampled_from(["sum", "mean", "max", "min", "nansum", "norm"]), case=shapes_and_axes(), keeps=YES, how=HOW
)
def test_reductions_and_their_gradients(name, case, keeps, how):
    shape, axes = case
    array = distinct(*shape)
    if name == "norm":
        axes = axes[:2]
        array[array == 0] = array.max() + 1 / 8  # at 0 the gradient is 0 / 0
    if array.size <= 2000:  # what float16 tells apart
        assert_same(lambda x: getattr(nd, name)(x, axis=axes, keepdims=keeps), array, **how)


@given(case=shapes_and_axes(), dtype=EXACT)
def test_products(case, dtype):
    shape, axes = case
    assert_same(lambda x: nd.prod(x, axis=axes), 1 + draw_array(*shape) / 8, dtype=dtype)


@given(case=shapes_and_axes(), dtype=st.sampled_from(["int32", "int64", "int8", "uint8"]))
def test_sums_of_whole_numbers_are_exact(case, dtype):
    shape, axes = case
    values = np.floor(np.abs(draw_array(*shape)) * 2)

    def reduced(ctx):
        array = nd.array(values, ctx=ctx, dtype=dtype)
        return [getattr(nd, name)(array, axis=axes) for name in ("sum", "max", "min")]

    assert_equal(reduced)


@pytest.mark.parametrize("shape, axis", [((3000, 7), 0), ((7, 3000), 1), ((2, 300, 31, 3), (0, 2)), ((100_000,), 0)])
def test_long_sums_in_parts(shape, axis):
    """MXNet sums them in parts first, whose sums it adds."""
    array = draw_array(*shape).astype("float32")
    result = nd.sum(nd.array(array, ctx=gpu(0)), axis=axis).asnumpy()
    np.testing.assert_allclose(result, array.astype("float64").sum(axis), rtol=1e-5, atol=1e-3)


@given(case=shapes_and_axes(), dtype=REALS, name=st.sampled_from(["argmax", "argmin"]))
def test_the_places_of_the_largest_and_the_smallest(case, dtype, name):
    shape, (axis, *_) = case
    array = distinct(*shape)
    if array.size <= 2000:
        result = getattr(nd, name)(nd.array(array, ctx=gpu(0), dtype=dtype), axis=axis)
        np.testing.assert_array_equal(result.asnumpy(), getattr(np, name)(array, axis=axis))


@given(
    case=shapes_and_axes(), name=st.sampled_from(["softmax", "log_softmax", "softmin"]), how=HOW,
    temperature=st.sampled_from([1.0, 2.0]),
)  # fmt: skip
def test_softmax_along_any_axis_and_its_gradient(case, name, how, temperature):
    shape, (axis, *_) = case
    function = lambda x: getattr(nd, name)(x, axis=axis, temperature=temperature)  # noqa: E731
    assert_same(function, draw_array(*shape) * 2, **how)


@given(rows=integers_up_to(6), columns=integers_up_to(300))
def test_softmax_of_a_part_of_each_row(rows, columns):
    lengths = np.random.RandomState(rows * columns).randint(1, columns + 1, rows)

    def softmax(ctx):
        of_rows = nd.array(lengths, ctx=ctx, dtype="int32")
        return nd.softmax(nd.array(draw_array(rows, columns), ctx=ctx), of_rows, use_length=True)

    assert_alike(softmax)


@given(rows=integers_up_to(6), columns=st.integers(2, 9), smoothing=st.sampled_from([0.0, 0.1]), ignores=YES)
def test_the_gradient_of_softmax_output(rows, columns, smoothing, ignores):
    labels = np.random.RandomState(rows + columns).randint(0, columns, rows)
    how = dict(smooth_alpha=smoothing, use_ignore=ignores, ignore_label=float(labels[0]))

    def function(x):
        return nd.SoftmaxOutput(x, nd.array(labels, ctx=x.context), **how)

    assert_alike(lambda ctx: output_and_gradients(ctx, function, [draw_array(rows, columns)]))


@given(rows=integers_up_to(40), columns=integers_up_to(70), dtype=EXACT, request=REQUESTS)
def test_layer_norm_and_its_gradients(rows, columns, dtype, request):
    arrays = [draw_array(rows, columns), draw_array(columns), draw_array(columns, seed=1)]
    assert_same(lambda *xs: nd.LayerNorm(*xs), *arrays, dtype=dtype, request=request)


@given(shape=shapes_of_axes(2, most=5), channels=st.sampled_from([2, 4, 6]), groups=YES)
def test_group_and_instance_norm(shape, channels, groups):
    image = draw_array(shape[0], channels, shape[1] + 1, shape[1] + 2)
    if groups:
        function, of_each = lambda *xs: nd.GroupNorm(*xs, num_groups=2), 2
    else:
        function, of_each = nd.InstanceNorm, channels
    assert_same(function, image, draw_array(of_each), draw_array(of_each, seed=1))


@given(shape=shapes_of_axes(4, most=5), mode=st.sampled_from(["instance", "channel", "spatial"]))
def test_l2_normalization(shape, mode):
    assert_same(lambda x: nd.L2Normalization(x, mode=mode), draw_array(*shape) + 0.1)
