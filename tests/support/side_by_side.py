"""Tests shared among processes (pytest -n 2): one marked ``alone`` has the machine to itself.

It waits until the tests of the other processes have ended, and none of theirs begins before it has
ended. Without -n there is nothing to wait for.
"""

import atexit
import fcntl
import shutil
import tempfile
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path

import pytest

FOLDER = "side by side"


class Turns:
    """Two locks in ``folder``: the machine, which all tests but those ``alone`` hold together, and
    the queue for it, without which a test that waits would be overtaken for ever.
    """

    def __init__(self, folder):
        self.queue, self.machine = ((Path(folder) / name).open("a") for name in "qm")

    @contextmanager
    def turn(self, alone):
        fcntl.flock(self.queue, fcntl.LOCK_EX)
        fcntl.flock(self.machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self.queue, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self.machine, fcntl.LOCK_UN)  # a forked process may have the file open, too


@lru_cache(maxsize=None)
def shared_folder():
    """Where the locks lie, until the process ends that shares the tests out."""
    folder = tempfile.mkdtemp(prefix="gluonlab-tests-")
    atexit.register(shutil.rmtree, folder)
    return folder


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput[FOLDER] = shared_folder()


def pytest_configure(config):
    folder = getattr(config, "workerinput", {}).get(FOLDER)
    config.turns = Turns(folder) if folder else None


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    turns = item.config.turns
    alone = item.get_closest_marker("alone") is not None
    with turns.turn(alone) if turns else nullcontext():
        yield
