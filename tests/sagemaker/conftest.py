"""Fixtures for the tests of sagemaker/: its scripts as modules, and a notebook without AWS."""

import importlib.util
import sys

import pytest
from made_up_notebook import SAGEMAKER, Notebook
from support.waiting import wait_until

sys.path.insert(0, str(SAGEMAKER))


def load_idle_stop():
    """Import idle-stop.py, whose name is not a module name."""
    spec = importlib.util.spec_from_file_location("idle_stop", str(SAGEMAKER / "idle-stop.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def idle_stop():
    return load_idle_stop()


@pytest.fixture(scope="module")
def idle_stop_module():
    """Return idle-stop.py as a module, once for all Hypothesis examples."""
    return load_idle_stop()


@pytest.fixture
def notebook(tmp_path):
    """A notebook that has never been started; no build of it outlives the test."""
    made = Notebook(tmp_path)
    yield made
    if (made.root / "wait").exists():
        (made.root / "wait").unlink()
    if (made.shown / ".gluonlab").exists():
        wait_until(lambda: not made.is_locked())
