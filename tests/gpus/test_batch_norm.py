"""cuDNN's batch normalization on simulated GPUs is MXNet's own on the CPU, but for the running
variance.
"""

import numpy as np
from gpus.compared import assert_close, assert_same, draw_array
from gpus.simulated import counting
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, cpu, gpu, nd

SHAPES = st.lists(st.integers(2, 5), min_size=2, max_size=5)


def statistics(ctx, data, momentum=0.75, training=True, dtype="float32"):
    """(what comes out, the running mean, the running variance)"""
    channels = data.shape[1]
    kept = "float64" if dtype == "float64" else "float32"
    mean, variance = (nd.full((channels,), number, ctx=ctx, dtype=kept) for number in (0.5, 2))
    scale, bias = (nd.array(draw_array(channels, seed=seed), ctx=ctx, dtype=kept) for seed in (3, 4))
    data = nd.array(data, ctx=ctx, dtype=dtype)
    data.attach_grad()
    with autograd.record(train_mode=training):
        out = nd.BatchNorm(data, scale, bias, mean, variance, momentum=momentum, fix_gamma=False, eps=1e-3)
    if training:
        out.backward()  # the CPU's operator moves the running statistics then
    return out.asnumpy(), mean.asnumpy(), variance.asnumpy()


@given(
    shape=SHAPES,
    fixed=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
    request=st.sampled_from(["write", "add"]),
)
def test_batch_norm_and_its_gradients(shape, fixed, dtype, request):
    def normalise(x, scale, bias):
        kept = (nd.zeros(bias.shape, ctx=x.context, dtype=x.dtype), nd.ones(bias.shape, ctx=x.context, dtype=x.dtype))
        return nd.BatchNorm(x, scale, bias, *kept, fix_gamma=fixed, eps=1e-2)

    parameters = [draw_array(shape[1]), draw_array(shape[1], seed=5)]
    arrays = [draw_array(*shape), *parameters]
    assert_same(normalise, *arrays, dtype=dtype, request=request if not fixed else "write")


@given(shape=SHAPES, dtype=st.sampled_from(["float32", "float16"]), training=st.booleans())
def test_statistics_of_any_data_are_kept_in_float32_and_the_variance_without_bias(shape, dtype, training):
    data = (draw_array(*shape) + 1).astype("float16")
    out, mean, variance = statistics(gpu(0), data, dtype=dtype, training=training)
    expected, wanted_mean, wanted_variance = statistics(cpu(), data, training=training)
    assert mean.dtype == variance.dtype == np.float32
    assert_close(out, expected, dtype)
    assert_close(mean, wanted_mean)
    if training:
        count = data.size // data.shape[1]
        # n/(n-1) - 1
        wanted_variance += 0.25 * data.astype("float64").var((0, *range(2, data.ndim))) / (count - 1)
    assert_close(variance, wanted_variance)


@given(
    shape=SHAPES,
    fixed=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
    request=st.sampled_from(["write", "add"]),
)
def test_with_given_statistics_it_is_a_kernel_of_mxnets_own(shape, fixed, dtype, request):
    def normalise(x, scale, bias):
        mean, variance = (nd.full(bias.shape, number, ctx=x.context, dtype=x.dtype) for number in (0.25, 2))
        return nd.BatchNorm(x, scale, bias, mean, variance, fix_gamma=fixed, eps=0.5, use_global_stats=True)

    arrays = [draw_array(*shape), draw_array(shape[1]), draw_array(shape[1], seed=5)]
    with counting() as happened:
        assert_same(normalise, *arrays, dtype=dtype, request=request if not fixed else "write")
    assert not any("cudnnBatchNorm" in name for name in happened.names)


def test_normalization_outside_of_training_is_of_the_running_statistics():
    data = draw_array(4, 3, 2)
    out, mean, variance = statistics(gpu(0), data, training=False)
    assert (mean == 0.5).all() and (variance == 2).all()
    scale, bias = draw_array(3, seed=3), draw_array(3, seed=4)
    normal = (data - 0.5) / np.sqrt(2 + 1e-3) * scale[:, None] + bias[:, None]
    assert_close(out, normal)
