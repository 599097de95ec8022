"""The doctor in broken environments: the right cause, cure and exit status, and no traceback."""

import sys

import pytest
from support.elf_files import write_library
from support.environments import VirtualEnvironment
from support.fake_nvml import H100, only_finding, write_pynvml

from gluonlab.engine.mxnet_and_cuda_libraries import pip_install_command

FORGETS = """
import numpy
for name in ("bool", "int", "float", "object", "str", "complex"):
    getattr(numpy, "__deprecated_attrs__", {}).pop(name, None)
"""
FULL = """
import os
class Full:
    def __init__(self, real):
        self.f_frsize, self.f_blocks = real.f_frsize, real.f_blocks
        self.f_bfree = self.f_bavail = 0
real = os.statvfs
os.statvfs = lambda path: Full(real(path))
"""


@pytest.fixture
def examined(tmp_path):
    """Return ``examined(environment, ...)``: the report of its doctor, which is checked in general."""

    def examine(environment, *options, **variables):
        process, report = environment.run_doctor(*options, **{"HOME": str(tmp_path), **variables})
        assert "Traceback" not in process.stdout and process.stderr == ""
        assert process.returncode == bool(report.faults())
        statuses = {finding["status"] for finding in report.findings}
        assert report.object["status"] == max(statuses, key=["ok", "warning", "fault"].index)
        for finding in report.findings:
            assert list(finding) == ["check", "status", "what", "cause", "cure"]
            assert "itself failed" not in finding["what"], finding
            assert finding["status"] != "fault" or (finding["cause"] and finding["cure"]), finding
        return report

    return examine


@pytest.fixture
def cuda_environment(tmp_path):
    """Return ``cuda_environment(without)``: one with mxnet-cu112, but without some libraries."""

    def make(without=()):
        environment = VirtualEnvironment(tmp_path, without=["mxnet"])
        environment.add_cu112(without=without)
        return environment

    return make


def test_a_sound_environment_has_no_fault(tmp_path, examined):
    report = examined(VirtualEnvironment(tmp_path))
    assert report.faults() == []
    assert only_finding(report.findings_for("import"))["status"] == "ok"
    assert "sharded-optimizer work; nccl needs two GPUs" in only_finding(report.findings_for("kvstores"))["what"]
    assert any("libopenblas.so.0" in finding["what"] for finding in report.findings_for("libraries"))
    checks = list(dict.fromkeys(finding["check"] for finding in report.findings))
    assert checks == [
        "platform", "python", "numpy", "mxnet", "libraries", "import", "kvstores", "horovod", "gpus", "cpu",
        "memory", "shm", "home", "data", "runs", "temporary", "sagemaker",
    ]  # fmt: skip


def test_no_mxnet_and_a_home_that_cannot_be_written(tmp_path, examined):
    """/sys: nobody can make files there, root neither."""
    report = examined(VirtualEnvironment(tmp_path, without=["mxnet"]), HOME="/sys", GLUONLAB_DATA="", XDG_CACHE_HOME="")
    assert [finding["check"] for finding in report.faults()] == ["mxnet", "data"]
    fault, data = report.faults()
    assert fault["what"] == "not installed"
    assert pip_install_command("cpu") in fault["cure"]
    assert "/sys/.cache/gluonlab is not writable" in data["what"]
    assert "export GLUONLAB_DATA=DIR" in data["cure"]
    home = only_finding(report.findings_for("home"))
    assert (home["status"], home["what"]) == ("warning", "/sys is not writable")
    assert "export HOME=DIR" in home["cure"]


def test_no_numpy_and_no_mxnet(tmp_path, examined):
    report = examined(VirtualEnvironment(tmp_path, without=["mxnet", "numpy"]))
    assert {finding["check"] for finding in report.faults()} == {"numpy", "mxnet"}
    assert "pip install 'numpy" in only_finding(report.findings_for("numpy"))["cure"]
    assert "data sets (" in only_finding(report.findings_for("data"))["what"]  # it needs neither


def test_no_numpy_below_an_mxnet(tmp_path, examined):
    report = examined(VirtualEnvironment(tmp_path, without=["numpy"]))
    assert {finding["check"] for finding in report.faults()} == {"numpy", "import"}
    assert "numpy" in only_finding(report.findings_for("import"))["cause"]


def test_both_flavors(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path)
    environment.add_distribution("mxnet-cu112")
    report = examined(environment)
    fault = only_finding(report.findings_for("mxnet"))
    assert fault["status"] == "fault"
    assert fault["what"] == "mxnet 1.9.1 and mxnet-cu112 1.9.1 are all installed"
    assert "pip uninstall -y mxnet mxnet-cu112" in fault["cure"]
    assert "pip uninstall -y mxnet mxnet-cu112" in only_finding(report.findings_for("import"))["cure"]


@pytest.mark.long
def test_numpy_1_26_on_python_3_11(tmp_path, examined):
    """It loads through gluonlab, and not without, which is what is said.

    On 3.12 there is no older one, and so no complaint.
    """
    environment = VirtualEnvironment(tmp_path, without=["numpy-"])
    environment.add_distribution("numpy", "1.26.4")
    environment.add_sitecustomize(FORGETS)
    report = examined(environment)
    numpy = only_finding(report.findings_for("numpy"))
    assert numpy["status"] == ("warning" if sys.version_info < (3, 12) else "ok")
    assert "import gluonlab before" in numpy["what"] + numpy["cure"]
    assert report.findings_for("import")[0]["status"] == "ok"
    alone = environment.run_python("-c", "import mxnet")
    assert "AttributeError" in alone.stderr  # np.bool, or PZERO of numpy 2


def test_missing_cudnn(tmp_path, examined, cuda_environment):
    environment = cuda_environment(without=["libcudnn.so.8"])
    report = examined(environment, LD_LIBRARY_PATH=driver(tmp_path))
    fault = only_finding(report.findings_for("libraries", "fault"))
    assert fault["what"] == "libcudnn.so.8 is missing"
    assert "install the wheel nvidia-cudnn-cu11, which contains it: " + pip_install_command("cu112") in fault["cure"]
    assert only_finding(report.findings_for("import"))["what"] == "mxnet cannot load libcudnn.so.8"


def test_cudnn_9_in_the_place_of_8(tmp_path, examined, cuda_environment):
    environment = cuda_environment(without=["libcudnn.so.8"])
    nine = write_library(environment.library_folder("cudnn") / "libcudnn.so.9")
    report = examined(environment, LD_LIBRARY_PATH=driver(tmp_path))
    for fault in (only_finding(report.findings_for("libraries", "fault")), only_finding(report.findings_for("import"))):
        assert "libcudnn.so.8" in fault["what"]
        assert f"{nine} is another version" in fault["cause"]
        assert "pip install --force-reinstall --no-deps 'nvidia-cudnn-cu11<9'" in fault["cure"]


def test_no_driver_below_the_cuda_build(tmp_path, examined, cuda_environment):
    environment = cuda_environment()
    write_pynvml(environment.site, error="NVML Shared Library Not Found")
    report = examined(environment)
    fault = only_finding(report.findings_for("libraries", "fault"))
    assert fault["what"] == "libcuda.so.1 is missing"
    assert "install the NVIDIA driver (450.80.02 or newer), which contains it" in fault["cure"]
    assert pip_install_command("cpu") in fault["cure"]
    assert only_finding(report.findings_for("gpus"))["what"] == "no GPU"
    wheels = next(
        finding["what"] for finding in report.findings_for("libraries") if finding["what"].startswith("from wheels")
    )
    assert "libcublasLt.so.11" not in wheels  # nobody needs it here
    assert "libcublas.so.11" in wheels
    assert str(environment.site / "nvidia") in wheels


def test_an_old_driver_and_a_gpu_that_the_wheel_has_no_code_for(tmp_path, examined, cuda_environment):
    environment = cuda_environment()
    write_pynvml(environment.site, kinds=[H100], driver="418.87.01")
    report = examined(environment)
    fault = only_finding(report.findings_for("gpus", "fault"))
    assert fault["what"] == "driver 418.87.01 is too old"
    assert "450.80.02 or newer" in fault["cause"]
    assert "install a newer driver" in fault["cure"]
    fault = only_finding(report.findings_for("capability", "fault"))
    assert fault["what"] == f"{H100[0]} (GPU 0) needs sm_90"
    assert "mxnet-cu112 1.9.1 does not support it" in fault["cause"]
    assert "ml.g5" in fault["cure"]


def test_a_full_disk_and_an_mxnet_that_crashes(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_sitecustomize(FULL)
    environment.add_package("mxnet", "import os; os.abort()")
    environment.add_distribution("mxnet")
    report = examined(environment)
    assert "the process crashed (SIGABRT) during: import mxnet" in only_finding(report.findings_for("import"))["cause"]
    assert only_finding(report.findings_for("libraries"))["what"].endswith("libmxnet.so is missing")
    assert {finding["check"] for finding in report.faults()} == {"import", "libraries", "data", "runs", "temporary"}
    fault = only_finding(report.findings_for("data"))
    assert "the disk is full" in fault["what"]
    assert "0 MiB are free" in fault["cause"]
    assert "free some space there, or choose another folder with export GLUONLAB_DATA=DIR" in fault["cure"]


def test_a_hostile_libstdcpp_in_ld_library_path(tmp_path, examined):
    hostile = write_library(tmp_path / "hostile" / "libstdc++.so.6")
    report = examined(VirtualEnvironment(tmp_path), LD_LIBRARY_PATH=str(hostile.parent))
    assert {finding["check"] for finding in report.faults()} >= {"import"}
    for finding in (only_finding(report.findings_for("import")), report.findings_for("libraries")[0]):
        assert "libstdc++.so.6" in finding["what"]
        assert str(hostile) in finding["cause"]
        assert f"remove {hostile.parent} from LD_LIBRARY_PATH" in finding["cure"]


def test_a_hostile_libcudart_in_ld_library_path(tmp_path, examined, cuda_environment):
    environment = cuda_environment()
    hostile = tmp_path / "hostile" / "libcudart.so.11.0"
    hostile.parent.mkdir()
    hostile.write_text("not a library" * 100)
    report = examined(environment, LD_LIBRARY_PATH=f"{hostile.parent}:{driver(tmp_path)}")
    for finding in (
        only_finding(report.findings_for("import")),
        only_finding(report.findings_for("libraries", "fault")),
    ):
        assert "libcudart.so.11.0" in finding["what"]
        assert f"{hostile} is not a library for this machine" in finding["cause"]
        assert f"remove {hostile.parent} from LD_LIBRARY_PATH" in finding["cure"]


def driver(folder):
    """A folder with a driver's library that holds nothing."""
    return str(write_library(folder / "driver" / "libcuda.so.1").parent)
