"""The doctor in broken environments: the right cause, the right cure, no traceback, and the exit
status.
"""

import subprocess
import sys

import pytest
from support.elf_files import write_library
from support.environments import VirtualEnvironment
from support.fake_nvml import H100, write_pynvml
from support.processes import clean_environment

from gluonlab.engine.mxnet_installation import pip_install_command

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
    """``examined(environment, ...)``: what its doctor finds, after what holds of every doctor."""

    def examine(environment, *options, **variables):
        ended, told = environment.run_doctor(*options, **{"HOME": str(tmp_path), **variables})
        assert "Traceback" not in ended.stderr + ended.stdout
        assert ended.stderr == ""
        assert ended.returncode == bool(told.faults())
        assert told.object["status"] == max(
            (found["status"] for found in told.findings), key=["ok", "warning", "fault"].index
        )
        for found in told.findings:
            assert list(found) == ["check", "status", "what", "cause", "cure"]
            assert "itself failed" not in found["what"], found
            assert found["status"] != "fault" or (found["cause"] and found["cure"]), found
        return told

    return examine


def only(findings):
    assert len(findings) == 1, findings
    return findings[0]


def test_a_sound_environment_has_no_fault(tmp_path, examined):
    told = examined(VirtualEnvironment(tmp_path))
    assert told.faults() == []
    assert only(told.findings_for("import"))["status"] == "ok"
    assert "sharded-optimizer work; nccl needs two GPUs" in only(told.findings_for("kvstores"))["what"]
    assert any("libopenblas.so.0" in found["what"] for found in told.findings_for("libraries"))
    checks = list(dict.fromkeys(found["check"] for found in told.findings))
    assert checks == [
        "python", "numpy", "mxnet", "libraries", "import", "kvstores", "horovod", "gpus", "cpu",
        "memory", "shm", "home", "data", "runs", "temporary", "sagemaker",
    ]  # fmt: skip


def test_no_mxnet_and_a_home_that_cannot_be_written(tmp_path, examined):
    """/sys: nobody can make files there, root neither."""
    told = examined(VirtualEnvironment(tmp_path, without=["mxnet"]), HOME="/sys", GLUONLAB_DATA="", XDG_CACHE_HOME="")
    assert [found["check"] for found in told.faults()] == ["mxnet", "data"]
    fault, data = told.faults()
    assert fault["what"] == "not installed"
    assert pip_install_command("cpu") in fault["cure"]
    assert "/sys/.cache/gluonlab is not writable" in data["what"]
    assert "export GLUONLAB_DATA=DIR" in data["cure"]
    home = only(told.findings_for("home"))
    assert (home["status"], home["what"]) == ("warning", "/sys is not writable")
    assert "export HOME=DIR" in home["cure"]


def test_no_numpy_and_no_mxnet(tmp_path, examined):
    told = examined(VirtualEnvironment(tmp_path, without=["mxnet", "numpy"]))
    assert {found["check"] for found in told.faults()} == {"numpy", "mxnet"}
    assert "pip install 'numpy" in only(told.findings_for("numpy"))["cure"]
    assert "data sets (" in only(told.findings_for("data"))["what"]  # it needs neither


def test_no_numpy_below_an_mxnet(tmp_path, examined):
    told = examined(VirtualEnvironment(tmp_path, without=["numpy"]))
    assert {found["check"] for found in told.faults()} == {"numpy", "import"}
    assert "numpy" in only(told.findings_for("import"))["cause"]


def test_both_flavours(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path)
    environment.add_distribution("mxnet-cu112")
    told = examined(environment)
    fault = only(told.findings_for("mxnet"))
    assert fault["status"] == "fault"
    assert fault["what"] == "mxnet 1.9.1 and mxnet-cu112 1.9.1 are all installed"
    assert "pip uninstall -y mxnet mxnet-cu112" in fault["cure"]
    assert "pip uninstall -y mxnet mxnet-cu112" in only(told.findings_for("import"))["cure"]


@pytest.mark.long
def test_numpy_1_26_on_python_3_11(tmp_path, examined):
    """It loads through gluonlab, and not without, which is what is said.

    On 3.12 there is no older one, and so no complaint.
    """
    environment = VirtualEnvironment(tmp_path, without=["numpy-"])
    environment.add_distribution("numpy", "1.26.4")
    environment.add_sitecustomize(FORGETS)
    told = examined(environment)
    numpy = only(told.findings_for("numpy"))
    assert numpy["status"] == ("warning" if sys.version_info < (3, 12) else "ok")
    assert "import gluonlab before" in numpy["what"] + numpy["cure"]
    assert told.findings_for("import")[0]["status"] == "ok"
    alone = subprocess.run(
        [str(environment.folder / "bin" / "python"), "-c", "import mxnet"],
        env=clean_environment(),
        capture_output=True,
        encoding="utf-8",
    )
    assert "AttributeError" in alone.stderr  # np.bool, or PZERO of numpy 2


def test_missing_cudnn(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_cu112(without=["libcudnn.so.8"])
    told = examined(environment, LD_LIBRARY_PATH=driver(tmp_path))
    fault = only(told.findings_for("libraries", "fault"))
    assert fault["what"] == "libcudnn.so.8 is missing"
    assert "nvidia-cudnn-cu11: " + pip_install_command("cu112") in fault["cure"]
    assert only(told.findings_for("import"))["what"] == "mxnet cannot load libcudnn.so.8"


def test_cudnn_9_in_the_place_of_8(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_cu112(without=["libcudnn.so.8"])
    nine = write_library(environment.library_folder("cudnn") / "libcudnn.so.9")
    told = examined(environment, LD_LIBRARY_PATH=driver(tmp_path))
    for fault in (only(told.findings_for("libraries", "fault")), only(told.findings_for("import"))):
        assert "libcudnn.so.8" in fault["what"]
        assert f"{nine} is another version" in fault["cause"]
        assert "pip install --force-reinstall --no-deps 'nvidia-cudnn-cu11<9'" in fault["cure"]


def test_no_driver_below_the_cuda_build(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_cu112()
    write_pynvml(environment.site, error="NVML Shared Library Not Found")
    told = examined(environment)
    fault = only(told.findings_for("libraries", "fault"))
    assert fault["what"] == "libcuda.so.1 is missing"
    assert "comes with the NVIDIA driver (450.80.02 or newer)" in fault["cure"]
    assert pip_install_command("cpu") in fault["cure"]
    assert only(told.findings_for("gpus"))["what"] == "no GPU"
    wheels = next(found["what"] for found in told.findings_for("libraries") if found["what"].startswith("from wheels"))
    assert "libcublasLt.so.11" not in wheels  # nobody needs it here
    assert "libcublas.so.11" in wheels
    assert str(environment.site / "nvidia") in wheels


def test_an_old_driver_and_a_gpu_that_the_wheel_has_no_code_for(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_cu112()
    write_pynvml(environment.site, kinds=[H100], driver="418.87.01")
    told = examined(environment)
    fault = only(told.findings_for("gpus", "fault"))
    assert fault["what"] == "driver 418.87.01 is too old"
    assert "450.80.02 or newer" in fault["cause"]
    assert "install a newer driver" in fault["cure"]
    fault = only(told.findings_for("capability", "fault"))
    assert fault["what"] == f"{H100[0]} (GPU 0) needs sm_90"
    assert "mxnet-cu112 1.9.1 has no code for it" in fault["cause"]
    assert "ml.g5" in fault["cure"]


def test_a_full_disk_and_an_mxnet_that_crashes(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_sitecustomize(FULL)
    environment.add_package("mxnet", "import os; os.abort()")
    environment.add_distribution("mxnet")
    told = examined(environment)
    assert "the process crashed (SIGABRT) during: import mxnet" in only(told.findings_for("import"))["cause"]
    assert only(told.findings_for("libraries"))["what"].endswith("libmxnet.so is missing")
    assert {found["check"] for found in told.faults()} == {"import", "libraries", "data", "runs", "temporary"}
    fault = only(told.findings_for("data"))
    assert "the disk is full" in fault["what"]
    assert "0 MiB are free" in fault["cause"]
    assert "make room there, or name another folder: export GLUONLAB_DATA=DIR" in fault["cure"]


def test_a_hostile_libstdcpp_in_ld_library_path(tmp_path, examined):
    hostile = write_library(tmp_path / "hostile" / "libstdc++.so.6")
    told = examined(VirtualEnvironment(tmp_path), LD_LIBRARY_PATH=str(hostile.parent))
    assert {found["check"] for found in told.faults()} >= {"import"}
    for found in (only(told.findings_for("import")), told.findings_for("libraries")[0]):
        assert "libstdc++.so.6" in found["what"]
        assert str(hostile) in found["cause"]
        assert f"take {hostile.parent} out of LD_LIBRARY_PATH" in found["cure"]


def test_a_hostile_libcudart_in_ld_library_path(tmp_path, examined):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_cu112()
    hostile = tmp_path / "hostile" / "libcudart.so.11.0"
    hostile.parent.mkdir()
    hostile.write_text("not a library" * 100)
    told = examined(environment, LD_LIBRARY_PATH=f"{hostile.parent}:{driver(tmp_path)}")
    for found in (only(told.findings_for("import")), only(told.findings_for("libraries", "fault"))):
        assert "libcudart.so.11.0" in found["what"]
        assert f"{hostile} is not a library for this machine" in found["cause"]
        assert f"take {hostile.parent} out of LD_LIBRARY_PATH" in found["cure"]


def driver(folder):
    """A folder with a driver's library that holds nothing."""
    return str(write_library(folder / "driver" / "libcuda.so.1").parent)
