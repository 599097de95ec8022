"""NVML of the simulated machine, through nvidia-ml-py itself: it and CUDA tell of the same machine,
whatever the machine is.
"""

import json
import os

import mxnet as mx
import pynvml
import pytest
from gpus.commands import run_python
from gpus.machines import A100, CUBE, G4DN_12XLARGE, H100, P3_16XLARGE, T4, Machine
from mxnet import nd

from gluonlab.gpu import nvml
from gluonlab.gpu.cuda import gpu_model, pci_bus_ids

MIXED = Machine((T4, A100, H100), peers=((0, 1),), driver="470.57.02")
MACHINES = {"p3.16xlarge": P3_16XLARGE, "g4dn.12xlarge": G4DN_12XLARGE, "mixed": MIXED}
BOTH = """
import json, mxnet as mx
from gluonlab.gpu import cuda, nvml
ctxs = [mx.gpu(i) for i in range(mx.context.num_gpus())]
kinds = [cuda.gpu_model(i) for i in range(len(ctxs))]
import pynvml
found = {"buses": cuda.pci_bus_ids(ctxs), "pairs": cuda.peer_pairs(ctxs)}
print(json.dumps({"nvml": nvml.query_nvml(pynvml), "kinds": kinds, **found}))
"""


def query_drivers(machine, folder):
    """What NVML and CUDA tell a process on such a machine, whose GPUs CUDA counts along the bus."""
    return json.loads(run_python(machine, folder, "-c", BOTH, CUDA_DEVICE_ORDER="PCI_BUS_ID").stdout)


@pytest.mark.parametrize("name", MACHINES)
def test_nvml_and_cuda_tell_of_the_same_machine(name, tmp_path):
    machine = MACHINES[name]
    report = query_drivers(machine, tmp_path)
    result = nvml.Driver.from_answer(report["nvml"])
    assert result.version == machine.driver
    assert [(gpu.name, gpu.capability, gpu.memory_bytes) for gpu in result.gpus] == list(machine.kinds)
    assert [[gpu.name, list(gpu.capability)] for gpu in result.gpus] == report["kinds"]
    assert [gpu.bus_id[4:].lower() for gpu in result.gpus] == report["buses"]
    assert len({gpu.uuid for gpu in result.gpus}) == len(machine.kinds)
    count = len(machine.kinds)
    pairs = [[a, b] for a in range(count) for b in range(count) if a < b and (a, b) not in result.pairs_without_access]
    assert pairs == report["pairs"] == sorted(list(pair) for pair in machine.peers)
    assert result.nvlinks == machine.nvlinks and not result.nvswitch_gpus and not result.unreadable_gpus


def test_the_links_of_a_p3_16xlarge_are_those_of_the_cube(tmp_path):
    assert nvml.Driver.from_answer(query_drivers(P3_16XLARGE, tmp_path)["nvml"]).nvlinks == CUBE


def test_memory_and_the_process_that_has_it_are_told():
    held = nd.zeros((2**20,), ctx=mx.gpu(0))
    held.wait_to_read()
    gpu = nvml.Driver.from_answer(nvml.query_nvml(pynvml)).gpus[0]
    assert gpu.used_bytes >= 4 * 2**20
    [process] = gpu.processes
    assert process.pid == os.getpid() and process.used_bytes == gpu.used_bytes and process.name.startswith("python")


def test_a_gpu_is_named_to_us_as_to_nvml():
    gpus = nvml.Driver.from_answer(nvml.query_nvml(pynvml)).gpus
    assert [gpu_model(number) for number in range(len(gpus))] == [(gpu.name, gpu.capability) for gpu in gpus]
    assert pci_bus_ids([mx.gpu(1)]) == [gpus[1].bus_id[4:].lower()]
