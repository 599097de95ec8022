"""Schedules on real arrays, compared with numpy's sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import device, devices
from support.examples import examples

from gluonlab.collectives import schedule_executor as executor_module
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.collectives.schedule_executor import Executor, allreduce, make_allreduce
from gluonlab.errors import ScheduleError

import mxnet as mx  # isort: skip
from mxnet import nd  # isort: skip

TYPES = ("int32", "float32", "float16", "float64")


def draw_integers(seed, world_size, shapes):
    """Return contributions[rank][array] of small whole numbers, which every type sums exactly."""
    random = np.random.RandomState(seed)
    return [[random.randint(-9, 10, size=shape) for shape in shapes] for _ in range(world_size)]


def copy_to_devices(contributions, dtype):
    ctxs = devices(len(contributions))
    return [[nd.array(array, ctx=ctx, dtype=dtype) for array in arrays] for arrays, ctx in zip(contributions, ctxs)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces of 1 KiB, so that small arrays have several."""
    monkeypatch.setattr(executor_module, "PIECE_BYTES", 1024)


@examples(30, 60)
@given(
    st.sampled_from(sorted(ALGORITHMS)),
    st.integers(1, 8),
    st.lists(st.integers(1, 2000) | st.sampled_from([0, 1, 10_000]), min_size=1, max_size=3),
    st.sampled_from(TYPES),
    st.booleans(),
    st.integers(0, 1000),
)
def test_every_algorithm_leaves_the_exact_sum_on_every_device(name, world_size, sizes, dtype, whole, seed):
    contributions = draw_integers(seed, world_size, sizes)
    arrays = copy_to_devices(contributions, dtype)
    allreduce(make_schedule(name, world_size), arrays, whole)
    for copies, summands in zip(zip(*arrays), zip(*contributions)):
        assert all((array.asnumpy() == sum(summands)).all() for array in copies)
        assert {array.dtype for array in copies} == {np.dtype(dtype).type}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_operations_queued_before_and_after_keep_their_order(name):
    """The engine does not know aliases, so fences order them with earlier and later writes."""
    ctxs = devices(4)
    arrays = [[nd.zeros((8_000,), ctx=ctx)] for ctx in ctxs]
    executor = Executor(make_schedule(name, 4), arrays)
    nd.waitall()
    value = np.zeros(4)
    for number in range(1, 30):  # nothing waits in between
        for rank, (array,) in enumerate(arrays):
            array *= 0.25
            array += rank * number
        executor.run()
        value = np.full(4, (value * 0.25 + np.arange(4) * number).sum())
    for rank, (array,) in enumerate(arrays):
        np.testing.assert_allclose(array.asnumpy(), value[rank], rtol=1e-5)


def test_a_schedule_that_is_wrong_gives_wrong_sums():
    schedule = Schedule("half", "allreduce", 2, 1, (0,), ((Transfer(0, 1, 0, "add"),),))
    arrays = copy_to_devices([[np.array([1.0])], [np.array([2.0])]], "float32")
    allreduce(schedule, arrays)
    assert [float(rank[0].asscalar()) for rank in arrays] == [1.0, 3.0]


def test_make_allreduce_sums_any_lists_of_arrays():
    run = make_allreduce("tree", devices(3))
    for shape in [(4,), (2, 3), (4,)]:
        arrays = [nd.full(shape, rank + 1.0, ctx=ctx) for rank, ctx in enumerate(devices(3))]
        run(arrays)
        assert all((array.asnumpy() == 6).all() for array in arrays)


def make_ones(shapes=((4,), (4,)), numbers=(0, 1), **options):
    return [[nd.ones(shape, ctx=device(number), **options)] for shape, number in zip(shapes, numbers)]


@pytest.mark.parametrize(
    ("make_arrays", "message"),
    [
        (lambda: make_ones(shapes=((4,),)), "ring is for 2 ranks, but there are arrays for 1"),
        (lambda: make_ones(shapes=((4,), (5,))), r"rank 1 has float32\[5\], but rank 0 has float32\[4\]"),
        (lambda: [make_ones()[0], make_ones(dtype="float64")[1]], "rank 1 has float64"),
        (lambda: make_ones(numbers=(1, 1)), r"the ranks are on [cg]pu\(1\), [cg]pu\(1\): put each rank on a different"),
        (lambda: [array for [array] in make_ones()], r"\[\[a\], \[b\]\], not \[a, b\]"),
        (lambda: make_ones(dtype="bool"), "arrays of type bool cannot be added"),
        (lambda: [make_ones()[0], [nd.ones((4,), ctx=mx.Context("cpu_shared", 0))]],
         "the arrays are on (cpu, cpu_shared|cpu_shared, gpu)"),
        (lambda: [[], []], "rank 0 has no arrays"),
        (lambda: [[nd.sparse.zeros("row_sparse", (4, 2), ctx=device(number))] for number in (0, 1)], "sparse"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_and_leaves_the_arrays_as_they_are(make_arrays, message):
    arrays = make_arrays()
    before = [array.asnumpy() for row in arrays for array in row]
    with pytest.raises(ScheduleError, match=message):
        allreduce(make_schedule("ring", 2), arrays)
    for array, old in zip((array for row in arrays for array in row), before):
        assert np.array_equal(array.asnumpy(), old)
