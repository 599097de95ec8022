"""Errors at the start of a command: a module hidden by a file of the user, and Windows."""

import sys

import pytest
from support.pages import ROOT

from gluonlab.host.startup_errors import explain_hidden_module, hides_module

RUN = ["gluonlab.run", "--model", "mlp", "--dataset", "synthetic", "--epochs", "1", "--gpus", "1"]
SCRIPT = "import mxnet as mx\nfrom mxnet import gluon\nimport numpy as np\nnp.random.rand(3)\n"
CASES = [  # before a command begins, while it loads MXNet, and in the middle of it
    ("random", "x = 1\n", RUN),
    ("mxnet", SCRIPT, RUN),
    ("json", "x = 1\n", RUN),
    *(
        pytest.param(*case, marks=pytest.mark.long)
        for case in [
            ("numpy", SCRIPT, RUN),
            ("numpy", "x = 1\n", ["gluonlab.scratch", "--gpus", "2"]),
            ("random", SCRIPT, RUN),
            ("typing", "x = 1\n", RUN),
            ("click", "x = 1\n", ["gluonlab", "run", "--epochs", "1"]),
            ("PIL", "x = 1\n", RUN), ("calendar", "x = 1\n", RUN), ("copy", "raise ValueError('own')\n", RUN),
            ("random", "x = 1\n", ["gluonlab.doctor"]),
            ("mxnet", "x = 1\n", ["gluonlab", "list"]),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "words"), CASES)
def test_the_file_is_named_in_one_line(name, code, words, python, tmp_path):
    (tmp_path / f"{name}.py").write_text(code)
    result = python("-m", *words, PYTHONPATH=str(ROOT))
    lines = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    error = f"error: {tmp_path}/{name}.py is imported as {name}, because it comes first in Python's path: rename it"
    assert (result.returncode, lines) == (1, [error])


def test_only_what_takes_a_modules_place_hides_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("json.py", "mynet.py", "numpy/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert hides_module("json", str(tmp_path / "json.py"))
    assert hides_module("numpy", str(tmp_path / "numpy" / "__init__.py"))
    assert not hides_module("mynet", str(tmp_path / "mynet.py"))
    assert not hides_module("json", sys.modules["json"].__file__)


def test_other_errors_come_from_no_such_file(tmp_path, monkeypatch):
    """Such a file may be there, and nothing may be wrong with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").touch()
    cause = ValueError("json")
    error = AttributeError("module 'json' has no attribute 'x'")
    error.__cause__, cause.__context__ = cause, error  # a ring
    assert explain_hidden_module(error) is explain_hidden_module(None) is None


WINDOWS = "gluonlab does not run natively on Windows: install WSL 2 with wsl --install, and run gluonlab in WSL"
# Python on Windows lacks these modules and functions.
PRETEND_WINDOWS = """
import os, runpy, sys
sys.platform = "win32"
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios", "tty")))
for name in ("uname", "killpg", "getuid", "geteuid", "fork", "set_blocking", "sysconf", "O_CLOEXEC", "O_NONBLOCK"):
    if hasattr(os, name):
        delattr(os, name)
"""


@pytest.mark.parametrize(
    ("loaded", "start"),
    [
        ("os", "import gluonlab"),
        ("os", "runpy._run_module_as_main('gluonlab.run')"),  # python -m gluonlab.run
        ("setuptools", f"runpy.run_path({str(ROOT / 'setup.py')!r})"),  # pip install .
    ],
)
def test_native_windows_is_refused_in_one_line_that_names_wsl_2(loaded, start, python):
    result = python("-c", f"import {loaded}\n{PRETEND_WINDOWS}{start}")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"error: {WINDOWS}\n")


def test_a_program_on_windows_can_handle_the_import_error(python):
    code = "try:\n  import gluonlab\nexcept ImportError as error:\n  print(error)\n1 / 0"
    result = python("-c", f"{PRETEND_WINDOWS}{code}")
    assert (result.returncode, result.stdout) == (1, f"{WINDOWS}\n")
    assert result.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
