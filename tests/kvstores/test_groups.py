"""What a group of processes makes of sums alone: totals of the host's numbers, and broadcasts."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import device
from support.process_group import in_processes

from gluonlab.kvstores.groups import ALONE

NUMBERS = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=False),
    st.integers(-(2**53), 2**53).map(float),
    st.floats(1e-20, 1e20),
)


@settings(max_examples=20)
@given(
    rows=st.integers(1, 4).flatmap(
        lambda size: st.lists(
            st.lists(NUMBERS, min_size=3, max_size=3), min_size=size, max_size=size
        )
    )
)
def test_a_total_is_that_of_float64_in_the_order_of_ranks_in_every_process(rows):
    """Although what travels is float32, as a parameter server makes of float64."""
    arrays = [np.array(row).reshape(1, 3) for row in rows]
    with np.errstate(invalid="ignore"):
        expected = np.sum(arrays, axis=0)

    def work(group):
        total = group.total(arrays[group.rank])
        assert {dtype for _, dtype in group.sums} == {"float32"}
        return total

    for total in in_processes(len(arrays), work):
        assert total.dtype == np.float64 and total.shape == (1, 3)
        np.testing.assert_array_equal(total, expected)


def test_totals_of_whole_numbers_are_exact():
    most = 2.0**53
    found = in_processes(2, lambda group: group.total(np.array([most - 5, 1.0, group.rank])))
    assert [total.tolist() for total in found] == [[2 * (most - 5), 2.0, 1.0]] * 2


def test_all_get_what_rank_0_has():
    def work(group):
        arrays = [nd.full(shape, group.rank + 3, ctx=device()) for shape in ((2, 3), (6,))]
        group.broadcast(arrays)
        return [array.asnumpy().ravel().tolist() for array in arrays]

    assert in_processes(3, work) == [[[3.0] * 6] * 2] * 3


def test_a_process_alone_has_the_sums():
    array = nd.ones((3,))
    ALONE.allreduce([array])
    ALONE.broadcast([array])
    assert array.asnumpy().tolist() == [1, 1, 1]
    assert ALONE.total(np.array([1, 2])).tolist() == [1.0, 2.0]
