"""The arrays of checkers: on devices of one thread, said in words, and not written into."""

import numpy as np
import pytest
from mxnet import nd

from gluonlab.engine.threads import _team_sizes
from gluonlab.exercises import Wrong
from gluonlab.exercises.arrays import check_arrays, cpus, in_words

pytestmark = pytest.mark.cpu_only(
    "checkers of exercises watch CPU devices: their waits, their threads, operators that mix them"
)


def test_one_device_of_a_checker_has_one_thread_even_alone():
    (only,) = cpus(1)
    assert _team_sizes({only.device_id: None}) == {only.device_id: 1}


def test_arrays_in_words():
    assert in_words(nd.array([1, 2.5, -3])) == "[1, 2.5, -3]"
    assert in_words(np.arange(20)) == "20 [0, 1, 2, 3, 4, 5, 6, 7, ...]"
    assert in_words(np.zeros((2, 2))) == "2x2 [0, 0, 0, 0]"


def test_an_array_that_was_written_into_is_told():
    arrays = [nd.array([1, 2]), nd.array([3, 4])]
    check_arrays(arrays, [[1, 2], [3, 4]])
    arrays[1] += 1
    with pytest.raises(
        Wrong, match=r"array 1 that it was given was \[3, 4\] and is \[4, 5\] afterwards"
    ):
        check_arrays(arrays, [[1, 2], [3, 4]])
