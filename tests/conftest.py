"""Fixtures and settings of all tests: a clean environment, hypothesis profiles, child processes."""

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

pytest_plugins = ["support.collector", "support.device_use", "support.file_server", "support.hung"]
if "SIMULATED_GPUS" in os.environ:  # tests/gpus/README.md
    pytest_plugins.append("gpus.faults")

for name in [name for name in os.environ if name.startswith(ENGINE_VARIABLES)]:
    del os.environ[name]  # before MXNet is imported: exported variables must not change the tests

# Tests use neither downloaded data sets nor a proxy for their local servers.
os.environ["GLUONLAB_DATA"] = str(Path(tempfile.gettempdir()) / f"gluonlab-tests-without-data-{os.getpid()}")
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

# Background jobs of a shell ignore Ctrl-C, and nohup ignores SIGHUP. The processes that the tests
# interrupt would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Without deadlines, because a machine may be busy. make test uses fixed examples, make test-all new
# ones (pytest --hypothesis-profile=random), and make fuzz thousands.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None, derandomize=False, print_blob=True)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=12_000)
settings.load_profile("fixed")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """Disable garbage collection while pytest collects tests, which saves a third of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def random_numbers(request):
    """Seed the random numbers of each test by its name."""
    from support.device_use import uses_no_devices  # inside: pytest must rewrite the assertions of a plugin first

    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    if "mxnet" in sys.modules and not uses_no_devices(request.node.path):  # it takes a millisecond
        sys.modules["mxnet"].random.seed(seed & 0x7FFFFFFF)


@pytest.fixture(autouse=True)
def messages_name_options():
    """Let messages name options, as in a command. tests/config/test_messages.py has those of Python."""
    from gluonlab.errors import name_options  # inside: pytest must rewrite the assertions of a plugin first

    with name_options():
        yield


@pytest.fixture
def python(tmp_path):
    """Return ``python(*arguments, timeout=..., path=[...], VARIABLE="...")``.

    It runs this Python in ``tmp_path``, and returns the finished process.
    """
    factor = 5 if "SIMULATED_GPUS" in os.environ else 1

    def run(*arguments, timeout=600, **environment):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=clean_environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=factor * timeout,
        )

    return run


@pytest.fixture
def empty_cwd(tmp_path, monkeypatch):
    """Make an empty folder the current one during the test; return it."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ended(capsys):
    """Return ``ended(main, *arguments)``, which runs a command in this process.

    It returns the exit status, standard output and standard error.
    """

    def run_command(main, *arguments):
        with pytest.raises(SystemExit) as raised:
            main(list(arguments))
        output = capsys.readouterr()
        return raised.value.code, output.out, output.err

    return run_command


@pytest.fixture
def run(ended, empty_cwd):
    """Return ``run(*arguments)``, which calls `call_run` in an empty folder."""
    from support.commands import call_run

    return functools.partial(ended, call_run)
