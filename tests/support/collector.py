"""Plugin that excludes long-lived objects from garbage collection after each test module.

gluonlab collects after each training. In a process that has loaded hundreds of modules, looking
through all of them would take longer than most trainings of the tests.
"""

import gc

import pytest


def freeze_live_objects():
    gc.collect()
    gc.freeze()


def pytest_collection_finish():
    freeze_live_objects()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item, nextitem):
    yield
    if nextitem is None or nextitem.path != item.path:  # the module's fixtures have ended
        freeze_live_objects()
