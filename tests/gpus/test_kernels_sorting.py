"""MXNet's sorts and random numbers on simulated GPUs: the order of numpy, and the distributions
that are asked for.
"""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gpu, nd

TYPES = ["float32", "float64", "int32", "int64", "uint8", "int8"]


@pytest.fixture(scope="module", autouse=True)
def scratch_memory():
    """MXNet keeps scratch memory for sorts, and four states of its random numbers for each device:
    these are there before.
    """
    for ctx in (gpu(0), gpu(1)):
        nd.argsort(nd.zeros((300_000,), ctx=ctx), dtype="int32")
        nd.random.shuffle(nd.zeros((300_000,), ctx=ctx))
        for _ in range(8):
            nd.random.normal(shape=(1,), ctx=ctx)
            nd.random.randint(0, 2, shape=(1,), ctx=ctx)
    nd.waitall()


@given(rows=st.integers(1, 5), columns=st.integers(1, 60), dtype=st.sampled_from(TYPES), ascends=st.booleans())
def test_sorts_of_rows(rows, columns, dtype, ascends):
    values = np.stack(
        [np.random.RandomState(row + columns).permutation(columns) for row in range(rows)]
    ) - columns // 2 * (dtype != "uint8")
    array = nd.array(values, ctx=gpu(0), dtype=dtype)
    expected = np.sort(values, axis=1)[:, :: 1 if ascends else -1]
    places = np.argsort(values, axis=1)[:, :: 1 if ascends else -1]
    np.testing.assert_array_equal(nd.sort(array, is_ascend=ascends).asnumpy(), expected)
    np.testing.assert_array_equal(nd.argsort(array, is_ascend=ascends).asnumpy(), places)
    for most in {1, min(3, columns), columns}:
        np.testing.assert_array_equal(
            nd.topk(array, k=most, ret_typ="value", is_ascend=ascends).asnumpy(), expected[:, :most]
        )
        np.testing.assert_array_equal(nd.topk(array, k=most, is_ascend=ascends).asnumpy(), places[:, :most])


@pytest.mark.parametrize("size", [3000, 200_000])
def test_long_sorts_take_several_launches(size):
    values = np.random.RandomState(size).permutation(size).astype("float32") - size / 2
    np.testing.assert_array_equal(nd.sort(nd.array(values, ctx=gpu(0))).asnumpy(), np.sort(values))
    np.testing.assert_array_equal(nd.argsort(nd.array(values, ctx=gpu(0)), dtype="int32").asnumpy(), np.argsort(values))


@given(size=st.integers(1, 300), width=st.sampled_from([None, 2]))
def test_shuffling_is_a_permutation_of_rows(size, width):
    values = np.arange(size * (width or 1)).reshape((size, width) if width else (size,))
    shuffled = nd.random.shuffle(nd.array(values, ctx=gpu(0), dtype="int32")).asnumpy()
    order = np.argsort(shuffled[:, 0] if width else shuffled)
    np.testing.assert_array_equal(shuffled[order], values)


# What they are given, their mean and their deviation.
DISTRIBUTIONS = {
    "uniform": ({"low": -1, "high": 3}, 1, 4 / 12**0.5),
    "normal": ({"loc": 2, "scale": 3}, 2, 3),
    "exponential": ({"scale": 2}, 2, 2),
    "gamma": ({"alpha": 3, "beta": 2}, 6, 12**0.5),
    "poisson": ({"lam": 4}, 4, 2),
    "randint": ({"low": 0, "high": 10}, 4.5, (99 / 12) ** 0.5),
}


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_distributions_by_mean_and_deviation(name):
    arguments, mean, deviation = DISTRIBUTIONS[name]
    mx.random.seed(5)
    drawn = [getattr(nd.random, name)(shape=(200, 100), ctx=gpu(0), **arguments).asnumpy() for _ in range(2)]
    assert (drawn[0] != drawn[1]).any()
    for numbers in drawn:
        assert abs(numbers.mean() - mean) < 5 * deviation / numbers.size**0.5
        np.testing.assert_allclose(numbers.std(), deviation, rtol=0.05)
    mx.random.seed(5)
    np.testing.assert_array_equal(
        getattr(nd.random, name)(shape=(200, 100), ctx=gpu(0), **arguments).asnumpy(), drawn[0]
    )


def test_gpus_draw_other_numbers_than_each_other():
    mx.random.seed(1)
    first, second = (nd.random.normal(shape=(100,), ctx=gpu(device)).asnumpy() for device in range(2))
    assert (first != second).any()


@given(share=st.sampled_from([0.2, 0.7]), rows=st.integers(20, 60))
def test_dropout_of_whole_rows(share, rows):
    """With `axes`, MXNet draws a mask by itself and broadcasts it."""
    with mx.autograd.train_mode():
        out = nd.Dropout(nd.ones((rows, 9), ctx=gpu(0)), p=share, axes=(1,)).asnumpy()
    assert (out == out[:, :1]).all()
    np.testing.assert_allclose(out[out != 0], 1 / (1 - share), rtol=1e-5)
    assert abs(np.count_nonzero(out[:, 0]) - rows * (1 - share)) <= 5 * (rows * share * (1 - share)) ** 0.5
