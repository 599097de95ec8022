"""Commands on macOS for Intel, as far as Linux can imitate it (tests/support/fake_macos)."""

import json
import os

import pytest
from PIL import Image
from support.processes import REPOSITORY

from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import Step

FAKE = {"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY / "tests" / "support" / "fake_macos", REPOSITORY)))}
# Two steps of the 1,437 images. A network without convolutions, because the channels of convolutions
# are padded for the instructions in /proc/cpuinfo, which changes the rounding.
TWO_STEPS = ["-m", "gluonlab.run", "--model", "mlp", "--gpus", "2", "--epochs", "1", "--batch-size", "400"]
MISSING = """
import ctypes, os, sys, gluonlab
assert sys.platform == "darwin" and not hasattr(os, "sched_getaffinity") and not hasattr(os, "memfd_create")
assert not os.path.exists("/proc/self") and not hasattr(ctypes.CDLL(None), "prctl")
try:
    open("/proc/cpuinfo")
except FileNotFoundError:
    print("missing")
"""


@pytest.fixture
def mac_python(python):
    """Return the fixture ``python`` for processes in which Linux looks like macOS."""
    return lambda *arguments: python(*arguments, **FAKE)


def test_the_imitated_macos_has_no_parts_of_linux(mac_python):
    result = mac_python("-c", MISSING)
    assert (result.stdout, result.stderr) == ("missing\n", "")


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
    ("words", "message"),
    [
        (["-m", "gluonlab.run", "--gpus", "1", "--threads", "2"], "--threads 2 needs OpenMP"),
        (["-m", "gluonlab", "launch", "-n", "2", "--", "--gpus", "1"], "--backend dist_sync needs MXNet's parameter"),
    ],
)
def test_an_option_that_this_build_of_mxnet_lacks_is_an_error_of_one_line(mac_python, words, message):
    result = mac_python(*words)
    *_, line = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (2, "")
    assert line.startswith("error: ") and message in line and "macOS" in line


def test_a_picture_from_standard_input_is_read_from_a_file_that_is_removed(mac_python, tmp_path):
    code = (
        "import io, os, sys, tempfile, types\n"
        "tempfile.tempdir = '.'\n"
        "from gluonlab.inference import input_images\n"
        "sys.stdin = types.SimpleNamespace(buffer=io.BytesIO(b'picture'), isatty=lambda: False)\n"
        "path = input_images._save_standard_input()\n"
        "print(open(path, 'rb').read(), os.listdir('.') == [os.path.basename(path)])"
    )
    result = mac_python("-c", code)
    assert (result.stdout, result.stderr) == ("b'picture' True\n", "")
    assert list(tmp_path.iterdir()) == []


def test_decoder_processes_share_memory_without_memfd(mac_python, tmp_path):
    code = (
        "import numpy as np\n"
        "from gluonlab.data.images.decoder_pool import DecodeWorker\n"
        "worker = DecodeWorker(8, 'pillow')\n"
        "worker.send_request(['red.png'], None, 0)\n"
        "print(worker.read_response(), worker.memory[0].reshape(3, -1).mean(1).tolist())\n"
        "worker.process.stdin.close(); worker.process.wait()"
    )
    Image.new("RGB", (8, 8), (255, 0, 7)).save(tmp_path / "red.png")
    result = mac_python("-c", code)
    assert (result.stdout, result.stderr) == ("[] [255.0, 0.0, 7.0]\n", "")
