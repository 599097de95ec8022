"""The arrays of checkers: CPU devices of one thread, texts, modified inputs; and the copies between
devices, operations that mix devices, and waits that `watch` records.
"""

import numpy as np
import pytest
from mxnet import gluon, nd

from gluonlab.engine.cpu_threads import _set_team_sizes
from gluonlab.exercises import Wrong
from gluonlab.exercises.array_tracking import ArrayCopy, ArrayTrace, check_unmodified, cpu_devices, format_array, watch

pytestmark = pytest.mark.cpu_only(
    "checkers of exercises watch CPU devices: their waits, their threads, operators that mix them"
)


def test_a_single_device_of_a_checker_has_one_thread():
    (only,) = cpu_devices(1)
    assert _set_team_sizes({only.device_id: None}) == {only.device_id: 1}


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (nd.array([1, 2.5, -3]), "[1, 2.5, -3]"),
        (np.arange(20), "20 [0, 1, 2, 3, 4, 5, 6, 7, ...]"),
        (np.zeros((2, 2)), "2x2 [0, 0, 0, 0]"),
    ],
)
def test_an_array_as_text(array, text):
    assert format_array(array) == text


def test_a_modified_input_is_wrong():
    arrays = [nd.array([1, 2]), nd.array([3, 4])]
    check_unmodified(arrays, [[1, 2], [3, 4]])
    arrays[1] += 1
    with pytest.raises(Wrong, match=r"changed array 1 of its input from \[3, 4\] to \[4, 5\]"):
        check_unmodified(arrays, [[1, 2], [3, 4]])


def test_every_kind_of_copy_is_recorded_with_its_bytes():
    first, second = cpu_devices(2)
    a, b = nd.ones((2, 3), ctx=first), nd.zeros((2, 3), ctx=second)
    with watch() as trace:
        a.copyto(second)
        a.as_in_context(second)
        a.copyto(b)
        b[:] = a
        b[0:1] = a[0:1]
        gluon.utils.split_and_load(a, [first, second])
    assert trace == ArrayTrace([ArrayCopy(first, second, 24)] * 4 + [ArrayCopy(first, second, 12)] * 2)
    assert trace.received_bytes() == {second: 120}


def test_copies_within_a_device_are_not_recorded():
    first, _ = cpu_devices(2)
    a = nd.ones((2,), ctx=first, dtype="float64")
    with watch() as trace:
        a.copyto(first)
        a.as_in_context(first)
        a[:] = a + 1
    assert trace == ArrayTrace()


@pytest.mark.parametrize(
    "mix",
    [
        lambda a, b: a + b,
        lambda a, b: nd.add_n(a, b),
        lambda a, b: nd.concat(a, b, dim=0),
        lambda a, b: nd.elemwise_add(a, a, out=b),
        lambda a, b: a.__iadd__(b),
    ],
)
def test_an_operation_on_arrays_of_two_devices_is_recorded(mix):
    first, second = cpu_devices(2)
    with watch() as trace:
        mix(nd.ones((2,), ctx=first), nd.ones((2,), ctx=second))
    assert trace.mixed_inputs == [(first, second)]


def test_every_wait_is_counted_until_the_block_ends():
    first, second = cpu_devices(2)
    a = nd.ones((1,), ctx=first)
    with watch() as trace:
        for wait in (a.asnumpy, a.asscalar, a.__repr__, a.__bool__, a.wait_to_read, nd.waitall):
            wait()
    a.asnumpy()
    a.copyto(second)
    assert trace == ArrayTrace(waits=6)


def test_an_error_also_ends_the_recording():
    functions = nd.NDArray.asnumpy, nd.waitall
    with pytest.raises(ZeroDivisionError), watch():
        raise ZeroDivisionError
    assert (nd.NDArray.asnumpy, nd.waitall) == functions
