"""cuDNN's activations, softmax and dropout on simulated GPUs are MXNet's own on the CPU."""

import numpy as np
import pytest
from gpus.compared import assert_close, assert_same, draw_array, output_and_gradients
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, cpu, gpu, nd

DTYPES = st.sampled_from(["float32", "float64", "float16"])
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(shape=SHAPES, kind=st.sampled_from(["relu", "sigmoid", "tanh"]), dtype=DTYPES)
def test_activations_and_their_gradients(shape, kind, dtype):
    assert_same(lambda x: nd.Activation(x, act_type=kind), draw_array(*shape), dtype=dtype)


@given(shape=st.tuples(*[st.integers(1, 5)] * 4), channels=st.booleans())
def test_softmax_and_its_gradient(shape, channels):
    if channels:
        assert_same(lambda x: nd.SoftmaxActivation(x, mode="channel"), draw_array(*shape))
    else:
        assert_same(lambda x: nd.SoftmaxActivation(x), draw_array(*shape[:2]))


@given(size=st.integers(1, 2000), share=st.sampled_from([0.1, 0.3, 0.9]), dtype=DTYPES)
def test_dropout_keeps_its_share_scaled_and_its_gradient_the_same_elements(size, share, dtype):
    ones = nd.ones((size,), ctx=gpu(0), dtype=dtype)
    ones.attach_grad()
    with autograd.record():
        out = nd.Dropout(ones, p=share)
    out.backward()
    out, gradient = out.asnumpy(), ones.grad.asnumpy()
    assert (out == gradient).all()
    np.testing.assert_allclose(out[out != 0], 1 / (1 - share), rtol=2e-3)
    kept = np.count_nonzero(out)
    # five deviations
    assert abs(kept - size * (1 - share)) <= 5 * np.sqrt(size * share * (1 - share)) + 1


@pytest.mark.parametrize(
    "operator",
    [
        lambda x: nd.Activation(x, act_type="tanh"),
        lambda x: nd.Pooling(x, kernel=(2, 2), pool_type="max"),
        lambda x: nd.SoftmaxActivation(x, mode="channel"),
    ],
)
def test_mxnet_writes_some_gradients_that_are_to_be_added(operator):
    """MXNet's own fault, as a real GPU shows it: cuDNN could add, and MXNet does not tell it to.

    The CPU's operators do.
    """
    data = [draw_array(1, 2, 4, 4).astype("float16")]
    written = output_and_gradients(gpu(0), operator, data)[1]
    assert_close(output_and_gradients(gpu(0), operator, data, request="add")[1], written)
    assert_close(output_and_gradients(cpu(), operator, data, request="add")[1], written + 1)


def test_dropout_drops_others_each_time():
    ones = nd.ones((1000,), ctx=gpu(0))
    with autograd.record():
        first, second = nd.Dropout(ones, p=0.5), nd.Dropout(ones, p=0.5)
    assert 300 < np.count_nonzero((first == second).asnumpy()) < 700
