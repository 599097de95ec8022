"""The updates of MXNet's optimizers are on simulated GPUs what they are on the CPU."""

import mxnet as mx
import numpy as np
import pytest
from gpus.compared import REALS, assert_alike, draw_array, integers_up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import gpu, nd

OPTIMIZERS = {
    "sgd": {}, "momentum": {"momentum": 0.9}, "nag": {"momentum": 0.9}, "signum": {"momentum": 0.9}, "ftml": {},
    "lamb": {}, "lars": {"momentum": 0.9}, "dcasgd": {}, "adam": {}, "adagrad": {}, "rmsprop": {},
    "centered": {"centered": True}, "adadelta": {}, "ftrl": {}, "adamax": {}, "nadam": {},
}  # fmt: skip
MXNETS_NAME = {"momentum": "sgd", "centered": "rmsprop"}
# whose states MXNet makes of this type
OF_FLOAT32 = {"adagrad", "rmsprop", "centered", "adadelta", "ftrl"}


def assert_updates_alike(name, shapes, kind, steps=3, **arguments):
    """The parameters after a few updates, with gradients that go by the step; ``kind``: a type, or
    "mixed", float16 with weights in float32.
    """
    dtype = "float16" if kind == "mixed" else kind
    arguments = {"multi_precision": kind == "mixed", **OPTIMIZERS[name], **arguments}

    def updated(ctx):
        def arrays(seeds):
            return [nd.array(draw_array(*shape, seed=seed), ctx=ctx, dtype=dtype) for shape, seed in zip(shapes, seeds)]

        optimizer = mx.optimizer.create(MXNETS_NAME.get(name, name), learning_rate=0.05, **arguments)
        updater, weights = mx.optimizer.get_updater(optimizer), arrays(range(len(shapes)))
        for step in range(steps):
            updater(list(range(len(shapes))), arrays([step + 10] * len(shapes)), weights)
        return weights

    assert_alike(updated, dtype)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("kind", ["float32", "float64", "mixed"])
def test_updates(name, kind):
    if kind == "float64" and name in OF_FLOAT32:
        return
    for arguments in ({}, {"wd": 0.1, "clip_gradient": 0.5, "rescale_grad": 0.25}):
        assert_updates_alike(name, [(3, 5), (7,), (600, 2)], kind, **arguments)


@settings(max_examples=12)
@given(
    sizes=st.lists(integers_up_to(40), min_size=1, max_size=9),
    kind=st.sampled_from(["float32", "mixed"]),
    first=st.sampled_from(["momentum", "sgd"]),
)
def test_many_parameters_at_once(sizes, kind, first):
    """multi_sgd_update and the like; lars asks for norms of all, and has its rates on the device."""
    for name in (first, "lars", "lamb"):
        assert_updates_alike(name, [(size,) for size in sizes], kind, steps=2)


@given(sizes=st.lists(integers_up_to(70_000), min_size=1, max_size=4), dtype=st.sampled_from(["float32", "float16"]))
def test_squares_of_norms_of_many_arrays(sizes, dtype):
    arrays = [draw_array(size).astype(dtype) for size in sizes]
    on_gpu = [nd.array(array, ctx=gpu(0), dtype=dtype) for array in arrays]
    result = nd.multi_sum_sq(*on_gpu, num_arrays=len(arrays)).asnumpy()
    expected = [np.square(array.astype("float64")).sum() for array in arrays]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@given(
    sizes=st.lists(integers_up_to(300), min_size=1, max_size=8), dtype=REALS,
    wrong=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)  # fmt: skip
def test_whether_all_are_finite(sizes, dtype, wrong):
    arrays = [draw_array(size) for size in sizes]
    if wrong is not None:
        arrays[-1][sizes[-1] // 2] = wrong
    arrays = [nd.array(array, ctx=gpu(0), dtype=dtype) for array in arrays]
    assert nd.multi_all_finite(*arrays, num_arrays=len(arrays)).asscalar() == (wrong is None)
    assert nd.all_finite(arrays[-1]).asscalar() == (wrong is None)


@given(size=integers_up_to(200), threshold=st.sampled_from([0.25, 0.5, 1.0]), steps=integers_up_to(3))
def test_gradients_in_two_bits(size, threshold, steps):
    """Two devices send -threshold, 0 or threshold, and keep what is left: a closed form."""
    store = mx.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": threshold})
    store.init("w", nd.zeros((size,), ctx=gpu(0)))
    left = np.zeros((2, size), dtype="float32")
    for step in range(steps):
        gradients = [draw_array(size, seed=step + 2 * device).astype("float32") for device in range(2)]
        outs = [nd.zeros((size,), ctx=gpu(device)) for device in range(2)]
        sent = [nd.array(own, ctx=gpu(device)) for device, own in enumerate(gradients)]
        store.pushpull("w", sent, out=outs)
        left += gradients
        quantized = threshold * ((left >= threshold) - (left <= -threshold).astype("float32"))
        left -= quantized
        for out in outs:
            np.testing.assert_array_equal(out.asnumpy(), quantized.sum(axis=0))
