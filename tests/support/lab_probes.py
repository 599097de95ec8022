"""Source code for lab tests that replaces measurements of time."""

# ``held(limit_s)`` returns an object with an ``array``, whose value is computed once ``come()`` is
# called or the limit has passed. ``in_time`` lists whether the call came before the limit.
HELD_ARRAY_SOURCE = """
import threading as _threading
import mxnet as _mx
from types import SimpleNamespace as _Of
from gluonlab.exercises.lab01_devices import queue_call as _queue_call

def held(limit_s):
    come, it = _threading.Event(), _Of(in_time=[])
    it.array = _queue_call(_mx.cpu(7), lambda: it.in_time.append(come.wait(limit_s)))
    it.come = come.set
    return it
"""

# ``calls_of(work)`` calls work() with a time.perf_counter() that counts function calls.
CALL_COUNT_SOURCE = """
from unittest.mock import patch as _patch

def calls_of(work):
    count = [0]

    def note(frame, event, argument):
        count[0] += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        with _patch.object(time, "perf_counter", lambda: float(count[0])):
            return work()
    finally:
        sys.setprofile(None)
"""
