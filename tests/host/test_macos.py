"""Commands on macOS for Intel, as far as Linux can imitate it (tests/support/fake_macos)."""

import io
import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from support.processes import REPOSITORY

from gluonlab.bench.harness.worker_processes import NO_SERVER
from gluonlab.data.images.decoder_pool import DecodeWorker
from gluonlab.engine.cpu_threads import threads_per_device
from gluonlab.engine.openmp_settings import uses_openmp
from gluonlab.engine.parameter_server_role import NO_PARAMETER_SERVER
from gluonlab.errors import ConfigError
from gluonlab.inference.input_images import _save_standard_input
from gluonlab.launch.check_launcher_arguments import check_platform
from gluonlab.launch.hosts import LOCAL_HOST, Host
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import Step

FAKE = {"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY / "tests" / "support" / "fake_macos", REPOSITORY)))}
# Two steps of the 1,437 images. A network without convolutions, because the channels of convolutions
# are padded for the instructions in /proc/cpuinfo, which changes the rounding.
TWO_STEPS = ["-m", "gluonlab.run", "--model", "mlp", "--gpus", "2", "--epochs", "1", "--batch-size", "400"]
MISSING = """
import ctypes, os, pathlib, select, sys, gluonlab
assert sys.platform == "darwin" and not hasattr(os, "sched_getaffinity") and not hasattr(os, "memfd_create")
assert not hasattr(ctypes.CDLL(None), "prctl") and not hasattr(select, "epoll")
assert not os.path.exists("/proc/self") and not pathlib.Path("/proc/self").exists() and pathlib.Path("/").exists()
try:
    open("/proc/cpuinfo")
except FileNotFoundError:
    print("missing")
"""
# Wait until the only process of the group is a zombie. Until then, signal 0 can be sent.
SIGNAL_ZOMBIES = """
import os, signal, subprocess, gluonlab
from gluonlab.host.child_processes import signal_group
child = subprocess.Popen(["true"], start_new_session=True)
try:
    while True:
        os.killpg(child.pid, 0)
except PermissionError:
    signal_group(child.pid, signal.SIGKILL)
child.wait()
signal_group(child.pid, signal.SIGKILL)
print("signaled")
"""
# Python 3.8 and 3.9 have no sys.orig_argv, so a command could not unblock the signal.
BLOCK_INTERRUPTS = """
import gluonlab, signal, sys
from gluonlab.host.child_processes import prepare_command_process
if hasattr(sys, "orig_argv"):
    del sys.orig_argv
prepare_command_process()
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
# poll reports POLLNVAL for /dev/null even while it is open.
POLLED = """
import gluonlab, os, select
from gluonlab.cli.output_streams import reader_error
stream = open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)
poll = select.poll()
poll.register(stream.fileno(), select.POLLOUT)
assert [event for _, event in poll.poll(0)] == [select.POLLNVAL] and reader_error(stream) is None
os.close(stream.fileno())
print(reader_error(stream))
"""
HOST = """
import gluonlab, os
from gluonlab.bench.harness.worker_processes import missing_backend_reason
from gluonlab.host.resources import peak_bytes
from gluonlab.launch.ports_and_addresses import ipv4_addresses
assert 2**23 < peak_bytes(os.getpid()) < 2**32
print(ipv4_addresses()["127.0.0.1"], missing_backend_reason("dist_sync"))
"""


@pytest.fixture
def mac_python(python, tmp_path):
    """Return the fixture ``python`` for processes in which Linux looks like macOS.

    As on macOS, the path of the folder for temporary files contains a symbolic link.
    """
    (tmp_path / "private" / "tmp").mkdir(parents=True)
    (tmp_path / "tmp").symlink_to(tmp_path / "private" / "tmp")
    return lambda *arguments, **variables: python(*arguments, TMPDIR=str(tmp_path / "tmp"), **FAKE, **variables)


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (MISSING, "missing"),
        (SIGNAL_ZOMBIES, "signaled"),
        (BLOCK_INTERRUPTS, "set()"),
        (POLLED, "Bad file descriptor"),
        (HOST, f"lo0 {NO_SERVER}"),
    ],
)
def test_system_calls_work_without_parts_of_linux(mac_python, code, printed):
    result = mac_python("-c", code)
    assert (result.stdout, result.stderr) == (f"{printed}\n", "")


def test_only_one_function_signals_process_groups():
    """The function ignores the error that macOS raises for groups of zombies."""
    sources = [path for path in (REPOSITORY / "gluonlab").rglob("*.py") if ".killpg" in path.read_text("utf-8")]
    assert [path.name for path in sources] == ["child_processes.py"]


@pytest.mark.cpu_only("MXNet for macOS has no CUDA")
def test_two_steps_on_two_devices_give_the_losses_of_linux(python, mac_python, tmp_path):
    results = [run(*TWO_STEPS, "--out", name) for run, name in ((python, "linux"), (mac_python, "mac"))]
    assert [result.returncode for result in results] == [0, 0], results[1].stderr
    runs = [read_lines(tmp_path / name) for name in ("linux", "mac")]
    linux, mac = ([(line.step, line.loss) for line in run if isinstance(line, Step)] for run in runs)
    assert len(mac) == 2 and mac == linux
    parameters = [(tmp_path / name / "parameters.params").read_bytes() for name in ("linux", "mac")]
    assert parameters[0] == parameters[1]


def test_the_doctor_calls_macos_untested_and_finds_no_fault(mac_python):
    result = mac_python("-m", "gluonlab", "doctor", "--json")
    report = json.loads(result.stdout)
    by_check = {finding["check"]: finding for finding in report["findings"]}
    assert (result.returncode, result.stderr) == (0, "")
    assert by_check["platform"]["status"] == "warning"
    assert by_check["platform"]["cause"] == "gluonlab was not tested on macOS"
    assert not [finding for finding in report["findings"] if "itself failed" in finding["what"]]


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["-n", "2"], {}),
        ([], {"PMI_RANK": "0", "PMI_SIZE": "2"}),
        ([], {"PMI_RANK": "1", "PMI_SIZE": "2"}),  # does not wait for rank 0
    ],
)
def test_the_launcher_refuses_what_this_build_of_mxnet_lacks_in_one_line(mac_python, words, variables):
    result = mac_python("-m", "gluonlab", "launch", *words, "--", "--gpus", "1", **variables)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"error: --backend dist_sync cannot be used, because {NO_PARAMETER_SERVER}")


def test_without_openmp_a_device_has_one_thread(monkeypatch):
    monkeypatch.setattr("gluonlab.engine.openmp_settings.uses_openmp", lambda: uses_openmp("darwin"))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads_per_device(1) == threads_per_device(2) == threads_per_device(1, requested=1) == 1
    with pytest.raises(ConfigError, match="--threads 2 needs OpenMP, with which MXNet for macOS was not compiled"):
        threads_per_device(1, requested=2)


@pytest.mark.parametrize(
    ("system", "machine", "backend", "host", "is_possible"),
    [
        ("darwin", "x86_64", "dist_async", LOCAL_HOST, False), ("darwin", "x86_64", "horovod", LOCAL_HOST, True),
        ("darwin", "x86_64", "dist_sync", Host("linux-machine"), True),
        ("linux", "x86_64", "dist_sync", LOCAL_HOST, True),
        ("linux", "aarch64", "dist_sync", LOCAL_HOST, False), ("linux", "aarch64", "horovod", LOCAL_HOST, True),
    ],
)  # fmt: skip
def test_only_linux_on_x86_64_has_the_parameter_server(system, machine, backend, host, is_possible):
    with nullcontext() if is_possible else pytest.raises(ConfigError, match=NO_PARAMETER_SERVER):
        check_platform(backend, [host], system, machine)


def test_a_picture_from_standard_input_is_in_a_file_that_is_removed_at_exit(tmp_path, monkeypatch):
    removals = []
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("atexit.register", lambda function, *arguments: removals.append((function, arguments)))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"picture"), isatty=lambda: False))
    path = Path(_save_standard_input())
    assert path.parent == tmp_path and path.read_bytes() == b"picture"
    assert removals == [(os.unlink, (str(path),))]


def test_decoder_processes_share_memory_without_memfd(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Image.new("RGB", (8, 8), (255, 0, 7)).save(tmp_path / "red.png")
    worker = DecodeWorker(8, "pillow")
    worker.send_request([str(tmp_path / "red.png")], None, 0)
    assert worker.read_response() == []
    assert worker.memory[0].reshape(3, -1).mean(1).tolist() == [255, 0, 7]
    assert [path.name for path in tmp_path.iterdir()] == ["red.png"]
    worker.process.communicate()
