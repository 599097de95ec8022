"""The updates of MXNet's optimizers are on simulated GPUs what they are on the CPU."""

import mxnet as mx
import numpy as np
import pytest
from gpus.compared import assert_close, drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import cpu, gpu, nd

OPTIMIZERS = {
    "sgd": {}, "momentum": {"momentum": 0.9}, "nag": {"momentum": 0.9}, "signum": {"momentum": 0.9},
    "ftml": {}, "lamb": {}, "lars": {"momentum": 0.9}, "dcasgd": {}, "adam": {}, "adagrad": {},
    "rmsprop": {}, "centred": {"centered": True}, "adadelta": {}, "ftrl": {}, "adamax": {},
    "nadam": {},
}  # fmt: skip
MXNETS_NAME = {"momentum": "sgd", "centred": "rmsprop"}
# whose states MXNet makes of this type
OF_FLOAT32 = {"adagrad", "rmsprop", "centred", "adadelta", "ftrl"}


def updated(ctx, name, shapes, dtype, mixed, steps=3, **arguments):
    """The parameters after a few updates, with gradients that go by the step."""
    optimizer = mx.optimizer.create(
        MXNETS_NAME.get(name, name),
        learning_rate=0.05,
        multi_precision=mixed,
        **OPTIMIZERS[name],
        **arguments,
    )
    updater = mx.optimizer.get_updater(optimizer)
    weights = [
        nd.array(drawn(*shape, seed=place), ctx=ctx, dtype=dtype)
        for place, shape in enumerate(shapes)
    ]
    for step in range(steps):
        gradients = [
            nd.array(drawn(*shape, seed=step + 10), ctx=ctx, dtype=dtype) for shape in shapes
        ]
        updater(list(range(len(shapes))), gradients, weights)
    return [weight.asnumpy() for weight in weights]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed"])
def test_updates(name, dtype):
    if dtype == "float64" and name in OF_FLOAT32:
        return
    shapes = [(3, 5), (7,), (600, 2)]
    kind = "float16" if dtype == "mixed" else dtype
    for arguments in ({}, {"wd": 0.1, "clip_gradient": 0.5, "rescale_grad": 0.25}):
        found, wanted = (
            updated(ctx, name, shapes, kind, dtype == "mixed", **arguments)
            for ctx in (gpu(0), cpu())
        )
        for ours, theirs in zip(found, wanted):
            assert ours.dtype == theirs.dtype
            assert_close(ours, theirs, kind)


@settings(max_examples=12)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    dtype=st.sampled_from(["float32", "mixed"]),
    momentum=st.booleans(),
)
def test_many_parameters_at_once(sizes, dtype, momentum):
    """multi_sgd_update and the like; lars asks for norms of all, and has its rates on the
    device.
    """
    kind, shapes = "float16" if dtype == "mixed" else dtype, [(size,) for size in sizes]
    for name in ("momentum" if momentum else "sgd", "lars", "lamb"):
        found, wanted = (
            updated(ctx, name, shapes, kind, dtype == "mixed", 2) for ctx in (gpu(0), cpu())
        )
        for ours, theirs in zip(found, wanted):
            assert_close(ours, theirs, kind)


@given(
    sizes=st.lists(st.integers(1, 70_000), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_squares_of_norms_of_many_arrays(sizes, dtype):
    arrays = [drawn(size).astype(dtype) for size in sizes]
    found = nd.multi_sum_sq(
        *[nd.array(array, ctx=gpu(0), dtype=dtype) for array in arrays], num_arrays=len(arrays)
    ).asnumpy()
    np.testing.assert_allclose(
        found, [np.square(array.astype("float64")).sum() for array in arrays], rtol=1e-5
    )


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    wrong=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)
def test_whether_all_are_finite(sizes, dtype, wrong):
    arrays = [drawn(size) for size in sizes]
    if wrong is not None:
        arrays[-1][sizes[-1] // 2] = wrong
    arrays = [nd.array(array, ctx=gpu(0), dtype=dtype) for array in arrays]
    assert nd.multi_all_finite(*arrays, num_arrays=len(arrays)).asscalar() == (wrong is None)
    assert nd.all_finite(arrays[-1]).asscalar() == (wrong is None)


@given(
    size=st.integers(1, 200), threshold=st.sampled_from([0.25, 0.5, 1.0]), steps=st.integers(1, 3)
)
def test_gradients_in_two_bits(size, threshold, steps):
    """Two devices send -threshold, 0 or threshold, and keep what is left: a closed form."""
    store = mx.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": threshold})
    store.init("w", nd.zeros((size,), ctx=gpu(0)))
    left = [np.zeros(size, dtype="float32") for _ in range(2)]
    for step in range(steps):
        gradients = [drawn(size, seed=step + 2 * device).astype("float32") for device in range(2)]
        outs = [nd.zeros((size,), ctx=gpu(device)) for device in range(2)]
        store.pushpull(
            "w", [nd.array(gradients[device], ctx=gpu(device)) for device in range(2)], out=outs
        )
        total = np.zeros(size, dtype="float32")
        for device in range(2):
            left[device] += gradients[device]
            sent = np.where(
                left[device] >= threshold,
                threshold,
                np.where(left[device] <= -threshold, -threshold, 0),
            )
            left[device] -= sent.astype("float32")
            total += sent
        for out in outs:
            np.testing.assert_array_equal(out.asnumpy(), total)
