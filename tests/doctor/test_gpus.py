"""The doctor on machines with GPUs that are not here: NVML's answers, and what follows from
them.
"""

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_nvml import CUBE, GIB, H100, K80, NAMES, T4, V100, machine, only, statuses

from gluonlab.doctor import gpus, links
from gluonlab.doctor.findings import FAULT, OK, WARNING
from gluonlab.engine.installation import pip_install
from gluonlab.gpu import nvml
from gluonlab.gpu.code import has_code
from gluonlab.gpu.nvml import Driver
from gluonlab.gpu.process import Outcome

# --- what NVML is asked


def test_the_functions_that_are_asked_are_nvmls():
    """The fake one has what nvidia-ml-py has, which needs no driver for that."""
    assert [name for name in [*NAMES, "NVMLError"] if not hasattr(pynvml, name)] == []
    for name in (name for name in NAMES if name.startswith("NVML_")):
        assert isinstance(getattr(pynvml, name), int), name


def test_a_p3_16xlarge_is_read_as_it_is():
    found = machine(
        *[V100] * 8,
        nvlinks=CUBE,
        as_bytes=True,
        used={2: 3 * GIB},
        processes={2: [(77, "/usr/bin/python3 -m x", GIB)]},
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


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("/usr/bin/python3 train.py --out runs/x", "python3"),
        ("python", "python"),
        ("/opt/a/b", "b"),
    ],
)
def test_a_process_has_the_name_of_its_program(told, name):
    assert machine(T4, processes={0: [(5, told, 7)]}).gpus[0].processes[0].name == name


def test_a_process_whose_name_is_hidden_keeps_its_number():
    assert machine(T4, processes={0: [(5, "", 7)]}).gpus[0].processes == (nvml.Process(5, "?", 7),)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome([{"error": "Driver Not Loaded"}], "", ""), "Driver Not Loaded"),
        (Outcome([], "was still busy after 30 s", ""), "NVML was still busy after 30 s"),
        (Outcome([], "", ""), "NVML gave no answer"),
    ],
)
def test_a_driver_that_does_not_answer(outcome, error):
    assert nvml.understand(outcome) == Driver(error=error)


def test_a_gpu_that_does_not_answer_leaves_the_others():
    """It fell off the bus; or, on a machine of a batch system, another job has it."""
    found = machine(T4, V100, V100, silent={1: "GPU is lost"}, nvlinks={(0, 2): 2})
    assert ([gpu.index for gpu in found.gpus], found.nvlinks) == ([0, 2], {(0, 2): 2})
    first, lost = gpus.driver(found, "mxnet-cu112")
    assert first.what == "driver 535.183.01, 1 x Tesla T4, 1 x Tesla V100-SXM2-16GB"
    assert (lost.status, lost.what, lost.cause) == (FAULT, "GPU 1 does not answer", "GPU is lost")
    assert "restart the machine" in lost.cure
    assert links.links(found, None)[0].what == "NVLinks 0-2: 2"
    others = gpus.driver(machine(T4, T4, silent={1: "Insufficient Permissions"}), "mxnet-cu112")
    assert statuses(others) == [OK, OK]
    alone = machine(T4, silent={0: "GPU is lost"})
    assert statuses([*gpus.driver(alone, "mxnet"), *gpus.driver(alone, "mxnet-cu112")]) == [
        WARNING,
        FAULT,
    ]


def test_a_gpu_whose_memory_is_not_told_is_there():
    """Of a GPU with parts (MIG) only an administrator may know it."""
    found = machine(T4, T4, untold=[1])
    assert [gpu.used_bytes for gpu in found.gpus] == [GIB // 2, None]
    assert gpus.memory(found)[1].what == "GPU 1: the driver does not report the memory in use"


def test_links_to_gpus_that_a_container_has_not_go_to_no_switch():
    found = machine(*[V100] * 4, nvlinks={(0, 1): 2, (0, 2): 1, (1, 3): 1}, hidden=[2, 3])
    assert (len(found.gpus), found.nvlinks, found.switched) == (2, {(0, 1): 2}, ())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "class NVMLError(Exception): pass",
            "AttributeError: module 'pynvml' has no attribute 'nvmlInit'",
        ),
        ("print 'hello'", "SyntaxError"),
        ("nvmlInit = 1", "TypeError"),
    ],
)
def test_another_module_of_that_name_is_no_fault_of_the_driver(tmp_path, monkeypatch, code, words):
    """A package pynvml brings one, too, and had other names in it."""
    (tmp_path / "pynvml.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = nvml.look()
    assert found.error.startswith(
        f"nvidia-ml-py is needed; {tmp_path}/pynvml.py fails with " * ("Syntax" not in words)
    )
    assert words in found.error
    told = only(gpus.driver(found, "mxnet-cu112", ()))
    assert (told.status, told.cure) == (
        WARNING,
        "pip install --force-reinstall nvidia-ml-py==13.615.71",
    )
    assert only(gpus.driver(found, "mxnet", ())).status == OK


def test_the_release_that_is_named_is_the_one_that_setup_installs(request):
    assert (
        f'"{nvml.BINDINGS}=={gpus.BINDINGS_VERSION}"'
        in (request.config.rootpath / "setup.py").read_text()
    )


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
    old = [
        finding
        for finding in gpus.driver(machine(T4, driver=version), flavour)
        if "too old" in finding.what
    ]
    assert [finding.status for finding in old] == [status] * (status is not None)


@pytest.mark.parametrize(
    ("error", "flavour", "sign", "status", "words"),
    [
        ("nvidia-ml-py is not installed", "mxnet", False, OK, "no GPU"),
        ("nvidia-ml-py is not installed", "mxnet", True, WARNING, "pip install nvidia-ml-py"),
        (
            "nvidia-ml-py is not installed",
            "mxnet-cu112",
            False,
            WARNING,
            "pip install nvidia-ml-py",
        ),
        ("NVML Shared Library Not Found", "mxnet", False, OK, "no GPU"),
        ("NVML Shared Library Not Found", "mxnet-cu112", False, WARNING, "--gpus all"),
        ("NVML Shared Library Not Found", "mxnet", True, WARNING, "--gpus all"),
        ("Driver/library version mismatch", "mxnet-cu112", True, FAULT, "restart the machine"),
        ("Driver Not Loaded", "mxnet", False, OK, "no GPU"),
        ("Driver Not Loaded", "mxnet-cu112", False, WARNING, "modprobe nvidia"),
        ("Driver Not Loaded", "mxnet-cu112", True, FAULT, "nvidia-smi"),
        ("Function Not Found", "mxnet-cu112", True, FAULT, "nvidia-smi"),
        ("Not Found", "mxnet", False, FAULT, "nvidia-smi"),
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
    assert pip_install("cu112") in found.cure
    assert statuses(gpus.driver(machine(T4), "mxnet-cu112")) == [OK]


def test_a_driver_without_gpus():
    assert only(gpus.driver(machine(), "mxnet-cu112")).what == "no GPU"


# --- compute capabilities


@pytest.mark.parametrize(
    "runs", [(5, 0), (5, 2), (6, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9)]
)
def test_the_wheel_has_code_for(runs):
    assert has_code(runs)


@pytest.mark.parametrize("never", [(3, 0), (3, 7), (9, 0), (10, 0), (12, 0)])
def test_the_wheel_has_no_code_for(never):
    assert not has_code(never)


@given(st.integers(1, 15), st.integers(0, 9))
def test_machine_code_is_good_for_later_minor_versions_of_its_major_one_only(major, minor):
    """CUDA C++ Programming Guide, Binary Compatibility."""
    assert has_code((major, minor)) == (major in (5, 6, 7, 8))


def test_gpus_without_code_are_named_one_by_one():
    found = gpus.capabilities(machine(T4, K80, H100, H100), "mxnet-cu112")
    assert statuses(found) == [FAULT, OK, FAULT]
    assert found[0].what == "Tesla K80 (GPU 1) needs sm_37"
    assert "sm_37 is older than these" in found[0].cause
    assert found[2].what == f"{H100[0]} (GPU 2), {H100[0]} (GPU 3) needs sm_90"
    assert (
        "mxnet-cu112 1.9.1 has no code for it: its machine code is for sm_50, sm_60, sm_70, "
        "sm_80, sm_86"
    ) in found[2].cause
    assert "newer" in found[2].cause
    # the CPU build does not use it
    assert statuses(gpus.capabilities(machine(H100), "mxnet")) == [WARNING]


def test_a_gpu_without_code_that_cuda_does_not_show_is_no_fault():
    """CUDA counts the fastest first: of these two, the H100, unless it is told otherwise."""
    shown = {"CUDA_VISIBLE_DEVICES": "0"}
    assert statuses(gpus.capabilities(machine(T4, H100), "mxnet-cu112", shown)) == [OK, FAULT]
    along_the_bus = {**shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert statuses(gpus.capabilities(machine(T4, H100), "mxnet-cu112", along_the_bus)) == [
        OK,
        WARNING,
    ]
    assert statuses(gpus.capabilities(machine(K80, T4), "mxnet-cu112", shown)) == [WARNING, OK]


# --- TF32

A100, A10G = ("NVIDIA A100-SXM4-40GB", (8, 0)), ("NVIDIA A10G", (8, 6))


def test_gpus_that_could_round_to_tf32_are_told_what_they_do():
    assert gpus.products(machine(V100, T4, H100), {}) == []  # MXNet has no code for the last
    for environ in ({}, {"NVIDIA_TF32_OVERRIDE": "0"}):
        finding = only(gpus.products(machine(V100, A100, A10G), environ))
        assert finding.status == OK
        assert finding.what.startswith(
            f"{A100[0]} (GPU 1), {A10G[0]} (GPU 2): float32 is multiplied exactly, unless --tf32"
        )
    finding = only(gpus.products(machine(A100), {"NVIDIA_TF32_OVERRIDE": "1"}))
    assert (finding.status, finding.cure) == (WARNING, "unset NVIDIA_TF32_OVERRIDE")
    assert "k GPUs equal one to TF32's precision only" in finding.cause


# --- memory


def test_memory_in_use_names_the_processes_and_the_other_gpus():
    held = {1: [(4242, "/opt/bin/python", 12 * GIB), (7, "", None)]}
    free, busy, also_free = gpus.memory(
        machine(V100, V100, V100, used={1: 12 * GIB}, processes=held)
    )
    assert (free.status, busy.status, also_free.status) == (OK, WARNING, OK)
    assert busy.what == "GPU 1: 12.0 of 16.0 GiB in use by python (4242, 12.0 GiB), ? (7)"
    assert "CUDA_VISIBLE_DEVICES=0,2" in busy.cure


def test_memory_in_use_by_nobody_that_is_seen():
    assert "containers" in only(gpus.memory(machine(T4, used={0: 15 * GIB}))).cause
