"""A thread waits for a core while the wall clock proceeds, but not the thread's own clock."""

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


def run_on_device_thread(ctx, function):
    """Call a function on the thread that computes for a device, and wait for its end."""
    callback, array = _ON_WORKER(lambda *_: function()), nd.zeros((1,), ctx=ctx)
    where = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    handle = ctypes.byref(array.handle)
    check_call(_LIB.MXEnginePushSyncND(callback, None, None, where, None, 0, handle, 1, None, 0, b"test"))
    array.wait_to_read()


@contextmanager
def share_core_with_busy_process(ctx):
    threads = []
    run_on_device_thread(ctx, lambda: threads.append(threading.get_native_id()))
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


def seconds_without_core():
    """Return this thread's seconds without a core, counted from an arbitrary moment."""
    return time.perf_counter() - time.thread_time()


def test_core_waits_equal_the_time_missing_from_the_threads_clock():
    """A thread may lose its core between two reads of clocks. It also waits for Python's lock or a stopped machine."""
    ctx, measured = mx.cpu(0), []

    def compute():
        before = seconds_without_core()
        waits.begin()
        begun = seconds_without_core()
        while seconds_without_core() < begun + WAITED_S:
            pass
        lower_bound = seconds_without_core() - begun
        micros = waits.wait_micros()
        measured.append((lower_bound, micros, seconds_without_core() - before))

    def is_core_alone():
        [(row, micros)] = measured[-1][1].items()
        assert row == str(ctx)
        return 0.8 * measured[-1][0] <= micros / 1e6 <= 1.2 * measured[-1][2]

    with share_core_with_busy_process(ctx):
        waits = CoreWaits([ctx])
        run_on_device_thread(ctx, compute)
        while not is_core_alone() and len(measured) < 20:
            run_on_device_thread(ctx, compute)
    assert is_core_alone(), measured


def test_a_thread_that_has_nothing_to_do_does_not_wait():
    """It may still complete earlier work: then it is measured again."""
    waits = CoreWaits([mx.cpu(0), mx.cpu(1)])
    micros, deadline = {"cpu(0)": math.inf}, time.monotonic() + 300
    while sum(micros.values()) >= 20_000 and time.monotonic() < deadline:
        waits.begin()
        time.sleep(0.1)
        micros = waits.wait_micros()
    assert set(micros) == {"cpu(0)", "cpu(1)"} and sum(micros.values()) < 20_000


def test_core_waits_are_empty_without_schedstat(monkeypatch):
    monkeypatch.setattr(recorder, "SCHEDSTAT", "/nowhere/{}")
    waits = CoreWaits([mx.cpu(0)])
    waits.begin()
    assert waits.wait_micros() == {}
