"""Drivers of all branches since CUDA 11.0: a run trains on each, with fused operators where the
driver runs what NVRTC compiles.
"""

import json

import pytest
from gpus.commands import run_python
from gpus.machines import v100s

# A driver's branch, the newest CUDA that it knows, and the newest PTX (NVIDIA, PTX ISA, release
# history).
DRIVERS = {
    "450.80.02": ("11.0", "7.0"), "460.32.03": ("11.2", "7.2"), "470.57.02": ("11.4", "7.4"),
    "495.29.05": ("11.5", "7.5"), "510.39.01": ("11.6", "7.6"), "515.43.04": ("11.7", "7.7"),
    "520.61.05": ("11.8", "7.8"), "525.60.13": ("12.0", "8.0"), "535.54.03": ("12.2", "8.2"),
    "550.54.14": ("12.4", "8.4"),
}  # fmt: skip
FUSES = ("520.61.05", "525.60.13", "535.54.03", "550.54.14")
TRAINED = ("450.80.02", "470.57.02", "515.43.04", "525.60.13", "550.54.14")
UNSUPPORTED = "the provided PTX was compiled with an unsupported toolchain."

LOAD = """
import ctypes, json, sys
driver, module, words = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_char_p()
version = ctypes.c_int(); driver.cuDriverGetVersion(ctypes.byref(version))
told = []
for ptx in json.loads(sys.argv[1]):
    text = f".version {ptx}\\n.target sm_70\\n.address_size 64\\n"
    status = driver.cuModuleLoadData(ctypes.byref(module), text.encode())
    driver.cuGetErrorString(status, ctypes.byref(words))
    told.append([status, words.value.decode()])
print(json.dumps([version.value, told]))
# nobody here can run PTX that NVRTC has not made
ctypes.CDLL("libsimulated_gpus.so").gpus_forget_faults()
"""

STEP = """
import json, sys, warnings
import gluonlab, mxnet as mx
from gluonlab.doctor.check_training import max_parameter_difference
from gluonlab.devices import devices
from gpus.simulated import counters, faults
apart = max_parameter_difference(devices("gpu:*"))
told = counters()
counts = {"fused": told["fused_launches"], "launches": told["launches"]}
print(json.dumps({"apart": apart, **counts, "faults": faults()}))
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_refuses_ptx_that_is_newer_than_its_cuda(driver, tmp_path):
    cuda, newest = DRIVERS[driver]
    major, minor = map(int, newest.split("."))
    versions = ["6.5", newest, f"{major}.{minor + 1}", f"{major + 1}.0"]
    version, report = json.loads(run_python(v100s(1, driver=driver), tmp_path, "-c", LOAD, json.dumps(versions)).stdout)
    assert version == int(cuda.split(".")[0]) * 1000 + int(cuda.split(".")[1]) * 10
    assert [status == 222 for status, _ in report] == [False, False, True, True]
    assert {words for status, words in report if status == 222} == {UNSUPPORTED}


@pytest.mark.parametrize("driver", TRAINED)
def test_a_step_trains_on_every_driver_and_fuses_where_it_can(driver, tmp_path):
    process = run_python(v100s(2, driver=driver), tmp_path, "-c", STEP)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["apart"] <= 1e-5 and report["faults"] == []
    assert (report["fused"] > 0) == (driver in FUSES)


@pytest.mark.parametrize("driver", ["470.57.02", "535.54.03"])
def test_a_run_ends_well(driver, tmp_path):
    options = ["--gpus", "2", "--model", "mlp", "--epochs", "1", "--require-gpu"]
    process = run_python(v100s(2, driver=driver), tmp_path, "-m", "gluonlab.run", *options)
    assert process.returncode == 0, process.stderr


def test_who_wants_fusion_where_the_driver_refuses_it_is_warned_and_gets_the_drivers_words(tmp_path):
    process = run_python(v100s(2, driver="470.57.02"), tmp_path, "-c", STEP, MXNET_USE_FUSION="1")
    assert process.returncode != 0 and UNSUPPORTED in process.stderr
    [warned] = [line for line in process.stderr.splitlines() if "MXNET_USE_FUSION=1 is set" in line]
    assert "the driver supports CUDA 11.4 and does not run code that NVRTC 11.8 compiles" in warned


@pytest.mark.parametrize(("driver", "status"), [("515.43.04", "warning"), ("520.61.05", "ok")])
def test_the_doctor_has_a_line_about_it_and_its_step_computes_what_a_run_computes(driver, status, tmp_path):
    process = run_python(v100s(2, driver=driver), tmp_path, "-m", "gluonlab.doctor", "--smoke-test", "--json")
    result = {finding["check"]: finding for finding in json.loads(process.stdout)["findings"]}
    assert result["fusion"]["status"] == status
    assert f"the driver supports CUDA {DRIVERS[driver][0]}" in result["fusion"]["what"] + result["fusion"]["cause"]
    assert result["train"]["status"] == "ok", result["train"]
