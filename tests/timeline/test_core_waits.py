"""A thread that is ready and has no core waits: the clock goes on, and its own does not."""

import ctypes
import math
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import mxnet as mx
import pytest
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.cpu_threads import EngineContext
from gluonlab.timeline import recorder
from gluonlab.timeline.recorder import CoreWaits

pytestmark = pytest.mark.cpu_only("GPUs' threads are not asked")
_ON_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
WAITED_S = 0.1  # how long the device's thread waits for its core in a test
HOG = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"


def on_its_thread(ctx, function):
    """Call it where the device computes, and wait for its end."""
    callback, array = _ON_WORKER(lambda *_: function()), nd.zeros((1,), ctx=ctx)
    where = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    handle = ctypes.byref(array.handle)
    check_call(_LIB.MXEnginePushSyncND(callback, None, None, where, None, 0, handle, 1, None, 0, b"test"))
    array.wait_to_read()


@contextmanager
def beside_a_hog(ctx):
    """The device's thread has to share its core with a process that computes for ever."""
    threads = []
    on_its_thread(ctx, lambda: threads.append(threading.get_native_id()))
    before = os.sched_getaffinity(threads[0])
    core = min(before)
    hog = subprocess.Popen([sys.executable, "-c", HOG % core], stdout=subprocess.PIPE)
    try:
        hog.stdout.readline()
        os.sched_setaffinity(threads[0], {core})
        yield
    finally:
        os.sched_setaffinity(threads[0], before)
        hog.kill()
        hog.communicate()


def lacking():
    """Return this thread's seconds without a core, counted from an arbitrary moment."""
    return time.perf_counter() - time.thread_time()


def test_core_waits_equal_the_time_missing_from_the_threads_clock():
    """It may be taken off its core at any moment, also between two looks at clocks; and it may
    lack more than its core, if another thread has Python's lock or the machine itself is stopped.
    """
    ctx, measured = mx.cpu(0), []

    def compute():
        before = lacking()
        waits.begin()
        begun = lacking()
        while lacking() < begun + WAITED_S:
            pass
        least = lacking() - begun
        found = waits.wait_micros()
        measured.append((least, found, lacking() - before))

    def is_core_alone():
        [(row, micros)] = measured[-1][1].items()
        assert row == str(ctx)
        return 0.8 * measured[-1][0] <= micros / 1e6 <= 1.2 * measured[-1][2]

    with beside_a_hog(ctx):
        waits = CoreWaits([ctx])
        on_its_thread(ctx, compute)
        while not is_core_alone() and len(measured) < 20:
            on_its_thread(ctx, compute)
    assert is_core_alone(), measured


def test_a_thread_that_has_nothing_to_do_does_not_wait():
    """It may still end what it did before: then it is looked at again."""
    waits = CoreWaits([mx.cpu(0), mx.cpu(1)])
    found, hangs = {"cpu(0)": math.inf}, time.monotonic() + 300
    while sum(found.values()) >= 20_000 and time.monotonic() < hangs:
        waits.begin()
        time.sleep(0.1)
        found = waits.wait_micros()
    assert set(found) == {"cpu(0)", "cpu(1)"} and sum(found.values()) < 20_000


def test_core_waits_are_empty_without_schedstat(monkeypatch):
    monkeypatch.setattr(recorder, "SCHEDSTAT", "/nowhere/{}")
    waits = CoreWaits([mx.cpu(0)])
    waits.begin()
    assert waits.wait_micros() == {}
