"""A test that hangs ends its process, with where each thread was; the others go on.

Without it the whole run would wait, for hours and without a word.
"""

import faulthandler
import os

import pytest

SECONDS, OF_A_LONG_ONE = 15 * 60, 60 * 60
STDERR = pytest.StashKey()


def pytest_configure(config):
    config.stash[STDERR] = os.fdopen(os.dup(2), "w")  # before pytest captures it


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    limit = OF_A_LONG_ONE if item.get_closest_marker("long") else SECONDS
    faulthandler.dump_traceback_later(limit, file=item.config.stash[STDERR], exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
