"""GPUs that mxnet-cu112 has no code for: one line, before anything is read or put on them."""

import json

import mxnet as mx
import pytest
from gpus.commands import run_python
from gpus.machines import A10G, H100, V100, Machine
from gpus.simulated import counters

from gluonlab.devices import devices
from gluonlab.doctor.findings import FAULT
from gluonlab.gpu.cuda import gpu_model, is_supported

K80 = ("Tesla K80", (3, 7), 11 * 2**30)
HELD = "but mxnet-cu112 1.9.1 only supports sm_50, sm_60, sm_70, sm_80, sm_86: use "
COMMANDS = {
    "run": ["gluonlab.run", "--gpus", "1", "--epochs", "1"],
    "run by default": ["gluonlab.run", "--epochs", "1"],
    "scratch": ["gluonlab.scratch", "--gpus", "1"],
    "find-batch-size": ["gluonlab", "find-batch-size", "2GiB", "--gpus", "1"],
    "bench": ["gluonlab.bench", "allreduce", "--devices", "gpu:*"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_in_one_line_that_there_is_no_code(command, tmp_path):
    process = run_python(Machine((H100,)), tmp_path, "-m", *COMMANDS[command])
    said = [line for line in process.stderr.splitlines() if "error:" in line]
    assert process.returncode == 2 and process.stdout == ""
    [line] = said
    assert line.startswith(f"error: gpu:0 is an NVIDIA H100 80GB HBM3 (sm_90), {HELD}a V100, T4,")
    assert line.endswith("or CPU devices: --devices 'cpu*2'")
    assert "unknown kernel" not in process.stderr and not list(tmp_path.glob("runs"))


def test_cpu_devices_of_such_a_machine_train(tmp_path):
    process = run_python(Machine((H100,)), tmp_path, "-m", "gluonlab.run", "--devices", "cpu*2", "--epochs", "1")
    assert process.returncode == 0, process.stderr


FIND = """
import json, sys
from gluonlab.devices import devices
from gluonlab.errors import DeviceError
for spec in json.loads(sys.argv[1]):
    try:
        print(json.dumps([str(ctx) for ctx in devices(spec)]))
    except DeviceError as error:
        print(json.dumps(str(error)))
"""


def find_devices(machine, folder, *specs):
    process = run_python(machine, folder, "-c", FIND, json.dumps(specs), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_of_a_mixed_machine_only_the_gpus_in_use_matter(tmp_path):
    one, all_of_them, those, new = find_devices(
        Machine((V100, H100, A10G, H100)), tmp_path, 1, "gpu:*", "gpu:0,2", "gpu:1"
    )
    assert one == ["gpu(0)"] and those == ["gpu(0)", "gpu(2)"]
    assert all_of_them.startswith(
        f"gpu:1 and gpu:3 are each an NVIDIA H100 80GB HBM3 (sm_90), {HELD}gpu:0 or gpu:2 of this machine"
    )
    assert new.startswith(
        f"gpu:1 is an NVIDIA H100 80GB HBM3 (sm_90), {HELD}gpu:0 or gpu:2 of this machine, or CPU devices"
    )


def test_gpus_that_are_too_old_are_named_likewise(tmp_path):
    [report] = find_devices(Machine((K80,)), tmp_path, "gpu")
    assert report.startswith(f"gpu:0 is a Tesla K80 (sm_37), {HELD}a V100")


def test_the_look_allocates_and_launches_nothing():
    before = counters()
    assert devices("gpu:0,1") == [mx.gpu(0), mx.gpu(1)]
    assert counters() == before and all(is_supported(gpu_model(number).capability) for number in (0, 1))


def test_the_doctor_names_them_and_its_step_of_training_does_not_crash(tmp_path):
    process = run_python(Machine((H100,)), tmp_path, "-m", "gluonlab.doctor", "--smoke-test", "--json")
    report = json.loads(process.stdout)["findings"]
    faults = {finding["check"]: finding for finding in report if finding["status"] == FAULT}
    assert set(faults) == {"capability", "train"} and "crashed" not in json.dumps(report)
    assert "sm_90" in faults["train"]["cause"] and "sm_90" in faults["capability"]["what"]
