"""Which GPUs CUDA shows, and what it calls them, on machines that are not here."""

import pytest
from support.fake_nvml import RTX, T4, machine, only

from gluonlab.doctor.findings import FAULT, OK, WARNING
from gluonlab.doctor.numbering import numbering
from gluonlab.gpu.visible import visible_gpus

A100 = ("NVIDIA A100-SXM4-40GB", (8, 0))
PARTS = ["MIG-5c3a-1", "MIG-5c3a-2"]


@pytest.mark.parametrize(
    ("visible", "shown", "problem"),
    [
        (None, [0, 1, 2], ""),
        ("2,0", [2, 0], ""),
        ("", [], ""),
        (" ", [], ""),
        ("-1", [], ""),
        ("1,-1,2", [1], ""),
        ("0,7,1", [0], "CUDA stops at '7'"),
        ("0,,1", [0], "CUDA stops at ''"),
        ("1,1", [], "names GPU 1 twice, so CUDA shows no GPU"),
        ("0,GPU-0", [], "names GPU 0 twice"),
        ("GPU-2fa5", [2], ""),
        ("GPU-2fa5,GPU-0", [2, 0], ""),
        ("GPU-", [], "CUDA stops at 'GPU-'"),  # of several
        ("GPU-9", [], "CUDA stops at 'GPU-9'"),
        ("first", [], "CUDA stops at 'first'"),
        ("all", [], "CUDA stops at 'all'"),  # NVIDIA_VISIBLE_DEVICES knows it
        (" 0 , 1 ", [0, 1], ""),
        ("1gpu,+2", [1, 2], ""),  # read as strtol does
    ],
)
def test_what_cuda_visible_devices_lets_through(visible, shown, problem):
    found = visible_gpus(machine(T4, T4, T4).gpus, visible)
    assert ([gpu.index for gpu in found.gpus], bool(found.problem)) == (shown, bool(problem))
    assert problem in found.problem


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        ("MIG-5c3a-2", [1]),
        ("MIG-5c3a-2,MIG-5c3a-1", [1]),
        ("MIG-GPU-1fa5d8d9-0000-0000-0000-000000000001/3/0", [1]),
        ("MIG-9", []),
    ],
)
def test_a_part_of_a_gpu_is_of_that_gpu(visible, shown):
    found = visible_gpus(machine(A100, A100, parts={1: PARTS}).gpus, visible)
    assert [gpu.index for gpu in found.gpus] == shown
    assert bool(found.problem) == (not shown)


def test_gpus_with_parts():
    divided = machine(A100, parts={0: PARTS})
    found = only(numbering(divided, {}))
    assert (found.status, found.what) == (WARNING, "one part of GPU 0 is shown, as gpu:0")
    assert "it has 2 parts" in found.cause
    assert "CUDA_VISIBLE_DEVICES=MIG-5c3a-1; nvidia-smi -i 0 -mig 0" in found.cure
    found = only(numbering(divided, {"CUDA_VISIBLE_DEVICES": PARTS[1]}))
    assert (found.status, found.what.partition(";")[0]) == (
        OK,
        "gpu:0 is a part (MIG) of GPU 0 of nvidia-smi",
    )
    without = only(numbering(machine(A100, parts={0: []}), {}))
    assert (without.status, without.what) == (WARNING, "CUDA does not show GPU 0")
    assert only(numbering(machine(A100), {})).status == OK


def test_numbering_says_which_is_which():
    assert only(numbering(machine(T4, T4), {"CUDA_VISIBLE_DEVICES": "1"})).what.startswith(
        "gpu:0 is GPU 1 of nvidia-smi"
    )
    wrong = only(numbering(machine(T4, T4), {"CUDA_VISIBLE_DEVICES": "1,5"}))
    assert (wrong.status, wrong.what) == (WARNING, "CUDA_VISIBLE_DEVICES=1,5: 1 GPU left")
    assert (
        "CUDA stops at '5', which names none of the 2 GPUs here, and ignores what follows"
        in wrong.cause
    )
    assert wrong.cure == "give numbers from 0 to 1, or UUIDs as nvidia-smi -L shows them, each once"
    twice = only(numbering(machine(T4, T4), {"CUDA_VISIBLE_DEVICES": "1,1"}))
    assert (twice.status, twice.what) == (FAULT, "CUDA_VISIBLE_DEVICES=1,1: no GPUs left")
    assert only(numbering(machine(T4), {"CUDA_VISIBLE_DEVICES": "9"})).status == FAULT
    hidden = only(numbering(machine(T4), {"CUDA_VISIBLE_DEVICES": ""}))
    assert (hidden.status, hidden.cure) == (WARNING, "unset CUDA_VISIBLE_DEVICES")
    assert numbering(machine(), {}) == []


def test_unlike_gpus_may_be_numbered_otherwise():
    found = only(numbering(machine(T4, RTX), {}))
    assert (found.status, found.cure) == (WARNING, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    assert only(numbering(machine(T4, RTX), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})).status == OK
