"""The doctor on machines with GPUs that are not here: NVML's answers, and what follows from them."""

import json

import pynvml
import pytest
from fake_nvml import GIB, H100, K80, NAMES, T4, V100, FakeNvml
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.collectives.topology import ONE_NVLINK, TWO_NVLINKS, make_topology
from gluonlab.doctor import gpus, links, nvml
from gluonlab.doctor.findings import FAULT, OK, WARNING
from gluonlab.doctor.nvml import Driver
from gluonlab.doctor.process import Outcome

CUBE = {**dict.fromkeys(TWO_NVLINKS, 2), **dict.fromkeys(ONE_NVLINK, 1)}
RTX = ("NVIDIA GeForce RTX 3090", (8, 6))


def machine(*kinds, **description):
    """What the doctor's process tells of such a machine, through JSON as it does."""
    fake = FakeNvml(kinds, **description)
    told = json.loads(json.dumps(nvml.read(fake)))
    assert fake.open == 0  # NVML is closed again
    return Driver.of(told)


def only(findings):
    assert len(findings) == 1, findings
    return findings[0]


def statuses(findings):
    return [finding.status for finding in findings]


# --- what NVML is asked


def test_the_functions_that_are_asked_are_nvmls():
    """The fake one has what nvidia-ml-py has, which needs no driver for that."""
    assert [name for name in [*NAMES, "NVMLError"] if not hasattr(pynvml, name)] == []
    for name in (name for name in NAMES if name.startswith("NVML_")):
        assert isinstance(getattr(pynvml, name), int), name


def test_a_p3_16xlarge_is_read_as_it_is():
    found = machine(
        *[V100] * 8, nvlinks=CUBE, as_bytes=True, used={2: 3 * GIB}, processes={2: [(77, "/usr/bin/python3 -m x", GIB)]}
    )
    assert found.nvlinks == CUBE
    assert [gpu.capability for gpu in found.gpus] == [(7, 0)] * 8
    assert [gpu.name for gpu in found.gpus] == [V100[0]] * 8
    assert found.gpus[2].used_bytes == 3 * GIB
    assert found.gpus[2].processes == (nvml.Process(77, "python3", GIB),)
    assert (found.version, found.no_peers, found.switched) == ("535.183.01", (), ())


@pytest.mark.parametrize("versions", [(2,), (3,), ()])
def test_processes_are_listed_as_far_as_the_driver_can(versions):
    found = machine(T4, processes={0: [(1, "a", None)]}, process_list_versions=versions)
    assert len(found.gpus[0].processes) == bool(versions)


def test_a_process_whose_name_is_hidden_keeps_its_number():
    assert machine(T4, processes={0: [(5, "", 7)]}).gpus[0].processes == (nvml.Process(5, "?", 7),)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome([{"error": "Driver Not Loaded"}], "", ""), "Driver Not Loaded"),
        (Outcome([], "was still busy after 30 s", ""), "NVML was still busy after 30 s"),
        (Outcome([], "", ""), "NVML told nothing"),
    ],
)
def test_a_driver_that_does_not_answer(outcome, error):
    assert nvml.understand(outcome) == Driver(error=error)


# --- the driver


@pytest.mark.parametrize(
    ("version", "flavour", "status"),
    [
        ("450.80.02", "mxnet-cu112", None),
        ("450.80", "mxnet-cu112", FAULT),
        ("450.51.06", "mxnet-cu112", FAULT),
        ("440.33.01", "mxnet-cu112", FAULT),
        ("440.33.01", "mxnet", WARNING),
        ("580.65", "mxnet-cu112", None),
    ],
)
def test_a_driver_is_new_enough_from_450_80_02_on(version, flavour, status):
    old = [finding for finding in gpus.driver(machine(T4, driver=version), flavour) if "too old" in finding.what]
    assert [finding.status for finding in old] == [status] * (status is not None)


@pytest.mark.parametrize(
    ("error", "flavour", "sign", "status", "words"),
    [
        ("nvidia-ml-py is not installed", "mxnet", False, OK, "no GPU"),
        ("nvidia-ml-py is not installed", "mxnet", True, WARNING, "pip install nvidia-ml-py"),
        ("nvidia-ml-py is not installed", "mxnet-cu112", False, WARNING, "pip install nvidia-ml-py"),
        ("NVML Shared Library Not Found", "mxnet", False, OK, "no GPU"),
        ("NVML Shared Library Not Found", "mxnet-cu112", False, WARNING, "--gpus all"),
        ("NVML Shared Library Not Found", "mxnet", True, WARNING, "--gpus all"),
        ("Driver/library version mismatch", "mxnet-cu112", True, FAULT, "restart the machine"),
        ("Unknown Error", "mxnet-cu112", True, FAULT, "nvidia-smi"),
    ],
)
def test_why_there_is_no_driver(tmp_path, error, flavour, sign, status, words):
    path = tmp_path / "nvidiactl"
    if sign:
        path.touch()
    found = only(gpus.driver(Driver(error=error), flavour, (path,)))
    assert found.status == status
    assert words in found.what + found.cure


def test_gpus_below_the_cpu_build_are_not_used():
    found = gpus.driver(machine(T4), "mxnet")[-1]
    assert (found.status, found.what) == (WARNING, "the GPUs are not used")
    assert "gluonlab[cu112]" in found.cure
    assert statuses(gpus.driver(machine(T4), "mxnet-cu112")) == [OK]


def test_a_driver_without_gpus():
    assert only(gpus.driver(machine(), "mxnet-cu112")).what == "no GPU"


# --- compute capabilities


@pytest.mark.parametrize("runs", [(5, 0), (5, 2), (6, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9)])
def test_the_wheel_has_code_for(runs):
    assert gpus.has_code(runs)


@pytest.mark.parametrize("never", [(3, 0), (3, 7), (9, 0), (10, 0), (12, 0)])
def test_the_wheel_has_no_code_for(never):
    assert not gpus.has_code(never)


@given(st.integers(1, 15), st.integers(0, 9))
def test_machine_code_is_good_for_later_minor_versions_of_its_major_one_only(major, minor):
    """CUDA C++ Programming Guide, Binary Compatibility."""
    assert gpus.has_code((major, minor)) == (major in (5, 6, 7, 8))


def test_gpus_without_code_are_named_one_by_one():
    found = gpus.capabilities(machine(T4, K80, H100, H100), "mxnet-cu112")
    assert statuses(found) == [FAULT, OK, FAULT]
    assert found[0].what == "Tesla K80 (GPU 1) needs sm_37"
    assert "sm_37 is older than these" in found[0].cause
    assert found[2].what == f"{H100[0]} (GPU 2), {H100[0]} (GPU 3) needs sm_90"
    assert "mxnet-cu112 1.9.1 has no code for it: its machine code is for sm_50, sm_60, sm_70, sm_80, sm_86" in found[2].cause
    assert "newer" in found[2].cause
    assert statuses(gpus.capabilities(machine(H100), "mxnet")) == [WARNING]  # the CPU build does not use it
    assert statuses(gpus.capabilities(machine(T4, H100), "mxnet-cu112", {"CUDA_VISIBLE_DEVICES": "0"})) == [OK, WARNING]


# --- memory


def test_memory_in_use_names_the_processes_and_the_other_gpus():
    held = {1: [(4242, "/opt/bin/python", 12 * GIB), (7, "", None)]}
    free, busy, also_free = gpus.memory(machine(V100, V100, V100, used={1: 12 * GIB}, processes=held))
    assert (free.status, busy.status, also_free.status) == (OK, WARNING, OK)
    assert busy.what == "GPU 1: 12.0 of 16.0 GiB in use by python (4242, 12.0 GiB), ? (7)"
    assert "CUDA_VISIBLE_DEVICES=0,2" in busy.cure


def test_memory_in_use_by_nobody_that_is_seen():
    assert "containers" in only(gpus.memory(machine(T4, used={0: 15 * GIB}))).cause


# --- numbering


@pytest.mark.parametrize(
    ("visible", "shown", "unknown"),
    [
        (None, [0, 1, 2], None),
        ("2,0", [2, 0], None),
        ("", [], None),
        ("-1", [], None),
        ("1,-1,2", [1], None),
        ("0,7,1", [0], "7"),
        ("1,1", [1], "1"),
        ("GPU-2fa5", [2], None),
        ("GPU-", [], "GPU-"),
        ("first", [], "first"),
        (" 0 , 1 ", [0, 1], None),
    ],
)
def test_what_cuda_visible_devices_lets_through(visible, shown, unknown):
    found, word = gpus.visible_gpus(machine(T4, T4, T4).gpus, visible)
    assert ([gpu.index for gpu in found], word) == (shown, unknown)


def test_numbering_says_which_is_which():
    assert only(gpus.numbering(machine(T4, T4), {"CUDA_VISIBLE_DEVICES": "1"})).what.startswith("gpu:0 is GPU 1 of nvidia-smi")
    wrong = only(gpus.numbering(machine(T4, T4), {"CUDA_VISIBLE_DEVICES": "1,5"}))
    assert (wrong.status, wrong.what) == (WARNING, "CUDA_VISIBLE_DEVICES=1,5: 1 GPU left")
    assert "CUDA stops at '5'" in wrong.cause
    assert only(gpus.numbering(machine(T4), {"CUDA_VISIBLE_DEVICES": "9"})).status == FAULT
    hidden = only(gpus.numbering(machine(T4), {"CUDA_VISIBLE_DEVICES": ""}))
    assert (hidden.status, hidden.cure) == (WARNING, "unset CUDA_VISIBLE_DEVICES")
    assert gpus.numbering(machine(), {}) == []


def test_unlike_gpus_may_be_numbered_otherwise():
    found = only(gpus.numbering(machine(T4, RTX), {}))
    assert (found.status, found.cure) == (WARNING, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    assert only(gpus.numbering(machine(T4, RTX), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})).status == OK


# --- links


@pytest.mark.parametrize(
    ("told", "product", "instance"),
    [
        ("ml.p3.16xlarge", "", "p3.16xlarge"),
        ("", "p3dn.24xlarge\n", "p3dn.24xlarge"),
        ("", "HVM domU", ""),
        ("", None, ""),
        ("local_gpu", "g5.12xlarge", ""),
        ("", "g4dn.metal", "g4dn.metal"),
    ],
)
def test_the_instance_is_what_sagemaker_or_the_machine_says(tmp_path, told, product, instance):
    path = tmp_path / "product_name"
    if product is not None:
        path.write_text(product)
    assert links.instance_type({"SM_CURRENT_INSTANCE_TYPE": told}, path) == instance


def test_the_expected_links_are_those_of_the_topology():
    assert links.nvlinks_of(make_topology("p3.16xlarge")) == CUBE
    assert links.nvlinks_of(make_topology("g4dn.12xlarge")) == {}


@pytest.mark.parametrize("instance", ["p3.16xlarge", ""])
def test_a_whole_cube_mesh_is_as_it_should_be(instance):
    nvlink, peers = links.links(machine(*[V100] * 8, nvlinks=CUBE), instance)
    assert (nvlink.status, peers.status) == (OK, OK)
    assert nvlink.what.endswith("as p3.16xlarge has")
    assert "0-3: 2" in nvlink.what


def test_a_link_that_is_down_is_named():
    nvlink = links.links(machine(*[V100] * 8, nvlinks={**CUBE, (0, 3): 1, (5, 6): 0}), "p3.16xlarge")[0]
    assert nvlink.status == WARNING
    assert nvlink.what == "NVLinks differ from those of p3.16xlarge: 0-3 has 1 instead of 2, 5-6 has 0 instead of 2"
    assert nvlink.cause == "links are down"
    assert "stop and start the instance" in nvlink.cure


def test_gpus_without_nvlinks_that_should_have_none():
    nvlink, _ = links.links(machine(*[T4] * 4), "g4dn.12xlarge")
    assert (nvlink.status, nvlink.what) == (OK, "no NVLinks between the GPUs, all go over PCIe, as g4dn.12xlarge has")


def test_machines_that_nobody_knows_are_told_as_they_are():
    assert links.links(machine(RTX, RTX, nvlinks={(0, 1): 4}), "")[0].what == "NVLinks 0-1: 4"
    assert links.links(machine(*[H100] * 4, switched=True), "")[0].what == "NVLinks to switches on GPUs 0, 1, 2, 3"
    assert links.links(machine(T4), "") == []


def test_missing_peer_access_is_a_warning_where_there_are_nvlinks():
    far = links.links(machine(*[V100] * 8, nvlinks=CUBE, no_peers=[(0, 7)]), "")[1]
    assert (far.status, far.what) == (OK, "no peer-to-peer access between 0-7: their copies go through the host")
    near = links.links(machine(*[V100] * 8, nvlinks=CUBE, no_peers=[(0, 3)]), "")[1]
    assert near.status == WARNING
    assert "0-3" in near.what
