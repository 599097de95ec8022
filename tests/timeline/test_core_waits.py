"""A thread that is ready and has no core waits: the clock goes on, and its own does not."""

import ctypes
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

from gluonlab.engine.threads import EngineContext
from gluonlab.timeline.core_waits import CoreWaits

pytestmark = pytest.mark.cpu_only("GPUs' threads are not asked")
_ON_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
BUSY_S = 0.3
HOG = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"


def on_its_thread(ctx, function):
    """Call it where the device computes, and wait for its end."""
    callback, array = _ON_WORKER(lambda *_: function()), nd.zeros((1,), ctx=ctx)
    where = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    handle = ctypes.byref(array.handle)
    check_call(
        _LIB.MXEnginePushSyncND(callback, None, None, where, None, 0, handle, 1, None, 0, b"test")
    )
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


def test_what_it_waits_is_what_its_own_clock_lacks():
    ctx, measured = mx.cpu(0), []

    def compute():
        wall, own = time.perf_counter(), time.thread_time()
        while time.perf_counter() < wall + BUSY_S:
            pass
        measured.append(time.perf_counter() - wall - (time.thread_time() - own))

    with beside_a_hog(ctx):
        waits = CoreWaits([ctx])
        waits.begin()
        on_its_thread(ctx, compute)
        [(row, micros)] = waits.micros().items()
    assert row == str(ctx) and measured[0] > BUSY_S / 5
    assert micros / 1e6 == pytest.approx(measured[0], rel=0.2)


def test_a_thread_that_has_nothing_to_do_does_not_wait():
    waits = CoreWaits([mx.cpu(0), mx.cpu(1)])
    waits.begin()
    time.sleep(0.1)
    found = waits.micros()
    assert set(found) == {"cpu(0)", "cpu(1)"} and sum(found.values()) < 20_000


def test_where_the_system_says_nothing_neither_does_it(monkeypatch):
    from gluonlab.timeline import core_waits

    monkeypatch.setattr(core_waits, "SCHEDSTAT", "/nowhere/{}")
    waits = CoreWaits([mx.cpu(0)])
    waits.begin()
    assert waits.micros() == {}
