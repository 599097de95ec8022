"""The CUDA build of MXNet without a GPU: make test-cu112, in an environment of gluonlab[cu112]."""

import json
import subprocess
import sys

import pytest
from support.environments import DoctorReport
from support.processes import clean_environment
from support.stub_driver import write_driver

from gluonlab.engine import mxnet_and_cuda_libraries

pytestmark = pytest.mark.cu112


def run_python(*arguments, **environment):
    command, environment = [sys.executable, "-m", *arguments], clean_environment(**environment)
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=600)


def run_doctor(**environment):
    process = run_python("gluonlab.doctor", "--json", **environment)
    assert process.stderr == ""
    return process.returncode, DoctorReport(process.stdout)


def test_with_a_driver_every_library_is_found_and_the_doctor_reports_that_there_is_no_gpu(tmp_path):
    code, report = run_doctor(LD_LIBRARY_PATH=str(write_driver(tmp_path)))
    assert (code, report.faults()) == (0, [])
    texts = [finding["what"] for finding in report.findings_for("libraries")]
    [wheels] = [text for text in texts if text.startswith("from wheels")]
    # cusolver opens cusparse itself
    needed = {library.soname for library in mxnet_and_cuda_libraries.LIBRARIES} - {"libcusparse.so.11"}
    assert {word.strip(",:") for word in wheels.split()} >= needed
    [loads] = report.findings_for("import")
    assert "built with CUDA, CUDNN, NCCL" in loads["what"] and loads["what"].endswith("it sees no GPU")
    [gpus] = report.findings_for("gpus")
    assert (gpus["status"], gpus["what"]) == ("warning", "no GPU")


def test_without_a_driver_the_doctor_names_it_and_the_cure():
    code, report = run_doctor(LD_LIBRARY_PATH="")
    cure = "install the NVIDIA driver (450.80.02 or newer), which contains it, or use the CPU build"
    assert code == 1 and {finding["check"] for finding in report.faults()} == {"libraries", "import"}
    for finding in report.faults():
        assert "libcuda.so.1" in finding["what"] and cure in finding["cure"]


def test_the_digits_are_trained_on_two_cpu_devices(tmp_path):
    options = ["--devices", "cpu*2", "--epochs", "10", "--json", "--out", str(tmp_path / "run")]
    process = run_python("gluonlab.run", *options, LD_LIBRARY_PATH=str(write_driver(tmp_path)))
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["val_accuracy"] > 0.9
