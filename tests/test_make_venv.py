"""tools/make_venv.py refuses systems that cannot run gluonlab, in one line, under any Python."""

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "make_venv.py"


def run_with_stub(python, stub):
    """Run ``stub``, then the script, in a process in an empty folder."""
    code = (
        f"import sys; sys.argv[1:] = ['new', 'cpu']\n{stub}\n"
        f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    return python("-c", code)


def check_refusal(result, tmp_path):
    """Check that the script created nothing; return its one line of error."""
    assert (result.returncode, result.stdout) == (1, "")
    assert os.listdir(str(tmp_path)) == []  # noqa: PTH208
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


VENV = f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv"


def pretend(system, machine, libc=""):
    """Return a stub that makes Python report this platform."""
    functions = {"system": system, "machine": machine, "libc_ver": (libc, "")}
    return "; ".join(["import platform", *(f"platform.{name} = lambda: {functions[name]!r}" for name in functions)])


@pytest.mark.parametrize(
    ("stub", "message"),
    [
        *((f"sys.version_info = {old}", "Python 3.8 to 3.14") for old in ((2, 7, 18), (3, 4, 0))),
        ("sys.version_info = (3, 7, 16)", "make run PYTHON=python3.11"),
        *((f"sys.modules[{module!r}] = None", VENV) for module in ("venv", "ensurepip")),
        (
            pretend("Darwin", "arm64"),
            "macOS on arm64 cannot run gluonlab: MXNet 1.9.1 has no wheel for it; use a Linux",
        ),
        (pretend("Windows", "AMD64"), "Windows on AMD64 cannot run gluonlab: install WSL 2 with wsl --install"),
        (pretend("CYGWIN_NT-10.0", "x86_64"), "wsl --install"),
        (pretend("Linux", "x86_64"), "without glibc: use Debian or Ubuntu"),
        (pretend("Linux", "riscv64", "glibc"), "has wheels for x86-64 and ARM Linux, and for Intel Macs only"),
        *(
            (
                f"{pretend(*other)}; sys.argv[2:] = ['cu112', 'test']",
                "no CUDA build of MXNet: use cpu in place of cu112",
            )
            for other in (("Darwin", "x86_64"), ("Linux", "aarch64", "glibc"))
        ),
    ],
)
def test_a_system_that_cannot_run_gluonlab_is_refused_with_the_solution(python, tmp_path, stub, message):
    assert message in check_refusal(run_with_stub(python, stub), tmp_path)


@pytest.mark.parametrize(
    ("platform", "printed"),
    [
        (("Linux", "x86_64", "glibc"), ""),
        (("Linux", "aarch64", "glibc"), ""),
        (("Darwin", "x86_64"), "not tested on macOS"),
    ],
)
def test_platforms_with_a_wheel_of_mxnet_are_accepted(python, platform, printed):
    code = f"import sys; sys.path.append({str(SCRIPT.parent)!r}); import make_venv; make_venv.check_platform(['cpu'])"
    result = python("-c", f"{pretend(*platform)}; {code}")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("\n") == bool(printed) and printed in result.stdout


def test_the_script_has_syntax_of_both_python_2_and_3():
    """The test checks the source, because it cannot run an old Python."""
    source = SCRIPT.read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 4))
    assert "from __future__ import print_function" in source
    assert source.isascii()  # Python 2 wants a coding line for anything else
    for newer in ('f"', "f'", ":=", "nonlocal ", " async ", "-> ", "*, "):
        assert newer not in source, newer


def test_without_a_folder_the_use_is_shown(python, tmp_path):
    assert "make_venv.py DIR EXTRA..." in check_refusal(python(str(SCRIPT)), tmp_path)


def make(tmp_path, *words):
    """Run make -n with the Makefile of the repository and an environment of this Python."""
    not_ours = ("PYTHON", "VENV", "MAKEFLAGS", "MAKELEVEL")
    environment = {name: os.environ[name] for name in os.environ if name not in not_ours}
    if not (tmp_path / "venv").exists():
        venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
        (tmp_path / "venv" / ".ready-cpu").touch()
    makefile = str(SCRIPT.parent.parent / "Makefile")
    command = ["make", "-n", "-f", makefile, "-o", "setup.py", "-o", "tools/make_venv.py", *words]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=60)


def test_an_environment_of_another_python_than_the_one_named_is_not_used(tmp_path):
    other = tmp_path / "python-other"
    other.write_text("#!/bin/sh\necho 3.99\n")
    other.chmod(0o755)
    refused = make(tmp_path, "run", "VENV=venv", f"PYTHON={other}")
    pythons = f"venv is of Python {sys.version_info[0]}.{sys.version_info[1]}, and {other} is 3.99"
    assert refused.returncode == 2
    assert f"{pythons}: keep both with VENV=.venv-3.99, or make clean first" in refused.stderr
    assert make(tmp_path, "VENV=venv", f"PYTHON={other}").returncode == 2
    for target, python in (("run", ""), ("run", sys.executable), ("clean", other), ("test-pythons", other)):
        assert make(tmp_path, target, "VENV=venv", *([f"PYTHON={python}"] if python else [])).returncode == 0, target


def test_a_folder_of_that_name_does_not_hide_the_installed_package(tmp_path):
    """The folder would be a namespace package if it came before the installed one."""
    (tmp_path / "gluonlab").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", "import gluonlab; print(gluonlab.__version__)"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    assert (result.returncode, result.stderr) == (0, "")
