"""Work that takes a known time."""

import time

import pytest
from mxnet import nd

from gluonlab.exercises.lab01.pause import queue_pause
from gluonlab.exercises.shared.arrays import cpus

pytestmark = pytest.mark.cpu_only(
    "checkers of exercises watch CPU devices: their waits, their threads, operators that mix them"
)


@pytest.mark.alone
def test_pauses_take_their_time_side_by_side_and_none_of_pythons():
    nd.waitall()
    began = time.perf_counter()
    for ctx in cpus(2):
        queue_pause(ctx, 0.3)
    queued = time.perf_counter() - began
    nd.waitall()
    assert queued < 0.3 <= time.perf_counter() - began < 0.6
