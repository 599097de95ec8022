"""Shared by all tests: an environment of their own, hypothesis without deadlines, and real
processes.
"""

import functools
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import gluonlab  # noqa: F401, before numpy, whose idle threads then sleep soon

# isort: split
import numpy as np
import pytest
from hypothesis import settings
from support.processes import ENGINE_VARIABLES, clean_environment

pytest_plugins = [
    "support.collector",
    "support.device_use",
    "support.file_server",
    "support.hung",
]
if "SIMULATED_GPUS" in os.environ:  # tests/gpus/README.md
    pytest_plugins.append("gpus.faults")

for name in [name for name in os.environ if name.startswith(ENGINE_VARIABLES)]:
    del os.environ[name]  # before MXNet is loaded: what a person has exported is no part of a test

# Nor are the data sets that a person has downloaded, nor a proxy between the tests and their own
# servers.
os.environ["GLUONLAB_DATA"] = str(
    Path(tempfile.gettempdir()) / f"gluonlab-tests-without-data-{os.getpid()}"
)
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

# A shell's background jobs ignore Ctrl-C, what nohup runs ignores SIGHUP, and so would the
# processes that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A machine may be busy. make test takes the same examples every time; make test-all and whoever
# looks for faults take new ones: pytest --hypothesis-profile=random; make fuzz takes thousands.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None, derandomize=False, print_blob=True)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=12_000)
settings.load_profile("fixed")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """Look for garbage afterwards: what is collected stays, 200,000 objects, and to look through
    them again and again took a third of the time.
    """
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def random_numbers(request):
    """A test draws the same ones alone, after any other, and in every process."""
    from support.device_use import (
        uses_no_devices,  # a plugin, whose assertions pytest rewrites first
    )

    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    if "mxnet" in sys.modules and not uses_no_devices(request.node.path):  # it takes a millisecond
        sys.modules["mxnet"].random.seed(seed & 0x7FFFFFFF)


@pytest.fixture
def python(tmp_path):
    """``python(*arguments, timeout=..., path=[...], VARIABLE="...")`` runs this Python in
    ``tmp_path``, to its end.
    """
    patience = 5 if "SIMULATED_GPUS" in os.environ else 1

    def run(*arguments, timeout=600, **environment):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=clean_environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=patience * timeout,
        )

    return run


@pytest.fixture
def empty_cwd(tmp_path, monkeypatch):
    """An empty folder, which is the current one during the test."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ended(capsys):
    """``ended(main, *arguments)`` does in this process what a command does: exit status, standard
    output, standard error.
    """

    def end(main, *arguments):
        with pytest.raises(SystemExit) as raised:
            main(list(arguments))
        said = capsys.readouterr()
        return raised.value.code, said.out, said.err

    return end


@pytest.fixture
def run(ended, empty_cwd):
    """``run(*arguments)``: python -m gluonlab.run in an empty folder."""
    from gluonlab.run import main

    return functools.partial(ended, main)
