"""Reduce-scatters that leave what they sum as it is, beside numpy's sums and those in place."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import contexts
from support.examples import examples
from support.reference import run_convolution

from gluonlab.collectives import schedule_executor as executor_module
from gluonlab.collectives.algorithms import HALVES, make_schedule
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.collectives.schedule_executor import OutOfPlaceReduceScatter, allreduce
from gluonlab.errors import ScheduleError

import mxnet as mx  # isort: skip
from mxnet import nd  # isort: skip


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces of 1 KiB, so that small arrays have several."""
    monkeypatch.setattr(executor_module, "PIECE_BYTES", 1024)


def reduce_scatter(name, devices):
    return HALVES[name][0](devices)


@st.composite
def on_trees(draw, devices):
    """A reduce-scatter to rank 0 by a tree of any shape and pace for each chunk.

    So neighboring chunks may go the same way in a step with sums of different ranks in them.
    """
    chunks, steps = draw(st.integers(1, 5)), [[] for _ in range(2 * devices)]
    for chunk in range(chunks):
        ready = [0] * devices  # the step from which a rank has what others send it
        for rank in range(devices - 1, 0, -1):
            to, when = draw(st.integers(0, rank - 1)), ready[rank] + draw(st.integers(0, 1))
            steps[when].append(Transfer(rank, to, chunk, "add"))
            ready[to] = max(ready[to], when + 1)
    made = tuple(map(tuple, steps))
    return Schedule("on trees", "reduce_scatter", devices, chunks, (0,) * chunks, made)


def in_few_moves(schedule, arrays):
    """Sum as on GPUs: chunks that are adjacent in memory move as one. It also works on CPUs."""
    with patch.object(executor_module, "is_on_gpu", lambda array: True):
        return OutOfPlaceReduceScatter(schedule, arrays)


def random_arrays(devices, sizes, dtype):
    normal = np.random.RandomState(devices).normal
    return [[nd.array(normal(size=n), ctx, dtype) for n in sizes] for ctx in contexts(devices)]


def put_together(owned, sizes):
    """The sums of whole arrays, where each element is somebody's."""
    whole = [np.full(size, np.nan) for size in sizes]
    for _, (place, begin, end), array in owned:
        assert np.isnan(whole[place][begin:end]).all()  # nobody else's
        whole[place][begin:end] = array.asnumpy()
    return whole


@settings(max_examples=20)
@given(
    st.sampled_from(sorted(HALVES)),
    st.integers(1, 6),
    st.lists(st.integers(0, 5) | st.integers(0, 1200), min_size=1, max_size=4),
    st.sampled_from(["float32", "float16", "float64"]),
)
@pytest.mark.parametrize("few_moves", [False, True])
def test_owners_get_the_bits_of_a_sum_in_place_and_arrays_stay(few_moves, name, devices, sizes, dtype):
    schedule, arrays = reduce_scatter(name, devices), random_arrays(devices, sizes, dtype)
    before = [[array.asnumpy() for array in of_rank] for of_rank in arrays]
    apart = in_few_moves(schedule, arrays) if few_moves else OutOfPlaceReduceScatter(schedule, arrays)
    for _ in range(2):
        apart.run()
    found = put_together(apart.owned, sizes)
    assert all(owned.array.context == arrays[owned.rank][0].context for owned in apart.owned)
    for of_rank, were in zip(arrays, before):
        assert all(np.array_equal(a.asnumpy(), b) for a, b in zip(of_rank, were))
    allreduce(schedule, arrays)
    for rank, part, array in apart.owned:
        in_place = arrays[rank][part.array].asnumpy()[part.begin : part.end]
        assert np.array_equal(in_place, array.asnumpy())
    for place, total in enumerate(found):
        exact = np.sum([were[place].astype("float64") for were in before], axis=0)
        np.testing.assert_allclose(total, exact, rtol=0, atol=16 * float(np.finfo(dtype).eps))


@examples(60)
@given(st.integers(3, 6).flatmap(on_trees))
def test_chunks_that_move_together_may_have_been_summed_separately(schedule):
    """Each rank's contribution is a one in an octal digit of its own."""
    arrays = [[nd.full(10, 8**rank, ctx)] for rank, ctx in enumerate(contexts(schedule.world_size))]
    apart = in_few_moves(schedule, arrays)
    apart.run()
    [total] = put_together(apart.owned, [10])
    assert [oct(int(value)) for value in total] == ["0o" + "1" * schedule.world_size] * 10


@pytest.mark.parametrize("name", sorted(HALVES))
@pytest.mark.parametrize("devices", [2, 3])
def test_earlier_writes_are_summed_and_later_writes_are_not(name, devices):
    """Nothing but the engine orders readers and writers here, and nothing waits in between."""
    arrays = [[nd.zeros((100_000,), ctx=ctx)] for ctx in contexts(devices)]
    apart = OutOfPlaceReduceScatter(reduce_scatter(name, devices), arrays)
    for turn in range(1, 5):
        for (array,) in arrays:
            array[:] = turn
        apart.run()
        sums = [nd.identity(owned.array) for owned in apart.owned]
        for (array,) in arrays:
            array[:] = -1
        assert all((total.asnumpy() == devices * turn).all() for total in sums)
        assert all((array.asnumpy() == -1).all() for (array,) in arrays)


@pytest.mark.parametrize("name", sorted(HALVES))
@pytest.mark.parametrize("devices", [2, 5])
def test_memory_is_allocated_only_for_chunks_that_the_schedule_writes(name, devices):
    schedule, size = reduce_scatter(name, devices), 120
    apart = OutOfPlaceReduceScatter(schedule, [[nd.zeros((size,), ctx=ctx)] for ctx in contexts(devices)])
    written = {(transfer.dst, transfer.chunk) for step in schedule.steps for transfer in step}
    elements = sum(array.size for array in apart._sums.values())
    assert elements == len(written) * size // schedule.chunks
    if name == "sharded":
        assert elements == size  # each device has memory for the part that it owns


def test_arrays_may_share_memory_and_be_mxnets_numpy_s():
    whole = [mx.np.arange(12, dtype="float32", ctx=ctx) + rank for rank, ctx in enumerate(contexts(3))]
    before = [array.asnumpy() for array in whole]
    arrays = [[array, array, array[4:9]] for array in whole]
    apart = OutOfPlaceReduceScatter(reduce_scatter("ring", 3), arrays)
    apart.run()
    total = sum(before)
    for found, expected in zip(put_together(apart.owned, [12, 12, 5]), [total, total, total[4:9]]):
        assert np.array_equal(found, expected)
    assert all(np.array_equal(array.asnumpy(), was) for array, was in zip(whole, before))


@pytest.mark.parametrize("name", sorted(HALVES))
@pytest.mark.parametrize("blocks_at_first", [False, True])
@pytest.mark.parametrize("devices", [1, 5])
def test_arrays_in_onednns_own_layout_are_summed(name, devices, blocks_at_first):
    ctxs, shape = contexts(devices), (2, 32, 8, 8)
    arrays = [
        [run_convolution(ctx, 9 + rank) if blocks_at_first else nd.zeros(shape, ctx)] for rank, ctx in enumerate(ctxs)
    ]
    apart = OutOfPlaceReduceScatter(reduce_scatter(name, devices), arrays)
    if blocks_at_first:
        apart.run()
    for seed in (0, 3):
        expected = 0
        for rank, ctx in enumerate(ctxs):
            expected += run_convolution(ctx, seed + rank).asnumpy().astype("float64")
            run_convolution(ctx, seed + rank, arrays[rank][0])
        apart.run()
        [found] = put_together(apart.owned, [arrays[0][0].size])
        np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-4, atol=1e-4)


def test_schedules_with_copies_and_arrays_that_do_not_fit_are_refused():
    arrays = [[nd.ones((4,), ctx=ctx)] for ctx in contexts(2)]
    for schedule, words in (
        (make_schedule("ring", 2), "ring copies chunks: give a reduce-scatter"),
        (reduce_scatter("ring", 3), "is for 3 ranks, and there are arrays of 2"),
    ):
        with pytest.raises(ScheduleError, match=words):
            OutOfPlaceReduceScatter(schedule, arrays)
