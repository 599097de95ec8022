"""The doctor on machines with GPUs that are not here: NVML's answers, and what follows from
them.
"""

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_nvml import (
    A100,
    CUBE,
    GIB,
    H100,
    K80,
    NAMES,
    RTX,
    T4,
    V100,
    fake_driver,
    finding_statuses,
    only_finding,
)

from gluonlab.collectives.named_topologies import make_topology
from gluonlab.doctor import check_gpus
from gluonlab.doctor.check_gpus import check_gpu_order
from gluonlab.doctor.findings import FAULT, OK, WARNING
from gluonlab.engine.mxnet_installation import pip_install_command
from gluonlab.gpu import nvml
from gluonlab.gpu.isolated_process import ProcessOutcome
from gluonlab.gpu.nvml import Driver, visible_gpus

# --- what NVML is asked


def test_the_functions_that_are_asked_are_nvmls():
    """The fake one has what nvidia-ml-py has, which needs no driver for that."""
    assert [name for name in [*NAMES, "NVMLError"] if not hasattr(pynvml, name)] == []
    for name in (name for name in NAMES if name.startswith("NVML_")):
        assert isinstance(getattr(pynvml, name), int), name


def test_a_p3_16xlarge_is_read_as_it_is():
    found = fake_driver(
        *[V100] * 8, nvlinks=CUBE, as_bytes=True, used={2: 3 * GIB}, processes={2: [(77, "/usr/bin/python3 -m x", GIB)]}
    )
    assert found.nvlinks == CUBE
    assert [gpu.capability for gpu in found.gpus] == [(7, 0)] * 8
    assert [gpu.name for gpu in found.gpus] == [V100[0]] * 8
    assert found.gpus[2].used_bytes == 3 * GIB
    assert found.gpus[2].processes == (nvml.GpuProcess(77, "python3", GIB),)
    assert (found.version, found.no_peers, found.switched) == ("535.183.01", (), ())


@pytest.mark.parametrize("versions", [(2,), (3,), ()])
def test_processes_are_listed_as_far_as_the_driver_can(versions):
    found = fake_driver(T4, processes={0: [(1, "a", None)]}, process_list_versions=versions)
    assert len(found.gpus[0].processes) == bool(versions)


@pytest.mark.parametrize(
    ("told", "name"), [("/usr/bin/python3 train.py --out runs/x", "python3"), ("python", "python"), ("/opt/a/b", "b")]
)
def test_a_process_has_the_name_of_its_program(told, name):
    assert fake_driver(T4, processes={0: [(5, told, 7)]}).gpus[0].processes[0].name == name


def test_a_process_whose_name_is_hidden_keeps_its_number():
    assert fake_driver(T4, processes={0: [(5, "", 7)]}).gpus[0].processes == (nvml.GpuProcess(5, "?", 7),)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (ProcessOutcome([{"error": "Driver Not Loaded"}], "", ""), "Driver Not Loaded"),
        (ProcessOutcome([], "was still busy after 30 s", ""), "NVML was still busy after 30 s"),
        (ProcessOutcome([], "", ""), "NVML gave no answer"),
    ],
)
def test_a_driver_that_does_not_answer(outcome, error):
    assert nvml.parse_outcome(outcome) == Driver(error=error)


def test_a_gpu_that_does_not_answer_leaves_the_others():
    """It fell off the bus; or, on a machine of a batch system, another job has it."""
    found = fake_driver(T4, V100, V100, silent={1: "GPU is lost"}, nvlinks={(0, 2): 2})
    assert ([gpu.index for gpu in found.gpus], found.nvlinks) == ([0, 2], {(0, 2): 2})
    first, lost = check_gpus.check_driver(found, "mxnet-cu112")
    assert first.what == "driver 535.183.01, 1 x Tesla T4, 1 x Tesla V100-SXM2-16GB"
    assert (lost.status, lost.what, lost.cause) == (FAULT, "GPU 1 does not answer", "GPU is lost")
    assert "restart the machine" in lost.cure
    assert check_gpus.check_links(found, None)[0].what == "NVLinks 0-2: 2"
    others = check_gpus.check_driver(fake_driver(T4, T4, silent={1: "Insufficient Permissions"}), "mxnet-cu112")
    assert finding_statuses(others) == [OK, OK]
    alone = fake_driver(T4, silent={0: "GPU is lost"})
    assert finding_statuses(
        [*check_gpus.check_driver(alone, "mxnet"), *check_gpus.check_driver(alone, "mxnet-cu112")]
    ) == [WARNING, FAULT]


def test_a_gpu_whose_memory_is_not_told_is_there():
    """Of a GPU with parts (MIG) only an administrator may know it."""
    found = fake_driver(T4, T4, untold=[1])
    assert [gpu.used_bytes for gpu in found.gpus] == [GIB // 2, None]
    assert check_gpus.check_gpu_memory(found)[1].what == "GPU 1: the driver does not report the memory in use"


def test_links_to_gpus_that_a_container_has_not_go_to_no_switch():
    found = fake_driver(*[V100] * 4, nvlinks={(0, 1): 2, (0, 2): 1, (1, 3): 1}, hidden=[2, 3])
    assert (len(found.gpus), found.nvlinks, found.switched) == (2, {(0, 1): 2}, ())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("class NVMLError(Exception): pass", "AttributeError: module 'pynvml' has no attribute 'nvmlInit'"),
        ("print 'hello'", "SyntaxError"),
        ("nvmlInit = 1", "TypeError"),
    ],
)
def test_another_module_of_that_name_is_no_fault_of_the_driver(tmp_path, monkeypatch, code, words):
    """A package pynvml brings one, too, and had other names in it."""
    (tmp_path / "pynvml.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = nvml.read_driver()
    assert found.error.startswith(f"nvidia-ml-py is needed; {tmp_path}/pynvml.py fails with " * ("Syntax" not in words))
    assert words in found.error
    told = only_finding(check_gpus.check_driver(found, "mxnet-cu112", ()))
    assert (told.status, told.cure) == (WARNING, "pip install --force-reinstall nvidia-ml-py==13.615.71")
    assert only_finding(check_gpus.check_driver(found, "mxnet", ())).status == OK


def test_the_release_that_is_named_is_the_one_that_setup_installs(request):
    assert f'"{nvml.BINDINGS}=={check_gpus.BINDINGS_VERSION}"' in (request.config.rootpath / "setup.py").read_text()


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
        for finding in check_gpus.check_driver(fake_driver(T4, driver=version), flavour)
        if "too old" in finding.what
    ]
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
    found = only_finding(check_gpus.check_driver(Driver(error=error), flavour, (path,)))
    assert found.status == status
    assert words in found.what + found.cure


def test_gpus_below_the_cpu_build_are_not_used():
    found = check_gpus.check_driver(fake_driver(T4), "mxnet")[-1]
    assert (found.status, found.what) == (WARNING, "the GPUs are not used")
    assert pip_install_command("cu112") in found.cure
    assert finding_statuses(check_gpus.check_driver(fake_driver(T4), "mxnet-cu112")) == [OK]


def test_a_driver_without_gpus():
    assert only_finding(check_gpus.check_driver(fake_driver(), "mxnet-cu112")).what == "no GPU"


# --- compute capabilities


def test_gpus_without_code_are_named_one_by_one():
    found = check_gpus.check_capabilities(fake_driver(T4, K80, H100, H100), "mxnet-cu112")
    assert finding_statuses(found) == [FAULT, OK, FAULT]
    assert found[0].what == "Tesla K80 (GPU 1) needs sm_37"
    assert "sm_37 is older than these" in found[0].cause
    assert found[2].what == f"{H100[0]} (GPU 2), {H100[0]} (GPU 3) needs sm_90"
    assert ("mxnet-cu112 1.9.1 has no code for it: its machine code is for sm_50, sm_60, sm_70, sm_80, sm_86") in found[
        2
    ].cause
    assert "newer" in found[2].cause
    # the CPU build does not use it
    assert finding_statuses(check_gpus.check_capabilities(fake_driver(H100), "mxnet")) == [WARNING]


def test_a_gpu_without_code_that_cuda_does_not_show_is_no_fault():
    """CUDA counts the fastest first: of these two, the H100, unless it is told otherwise."""
    shown = {"CUDA_VISIBLE_DEVICES": "0"}
    assert finding_statuses(check_gpus.check_capabilities(fake_driver(T4, H100), "mxnet-cu112", shown)) == [OK, FAULT]
    along_the_bus = {**shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert finding_statuses(check_gpus.check_capabilities(fake_driver(T4, H100), "mxnet-cu112", along_the_bus)) == [
        OK,
        WARNING,
    ]
    assert finding_statuses(check_gpus.check_capabilities(fake_driver(K80, T4), "mxnet-cu112", shown)) == [WARNING, OK]


# --- TF32

A10G = ("NVIDIA A10G", (8, 6))


def test_gpus_that_could_round_to_tf32_are_told_what_they_do():
    assert check_gpus.check_tf32(fake_driver(V100, T4, H100), {}) == []  # MXNet has no code for the last
    for environ in ({}, {"NVIDIA_TF32_OVERRIDE": "0"}):
        finding = only_finding(check_gpus.check_tf32(fake_driver(V100, A100, A10G), environ))
        assert finding.status == OK
        assert finding.what.startswith(
            f"{A100[0]} (GPU 1), {A10G[0]} (GPU 2): float32 is multiplied exactly, unless --tf32"
        )
    finding = only_finding(check_gpus.check_tf32(fake_driver(A100), {"NVIDIA_TF32_OVERRIDE": "1"}))
    assert (finding.status, finding.cure) == (WARNING, "unset NVIDIA_TF32_OVERRIDE")
    assert "k GPUs equal one to TF32's precision only" in finding.cause


# --- memory


def test_memory_in_use_names_the_processes_and_the_other_gpus():
    held = {1: [(4242, "/opt/bin/python", 12 * GIB), (7, "", None)]}
    free, busy, also_free = check_gpus.check_gpu_memory(
        fake_driver(V100, V100, V100, used={1: 12 * GIB}, processes=held)
    )
    assert (free.status, busy.status, also_free.status) == (OK, WARNING, OK)
    assert busy.what == "GPU 1: 12.0 of 16.0 GiB in use by python (4242, 12.0 GiB), ? (7)"
    assert "CUDA_VISIBLE_DEVICES=0,2" in busy.cure


def test_memory_in_use_by_nobody_that_is_seen():
    assert "containers" in only_finding(check_gpus.check_gpu_memory(fake_driver(T4, used={0: 15 * GIB}))).cause


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
    found = visible_gpus(fake_driver(T4, T4, T4).gpus, visible)
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
    found = visible_gpus(fake_driver(A100, A100, parts={1: PARTS}).gpus, visible)
    assert [gpu.index for gpu in found.gpus] == shown
    assert bool(found.problem) == (not shown)


def test_gpus_with_parts():
    divided = fake_driver(A100, parts={0: PARTS})
    found = only_finding(check_gpu_order(divided, {}))
    assert (found.status, found.what) == (WARNING, "one part of GPU 0 is shown, as gpu:0")
    assert "it has 2 parts" in found.cause
    assert "CUDA_VISIBLE_DEVICES=MIG-5c3a-1; nvidia-smi -i 0 -mig 0" in found.cure
    found = only_finding(check_gpu_order(divided, {"CUDA_VISIBLE_DEVICES": PARTS[1]}))
    assert (found.status, found.what.partition(";")[0]) == (OK, "gpu:0 is a part (MIG) of GPU 0 of nvidia-smi")
    without = only_finding(check_gpu_order(fake_driver(A100, parts={0: []}), {}))
    assert (without.status, without.what) == (WARNING, "CUDA does not show GPU 0")
    assert only_finding(check_gpu_order(fake_driver(A100), {})).status == OK


def test_numbering_says_which_is_which():
    assert only_finding(check_gpu_order(fake_driver(T4, T4), {"CUDA_VISIBLE_DEVICES": "1"})).what.startswith(
        "gpu:0 is GPU 1 of nvidia-smi"
    )
    wrong = only_finding(check_gpu_order(fake_driver(T4, T4), {"CUDA_VISIBLE_DEVICES": "1,5"}))
    assert (wrong.status, wrong.what) == (WARNING, "CUDA_VISIBLE_DEVICES=1,5: 1 GPU left")
    assert "CUDA stops at '5', which names none of the 2 GPUs here, and ignores what follows" in wrong.cause
    assert wrong.cure == "give numbers from 0 to 1, or UUIDs as nvidia-smi -L shows them, each once"
    twice = only_finding(check_gpu_order(fake_driver(T4, T4), {"CUDA_VISIBLE_DEVICES": "1,1"}))
    assert (twice.status, twice.what) == (FAULT, "CUDA_VISIBLE_DEVICES=1,1: no GPUs left")
    assert only_finding(check_gpu_order(fake_driver(T4), {"CUDA_VISIBLE_DEVICES": "9"})).status == FAULT
    hidden = only_finding(check_gpu_order(fake_driver(T4), {"CUDA_VISIBLE_DEVICES": ""}))
    assert (hidden.status, hidden.cure) == (WARNING, "unset CUDA_VISIBLE_DEVICES")
    assert check_gpu_order(fake_driver(), {}) == []


def test_unlike_gpus_may_be_numbered_otherwise():
    found = only_finding(check_gpu_order(fake_driver(T4, RTX), {}))
    assert (found.status, found.cure) == (WARNING, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    assert only_finding(check_gpu_order(fake_driver(T4, RTX), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})).status == OK


AMAZON = ""  # one of theirs, of an unknown type


@pytest.mark.parametrize(
    ("told", "files", "instance"),
    [
        ("ml.p3.16xlarge", {}, "p3.16xlarge"),
        ("", {"product_name": b"p3dn.24xlarge\n", "sys_vendor": b"Amazon EC2\n"}, "p3dn.24xlarge"),
        ("", {"product_name": b"HVM domU\n", "sys_vendor": b"Xen\n", "bios_version": b"4.11.amazon\n"}, AMAZON),
        ("", {"product_name": b"HVM domU\n", "sys_vendor": b"Xen\n", "bios_version": b"4.11\n"}, None),
        ("", {}, None),
        ("local_gpu", {"product_name": b"g5.12xlarge"}, "g5.12xlarge"),
        ("", {"product_name": b"g4dn.metal"}, "g4dn.metal"),
        ("", {"product_name": b"\xff\xfe"}, None),
    ],
)
def test_the_instance_is_what_sagemaker_or_the_machine_says(tmp_path, told, files, instance):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert check_gpus.instance_type({"SM_CURRENT_INSTANCE_TYPE": told}, tmp_path) == instance


def test_the_expected_links_are_those_of_the_topology():
    assert check_gpus.topology_nvlinks(make_topology("p3.16xlarge")) == CUBE
    assert check_gpus.topology_nvlinks(make_topology("g4dn.12xlarge")) == {}


@pytest.mark.parametrize("instance", ["p3.16xlarge", AMAZON])
def test_a_whole_cube_mesh_is_as_it_should_be(instance):
    nvlink, peers = check_gpus.check_links(fake_driver(*[V100] * 8, nvlinks=CUBE), instance)
    assert (nvlink.status, peers.status) == (OK, OK)
    assert nvlink.what.endswith("as p3.16xlarge has")
    assert "0-3: 2" in nvlink.what


def test_a_link_that_is_down_is_named():
    nvlink = check_gpus.check_links(fake_driver(*[V100] * 8, nvlinks={**CUBE, (0, 3): 1, (5, 6): 0}), "p3.16xlarge")[0]
    assert nvlink.status == WARNING
    assert nvlink.what == ("NVLinks differ from those of p3.16xlarge: 0-3 has 1 instead of 2, 5-6 has 0 instead of 2")
    assert nvlink.cause == "links are down"
    assert "stop and start the instance" in nvlink.cure


@given(st.permutations(range(8)))
def test_a_whole_cube_mesh_is_one_however_its_gpus_are_counted(order):
    """NVML counts along the PCI bus, and the table was made on another machine."""
    here = {tuple(sorted((order[a], order[b]))): count for (a, b), count in CUBE.items()}
    nvlink = check_gpus.check_links(fake_driver(*[V100] * 8, nvlinks=here), "p3.16xlarge")[0]
    assert nvlink.status == OK
    found = check_gpus.find_renumbering(here, CUBE, 8)
    assert {tuple(sorted((found[a], found[b]))): count for (a, b), count in CUBE.items()} == here
    assert ("whose GPUs" in nvlink.what) == (here != CUBE)


@given(st.permutations(range(8)), st.sampled_from(sorted(CUBE)))
def test_a_cube_mesh_with_a_link_less_is_none_however_its_gpus_are_counted(order, weak):
    here = {tuple(sorted((order[a], order[b]))): count - ((a, b) == weak) for (a, b), count in CUBE.items()}
    assert check_gpus.find_renumbering(here, CUBE, 8) is None


def test_eight_v100s_elsewhere_are_not_taken_for_an_instance():
    """On PCIe cards, or linked in another way, they lack nothing."""
    for there in ({}, {(0, 1): 6}):
        assert finding_statuses(check_gpus.check_links(fake_driver(*[V100] * 8, nvlinks=there), None)) == [OK, OK]


def test_gpus_without_nvlinks_that_should_have_none():
    nvlink, _ = check_gpus.check_links(fake_driver(*[T4] * 4), "g4dn.12xlarge")
    assert (nvlink.status, nvlink.what) == (
        OK,
        "no NVLinks between the GPUs, all traffic goes over PCIe, as g4dn.12xlarge has",
    )


def test_machines_that_nobody_knows_are_told_as_they_are():
    for instance in (AMAZON, None):
        assert check_gpus.check_links(fake_driver(RTX, RTX, nvlinks={(0, 1): 4}), instance)[0].what == "NVLinks 0-1: 4"
        assert (
            check_gpus.check_links(fake_driver(*[H100] * 4, switched=True), instance)[0].what
            == "NVLinks to switches on GPUs 0, 1, 2, 3"
        )
        assert check_gpus.check_links(fake_driver(T4), instance) == []


def test_a_machine_whose_nvlinks_go_to_switches_must_have_them():
    (whole, _), (bare, _) = (
        check_gpus.check_links(fake_driver(*[A100] * 8, switched=switched), "p4d.24xlarge")
        for switched in (True, False)
    )
    assert (whole.status, whole.what) == (OK, "NVLinks to switches on GPUs 0, 1, 2, 3, 4, 5, 6, 7")
    assert (bare.status, bare.what) == (WARNING, "NVLinks to switches on no GPU, and p4d.24xlarge has them on all 8")


def test_missing_peer_access_is_a_warning_where_there_are_nvlinks():
    far = check_gpus.check_links(fake_driver(*[V100] * 8, nvlinks=CUBE, no_peers=[(0, 7)]), AMAZON)[1]
    assert (far.status, far.what) == (OK, "no peer-to-peer access between 0-7: their copies go through the host")
    near = check_gpus.check_links(fake_driver(*[V100] * 8, nvlinks=CUBE, no_peers=[(0, 3)]), AMAZON)[1]
    assert near.status == WARNING
    assert "0-3" in near.what


@pytest.mark.parametrize(("count", "pairs"), [(2, 1), (4, 6), (8, 28)])
def test_pairs_with_peer_access_are_counted(count, pairs):
    found = check_gpus.check_links(fake_driver(*[T4] * count), None)[-1]
    assert (found.status, found.what) == (OK, f"peer-to-peer access between all {pairs} pairs")
