"""The executor among other work on the same arrays, whatever MXNet has done to them before."""

import numpy as np
import pytest
from support.covering import pairwise
from support.devices import contexts, runs_on_gpus
from support.reference import run_convolution
from support.schedule_reference import execute_schedule

from gluonlab.collectives import schedule_executor
from gluonlab.collectives.algorithms import ALGORITHMS, HALVES, make_schedule
from gluonlab.collectives.chunk_layout import partition
from gluonlab.collectives.schedule import ADD, COPY, Schedule, Transfer
from gluonlab.collectives.schedule_executor import Executor, allreduce, make_allreduce
from gluonlab.collectives.verify_schedule import verify

import mxnet as mx  # isort: skip
from mxnet import autograd, nd  # isort: skip


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_reads_queued_before_the_allreduce_see_the_old_values(name):
    """The reader waits for slow work on its other input, and only then reads the array."""
    ctxs, side = contexts(2), 60 if runs_on_gpus() else 300  # a simulated GPU is slow enough
    arrays = [[nd.ones((side, side), ctx=ctx)] for ctx in ctxs]
    executor = Executor(make_schedule(name, 2), arrays)
    averages = [nd.ones((side, side), ctx=ctx) / side for ctx in ctxs]
    for _ in range(5):
        for (array,) in arrays:
            array[:] = 1
        nd.waitall()
        products = []
        for (array,), average in zip(arrays, averages):
            slow = average
            for _ in range(3):
                slow = nd.dot(slow, average)
            products.append(nd.dot(slow, array))
        executor.run()
        for product, (array,) in zip(products, arrays):
            np.testing.assert_allclose(product.asnumpy(), 1, rtol=1e-4)
            assert (array.asnumpy() == 2).all()


@pytest.mark.parametrize("name", sorted(HALVES))
@pytest.mark.parametrize("world_size", [2, 3])
def test_writes_queued_after_the_allreduce_are_not_summed(name, world_size):
    """After a reduce-scatter a rank may write, although others still need its old values."""
    size = 20_000 if runs_on_gpus() else 2_000_000
    scatter = HALVES[name][0](world_size)
    arrays = [[nd.ones((size,), ctx=ctx)] for ctx in contexts(world_size)]
    executor, parts = Executor(scatter, arrays), partition([size], scatter.chunks)
    for _ in range(4):
        for (array,) in arrays:
            array[:] = 1
        nd.waitall()
        executor.run()
        owned = [(arrays[owner][0], part) for owner, chunk in zip(scatter.owner, parts) for part in chunk]
        sums = [nd.identity(array[part.begin : part.end]) for array, part in owned]
        for (array,) in arrays:
            array[:] = 0
        assert all((array.asnumpy() == world_size).all() for array in sums)


def test_slices_of_one_array_of_mxnets_numpy_may_be_summed_together():
    whole = [mx.np.ones((100,), ctx=ctx) for ctx in contexts(2)]
    allreduce(make_schedule("ring", 2), [[array[:30], array[30:90]] for array in whole])
    assert all((array.asnumpy() == [2] * 90 + [1] * 10).all() for array in whole)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_arrays_in_onednns_own_layout_are_summed(name):
    ctxs = contexts(3)
    made_of_blocks = [[run_convolution(ctx, rank)] for rank, ctx in enumerate(ctxs)]
    expected = sum(run_convolution(ctx, rank).asnumpy() for rank, ctx in enumerate(ctxs))
    allreduce(make_schedule(name, 3), made_of_blocks)
    blocks_later = [[nd.zeros((2, 32, 8, 8), ctx=ctx)] for ctx in ctxs]
    executor = Executor(make_schedule(name, 3), blocks_later)
    for _ in range(2):
        for rank, ctx in enumerate(ctxs):
            run_convolution(ctx, rank, out=blocks_later[rank][0])
        executor.run()
    for (array,) in made_of_blocks + blocks_later:
        np.testing.assert_allclose(array.asnumpy(), expected, rtol=1e-4, atol=1e-4)


@pairwise(name=sorted(ALGORITHMS), world_size=[2, 3, 4, 5], type_name=["float32", "float16", "float64"])
def test_bits_are_those_of_additions_in_the_schedules_order(name, world_size, type_name):
    schedule, size = make_schedule(name, world_size), 840  # which all numbers of chunks divide
    draws = np.random.RandomState(1).normal(size=(world_size, size))
    draws = (draws * 2.0 ** np.arange(world_size)[:, None]).astype(type_name)
    arrays = [[nd.array(draw, ctx=ctx, dtype=type_name)] for draw, ctx in zip(draws, contexts(8))]
    with np.errstate(over="ignore"):
        expected, _ = execute_schedule(schedule, draws.reshape(world_size, schedule.chunks, -1))
    allreduce(schedule, arrays)
    assert len({row.tobytes() for row in expected}) == 1
    assert all(array.asnumpy().tobytes() == expected[0].tobytes() for (array,) in arrays)


def test_bits_that_the_proof_calls_equal_are_equal():
    """Rank 0 sums in one step of two additions, rank 1 in two steps; then both send the sum."""
    moves = [(3, 2, ADD)], [(0, 3, COPY)], [(1, 0, ADD), (2, 0, ADD)], [(3, 1, ADD)], [(2, 1, ADD)]
    copies = [(0, 2, COPY), (1, 3, COPY)]
    steps = tuple(tuple(Transfer(src, dst, 0, op) for src, dst, op in step) for step in (*moves, copies))
    schedule = Schedule("two ways", "allreduce", 4, 1, (0,), steps)
    verify(schedule)
    draws = np.random.RandomState(0).normal(size=(4, 1000)) * 10.0 ** np.arange(4)[:, None]
    arrays = [[nd.array(draw, ctx=ctx)] for draw, ctx in zip(draws, contexts(4))]
    allreduce(schedule, arrays)
    assert len({array.asnumpy().tobytes() for (array,) in arrays}) == 1


def test_autograd_does_not_record_it():
    ctxs = contexts(2)
    run = make_allreduce("ring", ctxs)
    xs = [nd.ones((4,), ctx=ctx) for ctx in ctxs]
    for x in xs:
        x.attach_grad()
    with autograd.record():
        ys = [x * 2 for x in xs]
        run(ys)
        run(ys)
        zs = [(y * 3).sum() for y in ys]
    autograd.backward(zs)
    assert all((y.asnumpy() == 8).all() for y in ys)
    assert all((x.grad.asnumpy() == 6).all() for x in xs)


def test_make_allreduce_forgets_the_least_recently_used_list(monkeypatch):
    sizes = []

    class CountedExecutor(Executor):
        def __init__(self, schedule, arrays):
            sizes.append(arrays[0][0].size)
            super().__init__(schedule, arrays)

    monkeypatch.setattr(schedule_executor, "MAX_EXECUTORS", 2)
    monkeypatch.setattr(schedule_executor, "Executor", CountedExecutor)
    run = make_allreduce("star", contexts(2))
    lists = {size: [nd.ones((size,), ctx=ctx) for ctx in contexts(2)] for size in (1, 2, 3)}
    for size in (1, 2, 1, 3, 1, 2):
        run(lists[size])
    assert sizes == [1, 2, 3, 2]
    assert [int(lists[size][0].asnumpy()[0]) for size in (1, 2, 3)] == [8, 4, 2]
