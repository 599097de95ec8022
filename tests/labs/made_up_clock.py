"""A clock that only the pauses of exercise 01-2 move: what an answer measures is exact anywhere."""

import threading
import time
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from mxnet import nd
from support.waiting import LIMIT_S

from gluonlab.exercises import lab01_devices


@contextmanager
def run_on_a_made_up_clock():
    """Pauses end when somebody waits for the devices, and the clock is then so much later."""
    now, somebody_waits = [1000.0], threading.Event()
    plain_wait = nd.waitall

    def sleep(seconds):
        assert somebody_waits.wait(LIMIT_S)
        now[0] += seconds

    def wait():
        somebody_waits.set()
        plain_wait()
        somebody_waits.clear()

    with ExitStack() as patched:
        patched.enter_context(patch.object(lab01_devices, "sleep", sleep))
        patched.enter_context(patch.object(time, "perf_counter", lambda: now[0]))
        patched.enter_context(patch.object(nd, "waitall", wait))
        try:
            yield
        finally:
            wait()
