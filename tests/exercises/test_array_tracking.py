"""The arrays of checkers: on devices of one thread, said in words, and not written into; and what
a checker sees of copies between devices, of operations that mix devices, and of waits.
"""

import numpy as np
import pytest
from mxnet import gluon, nd

from gluonlab.engine.cpu_threads import _set_team_sizes
from gluonlab.exercises import Wrong
from gluonlab.exercises.array_tracking import ArrayCopy, check_unmodified, cpu_devices, format_array, watch

pytestmark = pytest.mark.cpu_only(
    "checkers of exercises watch CPU devices: their waits, their threads, operators that mix them"
)


def test_one_device_of_a_checker_has_one_thread_even_alone():
    (only,) = cpu_devices(1)
    assert _set_team_sizes({only.device_id: None}) == {only.device_id: 1}


def test_arrays_in_words():
    assert format_array(nd.array([1, 2.5, -3])) == "[1, 2.5, -3]"
    assert format_array(np.arange(20)) == "20 [0, 1, 2, 3, 4, 5, 6, 7, ...]"
    assert format_array(np.zeros((2, 2))) == "2x2 [0, 0, 0, 0]"


def test_an_array_that_was_written_into_is_told():
    arrays = [nd.array([1, 2]), nd.array([3, 4])]
    check_unmodified(arrays, [[1, 2], [3, 4]])
    arrays[1] += 1
    with pytest.raises(Wrong, match=r"array 1 that it was given was \[3, 4\] and is \[4, 5\] afterwards"):
        check_unmodified(arrays, [[1, 2], [3, 4]])


def test_every_way_to_copy_is_seen_with_its_bytes():
    first, second = cpu_devices(2)
    a, b = nd.ones((2, 3), ctx=first), nd.zeros((2, 3), ctx=second)
    with watch() as seen:
        a.copyto(second)
        a.as_in_context(second)
        a.copyto(b)
        b[:] = a
        b[0:1] = a[0:1]
        gluon.utils.split_and_load(a, [first, second])
    assert seen.copies == [ArrayCopy(first, second, 24)] * 4 + [ArrayCopy(first, second, 12)] * 2
    assert seen.received_bytes() == {second: 120}
    assert not seen.mixed_inputs
    assert not seen.waits


def test_copies_within_a_device_are_none():
    first, _ = cpu_devices(2)
    a = nd.ones((2,), ctx=first, dtype="float64")
    with watch() as seen:
        a.copyto(first)
        a.as_in_context(first)
        a[:] = a + 1
    assert not seen.copies and not seen.mixed_inputs


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
def test_an_operation_on_arrays_of_two_devices_is_seen(mix):
    first, second = cpu_devices(2)
    with watch() as seen:
        mix(nd.ones((2,), ctx=first), nd.ones((2,), ctx=second))
    assert seen.mixed_inputs == [(first, second)]


def test_every_wait_is_counted_and_nothing_once_it_is_over():
    first, _ = cpu_devices(2)
    a = nd.ones((1,), ctx=first)
    with watch() as seen:
        for wait in (a.asnumpy, a.asscalar, a.__repr__, a.__bool__, a.wait_to_read, nd.waitall):
            wait()
    assert seen.waits == 6
    a.asnumpy()
    a.copyto(cpu_devices(2)[1])
    assert seen.waits == 6 and not seen.copies


def test_watching_ends_with_an_error_too():
    before = nd.NDArray.asnumpy, nd.waitall
    with pytest.raises(ZeroDivisionError), watch():
        raise ZeroDivisionError
    assert (nd.NDArray.asnumpy, nd.waitall) == before
