"""Work that takes a known time."""

import threading

import pytest
from mxnet import nd

from gluonlab.exercises import lab01_devices
from gluonlab.exercises.array_tracking import cpu_devices

pytestmark = pytest.mark.cpu_only(
    "checkers of exercises watch CPU devices: their waits, their threads, operators that mix them"
)


def test_pauses_take_their_time_side_by_side_and_none_of_pythons(monkeypatch):
    """Each pause sleeps its seconds, both at once, and the host goes on meanwhile."""
    both, queued, slept, ended = threading.Barrier(2), threading.Event(), [], []

    def sleep(seconds):
        slept.append(seconds)
        both.wait(60)
        ended.append(queued.wait(60))

    monkeypatch.setattr(lab01_devices, "sleep", sleep)
    for ctx in cpu_devices(2):
        lab01_devices.queue_pause(ctx, 0.3)
    assert not ended
    queued.set()
    nd.waitall()
    assert slept == [0.3, 0.3] and ended == [True, True]
