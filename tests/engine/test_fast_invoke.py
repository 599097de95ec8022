"""Arrays from the host, slices and shapes, without the cost and the waits of MXNet's own calls."""

import threading

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import contexts

from gluonlab.engine.cpu_threads import EngineCallback, push_engine_operation
from gluonlab.engine.fast_invoke import ShapeAndTypeReader, ndarray_from_numpy, slice_rows

ON_THE_HOST = pytest.mark.cpu_only("arrays on the host, which are the CPU's")


@ON_THE_HOST
@given(st.sampled_from([np.uint8, np.int32, np.float32]), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_ndarray_from_numpy_copies_an_array(dtype, shape):
    array = np.random.RandomState(0).randint(0, 256, shape).astype(dtype)
    for ctx, source in zip((None, mx.cpu(0), mx.cpu(1)), (array, array.T, array[::-1])):
        copy = ndarray_from_numpy(source, ctx)
        assert (copy.context, copy.dtype, copy.shape) == (ctx or mx.cpu(0), dtype, source.shape)
        assert np.array_equal(copy.asnumpy(), source)


@ON_THE_HOST
def test_ndarray_from_numpy_does_not_wait_for_a_busy_device():
    # nd.array would wait for the end of the work, which waits for the array.
    is_copied, in_time = threading.Event(), []
    work = EngineCallback(lambda context, parameter: in_time.append(is_copied.wait(300)))
    busy = mx.nd.zeros((1,), mx.cpu(0))
    busy.wait_to_read()
    push_engine_operation(work, busy, b"busy")
    array = ndarray_from_numpy(np.arange(5))
    is_copied.set()
    busy.wait_to_read()
    assert in_time == [True]
    assert array.asnumpy().tolist() == [0, 1, 2, 3, 4]


@given(
    st.sampled_from([np.uint8, np.int32, np.float32]),
    st.lists(st.integers(1, 4), max_size=3),
    st.lists(st.integers(0, 9), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_rows_are_the_slice_and_share_its_memory(dtype, rest, bounds):
    begin, end = bounds
    values = np.random.RandomState(0).randint(0, 256, (9, *rest)).astype(dtype)
    array = mx.nd.array(values, dtype=dtype, ctx=contexts(1)[0])
    some = slice_rows(array, begin, end)
    assert (some.dtype, some.context) == (dtype, array.context)
    assert np.array_equal(some.asnumpy(), values[begin:end])
    some[:] = 7
    values[begin:end] = 7
    assert np.array_equal(array.asnumpy(), values)
    assert type(slice_rows(array.as_np_ndarray(), begin, end)) is mx.np.ndarray


DTYPES = st.sampled_from(["uint8", "int32", "int64", "float16", "float32"])
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(st.lists(st.tuples(DTYPES, SHAPES), min_size=2, max_size=4))
def test_shapes_and_types_are_those_of_the_arrays(kinds):
    arrays, reader = [mx.nd.zeros(shape, contexts(1)[0], dtype) for dtype, shape in kinds], ShapeAndTypeReader()
    assert [reader.read_shape(array) for array in arrays] == [array.shape for array in arrays]
    types = {(array.dtype, reader.read_type_number(array)) for array in arrays}
    assert len(types) == len({dtype for dtype, _ in types}) == len({number for _, number in types})
