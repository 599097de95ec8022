"""MXNet's reductions along any axes, and softmax, are on simulated GPUs what they are on the
CPU.
"""

import numpy as np
import pytest
from gpus.compared import assert_close, assert_same, drawn, results
from hypothesis import given
from hypothesis import strategies as st
from mxnet import cpu, gpu, nd

REALS = st.sampled_from(["float32", "float64", "float16"])
REQUESTS = st.sampled_from(["write", "add"])


@st.composite
def shapes_and_axes(draw):
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    return tuple(shape), tuple(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))


def distinct(*shape):
    """Numbers of which no two are equal, in float16 neither: the places of the largest one are no
    matter of luck.
    """
    size = int(np.prod(shape))
    return (np.random.RandomState(size).permutation(size) - size / 2).reshape(shape) / 8


@given(
    name=st.sampled_from(["sum", "mean", "max", "min", "nansum", "norm"]),
    case=shapes_and_axes(),
    keeps=st.booleans(),
    dtype=REALS,
    request=REQUESTS,
)
def test_reductions_and_their_gradients(name, case, keeps, dtype, request):
    shape, axes = case
    array = distinct(*shape)
    if name == "norm":
        axes = axes[:2]
        array[array == 0] = array.max() + 1 / 8  # at 0 the gradient is 0 / 0
    if len(shape) and np.prod(shape) <= 2000:  # what float16 tells apart
        assert_same(
            lambda x: getattr(nd, name)(x, axis=axes, keepdims=keeps),
            array,
            dtype=dtype,
            request=request,
        )


@given(case=shapes_and_axes(), dtype=st.sampled_from(["float32", "float64"]))
def test_products(case, dtype):
    shape, axes = case
    assert_same(lambda x: nd.prod(x, axis=axes), 1 + drawn(*shape) / 8, dtype=dtype)


@given(case=shapes_and_axes(), dtype=st.sampled_from(["int32", "int64", "int8", "uint8"]))
def test_sums_of_whole_numbers_are_exact(case, dtype):
    shape, axes = case
    array = np.floor(np.abs(drawn(*shape)) * 2)
    for name in ("sum", "max", "min"):
        found, wanted = (
            getattr(nd, name)(nd.array(array, ctx=ctx, dtype=dtype), axis=axes).asnumpy()
            for ctx in (gpu(0), cpu())
        )
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "shape, axis", [((3000, 7), 0), ((7, 3000), 1), ((2, 300, 31, 3), (0, 2)), ((100_000,), 0)]
)
def test_long_sums_in_parts(shape, axis):
    """MXNet sums them in parts first, whose sums it adds."""
    array = drawn(*shape).astype("float32")
    found = nd.sum(nd.array(array, ctx=gpu(0)), axis=axis).asnumpy()
    np.testing.assert_allclose(found, array.astype("float64").sum(axis), rtol=1e-5, atol=1e-3)


@given(case=shapes_and_axes(), dtype=REALS)
def test_the_places_of_the_largest_and_the_smallest(case, dtype):
    shape, axes = case
    array = distinct(*shape)
    if array.size > 2000:
        return
    for name in ("argmax", "argmin"):
        for ctx in (gpu(0), cpu()):
            found = getattr(nd, name)(nd.array(array, ctx=ctx, dtype=dtype), axis=axes[0]).asnumpy()
            np.testing.assert_array_equal(found, getattr(np, name)(array, axis=axes[0]))


@given(
    case=shapes_and_axes(),
    name=st.sampled_from(["softmax", "log_softmax", "softmin"]),
    dtype=REALS,
    request=REQUESTS,
    temperature=st.sampled_from([1.0, 2.0]),
)
def test_softmax_along_any_axis_and_its_gradient(case, name, dtype, request, temperature):
    shape, axes = case
    function = lambda x: getattr(nd, name)(x, axis=axes[0], temperature=temperature)  # noqa: E731
    assert_same(function, drawn(*shape) * 2, dtype=dtype, request=request)


@given(rows=st.integers(1, 6), columns=st.integers(1, 300))
def test_softmax_of_a_part_of_each_row(rows, columns):
    lengths = np.random.RandomState(rows * columns).randint(1, columns + 1, rows)
    array = drawn(rows, columns)
    found, wanted = (
        nd.softmax(
            nd.array(array, ctx=ctx), nd.array(lengths, ctx=ctx, dtype="int32"), use_length=True
        ).asnumpy()
        for ctx in (gpu(0), cpu())
    )
    assert_close(found, wanted)


@given(
    rows=st.integers(1, 6),
    columns=st.integers(2, 9),
    smoothing=st.sampled_from([0.0, 0.1]),
    ignores=st.booleans(),
)
def test_the_gradient_of_softmax_output(rows, columns, smoothing, ignores):
    labels = np.random.RandomState(rows + columns).randint(0, columns, rows)

    def function(x):
        return nd.SoftmaxOutput(
            x,
            nd.array(labels, ctx=x.context),
            smooth_alpha=smoothing,
            use_ignore=ignores,
            ignore_label=float(labels[0]),
        )

    found, wanted = (results(ctx, function, [drawn(rows, columns)]) for ctx in (gpu(0), cpu()))
    for ours, theirs in zip(found, wanted):
        assert_close(ours, theirs)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    dtype=st.sampled_from(["float32", "float64"]),
    request=REQUESTS,
)
def test_layer_norm_and_its_gradients(rows, columns, dtype, request):
    function = lambda x, gamma, beta: nd.LayerNorm(x, gamma, beta)  # noqa: E731
    assert_same(
        function,
        drawn(rows, columns),
        drawn(columns),
        drawn(columns, seed=1),
        dtype=dtype,
        request=request,
    )


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 2),
    channels=st.sampled_from([2, 4, 6]),
    mode=st.sampled_from(["group", "instance"]),
)
def test_group_and_instance_norm(shape, channels, mode):
    batch, size = shape
    image = drawn(batch, channels, size + 1, size + 2)
    if mode == "group":
        assert_same(
            lambda x, gamma, beta: nd.GroupNorm(x, gamma, beta, num_groups=2),
            image,
            drawn(2),
            drawn(2, seed=1),
        )
    else:
        assert_same(nd.InstanceNorm, image, drawn(channels), drawn(channels, seed=1))


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 4),
    mode=st.sampled_from(["instance", "channel", "spatial"]),
)
def test_l2_normalisation(shape, mode):
    assert_same(lambda x: nd.L2Normalization(x, mode=mode), drawn(*shape) + 0.1)
