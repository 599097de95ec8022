"""Waiting for what will come on any machine, however slow: the limit only ends a hang."""

import time

LIMIT_S = 300


def wait_until(condition, limit_s=LIMIT_S):
    """Return once ``condition()`` is true. Raises AssertionError at the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited for {limit_s} s"
        time.sleep(0.01)
