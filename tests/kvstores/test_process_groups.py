"""The operations that a group of processes derives from sums: totals of numbers, and broadcasts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import device
from support.process_group import run_in_threads

from gluonlab.kvstores.process_groups import SINGLE_PROCESS

NUMBERS = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=False),
    st.integers(-(2**53), 2**53).map(float),
    st.floats(1e-20, 1e20),
)


@settings(max_examples=20)
@given(rows=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=4))
def test_all_reduce_values_sums_float64_in_the_order_of_ranks(rows):
    arrays = [np.array(row).reshape(1, 3) for row in rows]
    with np.errstate(invalid="ignore"):
        expected = np.sum(arrays, axis=0)

    def work(group):
        total = group.all_reduce_values(arrays[group.rank])
        assert {dtype for _, dtype in group.sums} == {"float32"}
        return total

    for total in run_in_threads(len(arrays), work):
        assert total.dtype == np.float64 and total.shape == (1, 3)
        np.testing.assert_array_equal(total, expected)


def test_all_gather_returns_the_values_of_each_process():
    rows = [[math.nan, 2.0**53, -0.1], [math.inf, 1e-20, 7.0], [0.0, -3.0, 2.0**53 - 1]]
    result = run_in_threads(3, lambda group: group.all_gather(np.array(rows[group.rank])))
    for table in result:
        np.testing.assert_array_equal(table, np.array(rows))
    alone = SINGLE_PROCESS.all_gather(np.array(4))
    assert (alone.shape, alone.dtype, alone.tolist()) == ((1,), np.float64, [4.0])


def test_broadcast_copies_the_arrays_of_rank_0():
    def work(group):
        arrays = [nd.full(shape, group.rank + 3, ctx=device()) for shape in ((2, 3), (6,))]
        group.broadcast(arrays)
        return [array.asnumpy().ravel().tolist() for array in arrays]

    assert run_in_threads(3, work) == [[[3.0] * 6] * 2] * 3


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=1500), min_size=1, max_size=4))
def test_all_gather_bytes_returns_the_bytes_of_each_process(rows):
    def work(group):
        result = group.all_gather_bytes(rows[group.rank])
        assert {dtype for _, dtype in group.sums} == {"float32"}
        return result

    assert run_in_threads(len(rows), work) == [rows] * len(rows)
    assert SINGLE_PROCESS.all_gather_bytes(rows[0]) == rows[:1]


@settings(max_examples=20)
@given(st.binary(max_size=5000))
def test_broadcast_bytes_returns_any_number_of_bytes_of_rank_0(data):
    def work(group):
        return group.broadcast_bytes(data if group.rank == 0 else b"ignored")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gluonlab.kvstores.process_groups.MAX_PAIRS", 256)
        assert run_in_threads(3, work) == [data] * 3
    assert SINGLE_PROCESS.broadcast_bytes(data) == data
