"""cuDNN's convolutions on simulated GPUs are MXNet's own on the CPU, and its algorithms are what
NVIDIA says of them.
"""

import numpy as np
import pytest
from gpus.compared import assert_same, draw_array, output_and_gradients
from gpus.simulated import counting
from hypothesis import given
from hypothesis import strategies as st
from mxnet import cpu, gpu, nd

DTYPES = st.sampled_from(["float32", "float64", "float16"])
REQUESTS = st.sampled_from(["write", "add"])


@st.composite
def convolutions(draw, most_axes=3):
    """(attributes, shape of the input, of the weight, whether there is a bias)"""
    axes = draw(st.integers(1, most_axes))
    each = st.tuples(*[st.integers(1, 3)] * axes)
    kernel, stride, dilate = draw(each), draw(each), draw(st.tuples(*[st.integers(1, 2)] * axes))
    pad = tuple(draw(st.integers(0, 2)) for _ in range(axes))
    sizes = [(k - 1) * d + 1 - 2 * p for k, d, p in zip(kernel, dilate, pad)]
    sizes = tuple(max(1, size) + draw(st.integers(0, 6)) for size in sizes)
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, filters = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 4))
    attributes = dict(kernel=kernel, stride=stride, dilate=dilate, pad=pad, num_group=groups, num_filter=filters)
    return (
        attributes,
        (draw(st.integers(1, 4)), channels, *sizes),
        (filters, channels // groups, *kernel),
        draw(st.booleans()),
    )


@given(drawn_one=convolutions(), dtype=DTYPES, request=REQUESTS)
def test_convolutions_and_their_gradients(drawn_one, dtype, request):
    attributes, data, weight, biased = drawn_one
    arrays = [draw_array(*data), draw_array(*weight)] + [draw_array(attributes["num_filter"])] * biased
    assert_same(
        lambda *them: nd.Convolution(*them, no_bias=not biased, **attributes), *arrays, dtype=dtype, request=request
    )


@given(drawn_one=convolutions(most_axes=2), dtype=DTYPES)
def test_transposed_convolutions_and_their_gradients(drawn_one, dtype):
    attributes, data, (filters, part, *kernel), biased = drawn_one
    groups = attributes["num_group"]
    attributes = {**attributes, "num_filter": part * groups, "pad": tuple(0 for _ in kernel)}
    arrays = [draw_array(data[0], filters, *data[2:]), draw_array(filters, part, *kernel)] + [
        draw_array(part * groups)
    ] * biased
    assert_same(lambda *them: nd.Deconvolution(*them, no_bias=not biased, **attributes), *arrays, dtype=dtype)


def test_channels_may_come_last():
    # NHWC, and (filters, height, width, channels)
    data, weight = draw_array(2, 5, 6, 3), draw_array(4, 3, 2, 3)

    def last(x, w):
        return nd.Convolution(x, w, kernel=(3, 2), num_filter=4, no_bias=True, layout="NHWC")

    def first(x, w):
        x, w = x.transpose((0, 3, 1, 2)), w.transpose((0, 3, 1, 2))
        return nd.Convolution(x, w, kernel=(3, 2), num_filter=4, no_bias=True).transpose((0, 2, 3, 1))

    for result, expected in zip(
        output_and_gradients(gpu(0), last, [data, weight]), output_and_gradients(cpu(), first, [data, weight])
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


# Several images at once go through one product; more than one block of them, too.
@pytest.mark.parametrize("shape", [(70, 3, 40, 40), (1, 1, 1, 1)])
def test_images_in_blocks(shape):
    size = min(3, shape[2])
    weight = draw_array(2, shape[1], size, size)
    convolve = lambda x, w: nd.Convolution(x, w, kernel=(size, size), num_filter=2, no_bias=True)  # noqa: E731
    assert_same(convolve, draw_array(*shape), weight)


def gradients(weights=(32, 16, 3, 3)):
    arrays = [draw_array(8, 16, 9, 9), draw_array(*weights)]
    convolve = lambda x, w: nd.Convolution(x, w, kernel=(3, 3), num_filter=32, no_bias=True)  # noqa: E731
    return [result.tobytes() for result in output_and_gradients(gpu(0), convolve, arrays)]


def test_a_gradient_has_other_bits_each_time_unless_determinism_is_enforced(monkeypatch):
    """MXNET_CUDNN_AUTOTUNE_DEFAULT=0: cuDNN guesses what is fastest, and these algorithms add in
    any order.
    """
    monkeypatch.setenv("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0")
    several = [gradients() for _ in range(4)]
    assert len({forward for forward, *_ in several}) == 1
    assert len({data for _, data, _ in several}) > 1
    assert len({weight for *_, weight in several}) > 1


def test_a_convolution_counts_as_one_call_for_each_direction():
    gradients()
    with counting() as happened:
        gradients()
    calls = {name: times for name, times in happened.names.items() if name.startswith("cudnnConvolution")}
    kinds = ("Forward", "BackwardData", "BackwardFilter")
    assert calls == {f"cudnnConvolution{kind}": 1 for kind in kinds}
