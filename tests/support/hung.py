"""Plugin that ends the process of a test that hangs, and prints the stacks of all threads."""

import faulthandler
import os
import time

import pytest

TEST_SECONDS, LONG_TEST_SECONDS = 15 * 60, 60 * 60
RENEWAL_S = 60  # the limit of a test may be shorter by this
STDERR, ARMED = pytest.StashKey(), pytest.StashKey()


def pytest_configure(config):
    config.stash[STDERR] = os.fdopen(os.dup(2), "w")  # before pytest captures it


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    limit = LONG_TEST_SECONDS if item.get_closest_marker("long") else TEST_SECONDS
    armed_at, armed_for = item.config.stash.get(ARMED, (0.0, 0))
    if limit != armed_for or time.monotonic() > armed_at + RENEWAL_S:  # it takes a millisecond
        faulthandler.dump_traceback_later(limit, file=item.config.stash[STDERR], exit=True)
        item.config.stash[ARMED] = time.monotonic(), limit
    yield


def pytest_sessionfinish():
    faulthandler.cancel_dump_traceback_later()
