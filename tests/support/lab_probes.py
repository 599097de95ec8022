"""Source for the probes of `numbers`: what a lab shows by times, shown without a clock."""

# ``held(limit_s)`` has an ``array``, whose value comes when ``come()`` is called or so long has
# passed. ``in_time`` is then a list with whether it was called.
HELD_ARRAY_SOURCE = """
import threading as _threading
import mxnet as _mx
from types import SimpleNamespace as _Of
from gluonlab.exercises.lab01 import queue_call as _queue_call

def held(limit_s):
    come, it = _threading.Event(), _Of(in_time=[])
    it.array = _queue_call(_mx.cpu(7), lambda: it.in_time.append(come.wait(limit_s)))
    it.come = come.set
    return it
"""

# ``calls_of(work)`` is the result of work(), in which time.perf_counter() is the number of calls
# of functions so far.
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
