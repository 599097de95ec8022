"""Reduce-scatters out of place, compared with numpy's sums and with reduce-scatters in place."""

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
def tree_schedules(draw, devices):
    """Draw a reduce-scatter to rank 0 by a tree of any shape and pace for each chunk.

    Neighboring chunks may move together in a step with the sums of different ranks.
    """
    chunks, steps = draw(st.integers(1, 5)), [[] for _ in range(2 * devices)]
    for chunk in range(chunks):
        ready = [0] * devices  # the step from which a rank has what others send it
        for rank in range(devices - 1, 0, -1):
            to, when = draw(st.integers(0, rank - 1)), ready[rank] + draw(st.integers(0, 1))
            steps[when].append(Transfer(rank, to, chunk, "add"))
            ready[to] = max(ready[to], when + 1)
    return Schedule("on trees", "reduce_scatter", devices, chunks, (0,) * chunks, tuple(map(tuple, steps)))


def make_few_moves(schedule, arrays):
    """Sum as on GPUs: chunks that are adjacent in memory move as one. It also works on CPUs."""
    with patch.object(executor_module, "is_on_gpu", lambda array: True):
        return OutOfPlaceReduceScatter(schedule, arrays)


def join_owned(owned, sizes):
    """Return the sums as whole arrays, of which each element has one owner."""
    arrays = [np.full(size, np.nan) for size in sizes]
    for _, (index, begin, end), array in owned:
        assert np.isnan(arrays[index][begin:end]).all()  # no other owner
        arrays[index][begin:end] = array.asnumpy()
    return arrays


@settings(max_examples=20)
@given(
    st.sampled_from(sorted(HALVES)),
    st.integers(1, 6),
    st.lists(st.integers(0, 5) | st.integers(0, 1200), min_size=1, max_size=4),
    st.sampled_from(["float32", "float16", "float64"]),
)
@pytest.mark.parametrize("few_moves", [False, True])
def test_owners_get_the_bits_of_a_sum_in_place_and_arrays_stay(few_moves, name, devices, sizes, dtype):
    schedule, normal = reduce_scatter(name, devices), np.random.RandomState(devices).normal
    arrays = [[nd.array(normal(size=n), ctx, dtype) for n in sizes] for ctx in contexts(devices)]
    before = [[array.asnumpy() for array in row] for row in arrays]
    apart = make_few_moves(schedule, arrays) if few_moves else OutOfPlaceReduceScatter(schedule, arrays)
    for _ in range(2):
        apart.run()
    totals = join_owned(apart.owned, sizes)
    assert all(owned.array.context == arrays[owned.rank][0].context for owned in apart.owned)
    for row, expected in zip(arrays, before):
        assert all(np.array_equal(a.asnumpy(), b) for a, b in zip(row, expected))
    allreduce(schedule, arrays)
    for rank, part, array in apart.owned:
        assert np.array_equal(arrays[rank][part.array].asnumpy()[part.begin : part.end], array.asnumpy())
    for total, contributions in zip(totals, zip(*before)):
        exact = np.sum([array.astype("float64") for array in contributions], axis=0)
        np.testing.assert_allclose(total, exact, rtol=0, atol=16 * float(np.finfo(dtype).eps))


@examples(60)
@given(st.integers(3, 6).flatmap(tree_schedules))
def test_chunks_that_move_together_may_have_been_summed_separately(schedule):
    arrays = [[nd.full(10, 8**rank, ctx)] for rank, ctx in enumerate(contexts(schedule.world_size))]  # octal digits
    apart = make_few_moves(schedule, arrays)
    apart.run()
    [total] = join_owned(apart.owned, [10])
    assert [oct(int(value)) for value in total] == ["0o" + "1" * schedule.world_size] * 10


@pytest.mark.parametrize("name", sorted(HALVES))
@pytest.mark.parametrize("devices", [2, 3])
def test_earlier_writes_are_summed_and_later_writes_are_not(name, devices):
    """Only the engine orders readers and writers here; nothing waits in between."""
    arrays = [[nd.zeros((100_000,), ctx=ctx)] for ctx in contexts(devices)]
    apart = OutOfPlaceReduceScatter(reduce_scatter(name, devices), arrays)
    for number in range(1, 5):
        for (array,) in arrays:
            array[:] = number
        apart.run()
        sums = [nd.identity(owned.array) for owned in apart.owned]
        for (array,) in arrays:
            array[:] = -1
        assert all((total.asnumpy() == devices * number).all() for total in sums)
        assert all((array.asnumpy() == -1).all() for (array,) in arrays)


@pytest.mark.parametrize("name", sorted(HALVES))
@pytest.mark.parametrize("devices", [2, 5])
def test_memory_is_allocated_only_for_chunks_that_the_schedule_writes(name, devices):
    schedule, size = reduce_scatter(name, devices), 120
    apart = OutOfPlaceReduceScatter(schedule, [[nd.zeros((size,), ctx=ctx)] for ctx in contexts(devices)])
    written = {(transfer.dst, transfer.chunk) for step in schedule.steps for transfer in step}
    elements = sum(array.size for array in apart._sums.values())
    assert elements == len(written) * size // schedule.chunks
    assert name != "sharded" or elements == size  # each device has memory for the part that it owns


def test_arrays_may_share_memory_and_be_mxnets_numpy_s():
    arrays = [mx.np.arange(12, dtype="float32", ctx=ctx) + rank for rank, ctx in enumerate(contexts(3))]
    before = [array.asnumpy() for array in arrays]
    apart = OutOfPlaceReduceScatter(reduce_scatter("ring", 3), [[array, array, array[4:9]] for array in arrays])
    apart.run()
    total = sum(before)
    for result, expected in zip(join_owned(apart.owned, [12, 12, 5]), [total, total, total[4:9]]):
        assert np.array_equal(result, expected)
    assert all(np.array_equal(array.asnumpy(), old) for array, old in zip(arrays, before))


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
        [result] = join_owned(apart.owned, [arrays[0][0].size])
        np.testing.assert_allclose(result, expected.reshape(-1), rtol=1e-4, atol=1e-4)


def test_schedules_with_copies_and_arrays_that_do_not_fit_are_refused():
    arrays = [[nd.ones((4,), ctx=ctx)] for ctx in contexts(2)]
    for schedule, words in (
        (make_schedule("ring", 2), "ring copies chunks: use a reduce-scatter, which only adds"),
        (reduce_scatter("ring", 3), "ring is for 3 ranks, but there are arrays for 2"),
    ):
        with pytest.raises(ScheduleError, match=words):
            OutOfPlaceReduceScatter(schedule, arrays)
