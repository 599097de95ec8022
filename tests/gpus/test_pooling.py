"""cuDNN's pooling on simulated GPUs is MXNet's own on the CPU."""

import numpy as np
from gpus.compared import assert_same, draw_array, output_and_gradients
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gpu, nd


@st.composite
def poolings(draw):
    axes = draw(st.integers(2, 3))
    kernel = draw(st.tuples(*[st.integers(1, 3)] * axes))
    pad = tuple(draw(st.integers(0, size - 1)) for size in kernel)
    stride = draw(st.tuples(*[st.integers(1, 3)] * axes))
    attributes = dict(kernel=kernel, pad=pad, stride=stride, pool_type=draw(st.sampled_from(["max", "avg"])))
    if attributes["pool_type"] == "avg":
        attributes["count_include_pad"] = draw(st.booleans())
    shape = [draw(st.integers(1, 3)), draw(st.integers(1, 3)), *(size + draw(st.integers(0, 5)) for size in kernel)]
    return attributes, shape


@given(pooling=poolings(), dtype=st.sampled_from(["float32", "float64", "float16"]))
def test_poolings_and_their_gradients(pooling, dtype):
    attributes, shape = pooling
    assert_same(lambda x: nd.Pooling(x, **attributes), draw_array(*shape), dtype=dtype)


@given(shape=st.tuples(*[st.integers(1, 5)] * 4), kind=st.sampled_from(["max", "avg"]))
def test_pooling_of_whole_images(shape, kind):
    assert_same(lambda x: nd.Pooling(x, kernel=(1, 1), global_pool=True, pool_type=kind), draw_array(*shape))


@given(
    shape=st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(1, 9)] * 2),
    sizes=st.tuples(*[st.integers(1, 4)] * 2),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
)
def test_means_of_as_many_parts_as_are_asked_for(shape, sizes, dtype):
    assert_same(lambda x: nd.contrib.AdaptiveAvgPooling2D(x, output_size=sizes), draw_array(*shape), dtype=dtype)


@given(
    shape=st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(1, 6)] * 2),
    sizes=st.tuples(*[st.integers(1, 9)] * 2),
    aligns=st.booleans(),
    request=st.sampled_from(["write", "add"]),
)
def test_resizing_between_neighbors(shape, sizes, aligns, request):
    height, width = sizes

    def resize(x):
        return nd.contrib.BilinearResize2D(x, height=height, width=width, align_corners=aligns)

    assert_same(resize, draw_array(*shape), request=request)


@given(
    shape=st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(1, 6)] * 2),
    scale=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    request=st.sampled_from(["write", "add"]),
)
def test_elements_repeated_in_both_directions(shape, scale, dtype, request):
    """The gradient is a sum over windows."""
    repeat = lambda x: nd.UpSampling(x, scale=scale, sample_type="nearest")  # noqa: E731
    assert_same(repeat, draw_array(*shape), dtype=dtype, request=request)


def test_windows_may_look_over_the_edge():
    """The convention "full": means are of what lies on the image and its padding (numbers are of
    MXNet's test_pooling_full_2d).
    """
    for kind in ("max", "avg"):
        attributes = dict(kernel=(4, 5), pad=(1, 2), stride=(3, 4), pooling_convention="full", pool_type=kind)
        assert_same(lambda x, attributes=attributes: nd.Pooling(x, **attributes), draw_array(2, 2, 10, 10))


def test_of_equal_elements_the_first_has_the_gradient():
    ones = np.ones((1, 1, 2, 4))
    pool = lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")  # noqa: E731
    gradient = output_and_gradients(gpu(0), pool, [ones])[1]
    assert (gradient != 0).tolist() == [[[[True, False, True, False], [False] * 4]]]
    assert_same(pool, ones)


def test_overlapping_windows_add_their_gradients_in_any_order():
    """CUDNN_POOLING_MAX; MXNET_ENFORCE_DETERMINISM asks for the other."""
    pool = lambda x: nd.Pooling(x, kernel=(7, 7), stride=(1, 1), pool_type="max")  # noqa: E731
    assert len({output_and_gradients(gpu(0), pool, [draw_array(4, 4, 20, 20)])[1].tobytes() for _ in range(5)}) > 1
