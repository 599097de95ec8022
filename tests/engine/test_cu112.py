"""The CUDA build of MXNet on a machine without a GPU: make test-cu112, in an environment of its own
with gluonlab[cu112].
"""

import json
import subprocess
import sys

import pytest
from support.environments import DoctorReport
from support.processes import clean_environment
from support.stub_driver import write_driver

from gluonlab.engine import mxnet_installation

pytestmark = pytest.mark.cu112


def doctor(**environment):
    ended = subprocess.run(
        [sys.executable, "-m", "gluonlab.doctor", "--json"],
        env=clean_environment(**environment), capture_output=True, encoding="utf-8", timeout=600,
    )  # fmt: skip
    assert ended.stderr == ""
    return ended.returncode, DoctorReport(ended.stdout)


def test_with_a_driver_every_library_is_found_and_the_doctor_says_that_there_is_no_gpu(tmp_path):
    code, told = doctor(LD_LIBRARY_PATH=str(write_driver(tmp_path)))
    assert (code, told.faults()) == (0, [])
    [wheels] = [found["what"] for found in told.findings_for("libraries") if found["what"].startswith("from wheels")]
    # which cusolver opens by itself
    needed = {library.soname for library in mxnet_installation.LIBRARIES} - {"libcusparse.so.11"}
    assert {word.strip(",:") for word in wheels.split()} >= needed
    [loads] = told.findings_for("import")
    assert "built with CUDA, CUDNN, NCCL" in loads["what"]
    assert loads["what"].endswith("it sees no GPU")
    [gpus] = told.findings_for("gpus")
    assert (gpus["status"], gpus["what"]) == ("warning", "no GPU")


def test_without_a_driver_the_doctor_names_it_and_the_cure():
    code, told = doctor(LD_LIBRARY_PATH="")
    assert code == 1
    for found in told.faults():
        assert "libcuda.so.1" in found["what"]
        assert ("comes with the NVIDIA driver (450.80.02 or newer): install the driver, or use the CPU build") in found[
            "cure"
        ]
    assert {found["check"] for found in told.faults()} == {"libraries", "import"}


def test_training_is_that_of_the_cpu_build(tmp_path):
    """The digits on two CPU devices; accuracy as in the README."""
    words = ["--devices", "cpu*2", "--epochs", "10", "--json", "--out", str(tmp_path / "run")]
    ended = subprocess.run(
        [sys.executable, "-m", "gluonlab.run", *words],
        env=clean_environment(LD_LIBRARY_PATH=str(write_driver(tmp_path))),
        capture_output=True, encoding="utf-8", timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["accuracy"] > 0.9
