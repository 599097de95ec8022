"""The doctor on machines with GPUs that are not here: NVML's answers, and what follows from them."""

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
from gluonlab.engine.mxnet_and_cuda_libraries import pip_install_command
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
    processes = {2: [(77, "/usr/bin/python3 -m x", GIB)]}
    driver = fake_driver(*[V100] * 8, nvlinks=CUBE, as_bytes=True, used={2: 3 * GIB}, processes=processes)
    assert (driver.version, driver.nvlinks) == ("535.183.01", CUBE)
    assert driver.pairs_without_access == driver.nvswitch_gpus == ()
    assert [(gpu.name, gpu.capability) for gpu in driver.gpus] == [V100] * 8
    assert driver.gpus[2].used_bytes == 3 * GIB
    assert driver.gpus[2].processes == (nvml.GpuProcess(77, "python3", GIB),)


@pytest.mark.parametrize("versions", [(2,), (3,), ()])
def test_processes_are_listed_as_far_as_the_driver_can(versions):
    driver = fake_driver(T4, processes={0: [(1, "a", None)]}, process_list_versions=versions)
    assert len(driver.gpus[0].processes) == bool(versions)


@pytest.mark.parametrize(
    ("command", "name"),
    [("/usr/bin/python3 train.py --out runs/x", "python3"), ("python", "python"), ("/opt/a/b", "b"), ("", "?")],
)
def test_a_process_has_the_name_of_its_program(command, name):
    assert fake_driver(T4, processes={0: [(5, command, 7)]}).gpus[0].processes == (nvml.GpuProcess(5, name, 7),)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (ProcessOutcome([{"error": "Driver Not Loaded"}], "", ""), "Driver Not Loaded"),
        (ProcessOutcome([], "was still running after 30 s", ""), "NVML was still running after 30 s"),
        (ProcessOutcome([], "", ""), "NVML gave no answer"),
    ],
)
def test_a_driver_that_does_not_answer(outcome, error):
    assert nvml.parse_outcome(outcome) == Driver(error=error)


def test_a_gpu_that_does_not_answer_leaves_the_others():
    """It fell off the bus; or, on a machine of a batch system, another job has it."""
    driver = fake_driver(T4, V100, V100, silent={1: "GPU is lost"}, nvlinks={(0, 2): 2})
    assert ([gpu.index for gpu in driver.gpus], driver.nvlinks) == ([0, 2], {(0, 2): 2})
    first, lost = check_gpus.check_driver(driver, "mxnet-cu112")
    assert first.what == "driver 535.183.01, 1 x Tesla T4, 1 x Tesla V100-SXM2-16GB"
    assert (lost.status, lost.what, lost.cause) == (FAULT, "GPU 1 does not answer", "GPU is lost")
    assert "restart the machine" in lost.cure
    assert check_gpus.check_links(driver, None)[0].what == "NVLinks 0-2: 2"
    others = check_gpus.check_driver(fake_driver(T4, T4, silent={1: "Insufficient Permissions"}), "mxnet-cu112")
    assert finding_statuses(others) == [OK, OK]
    for flavor, status in (("mxnet", WARNING), ("mxnet-cu112", FAULT)):
        only_lost = fake_driver(T4, silent={0: "GPU is lost"})
        assert finding_statuses(check_gpus.check_driver(only_lost, flavor)) == [status]


def test_a_gpu_that_hides_its_memory_is_there():
    """Of a GPU with parts (MIG) only an administrator may know it."""
    driver = fake_driver(T4, T4, untold=[1])
    assert [gpu.used_bytes for gpu in driver.gpus] == [GIB // 2, None]
    assert check_gpus.check_gpu_memory(driver)[1].what == "GPU 1: the driver does not report the memory in use"


def test_links_to_gpus_that_a_container_has_not_go_to_no_switch():
    driver = fake_driver(*[V100] * 4, nvlinks={(0, 1): 2, (0, 2): 1, (1, 3): 1}, hidden=[2, 3])
    assert (len(driver.gpus), driver.nvlinks, driver.nvswitch_gpus) == (2, {(0, 1): 2}, ())


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
    driver = nvml.read_driver()
    start = "" if "Syntax" in words else f"nvidia-ml-py is needed, but {tmp_path}/pynvml.py fails with "
    assert driver.error.startswith(start) and words in driver.error
    finding = only_finding(check_gpus.check_driver(driver, "mxnet-cu112", ()))
    assert (finding.status, finding.cure) == (WARNING, "pip install --force-reinstall nvidia-ml-py==13.615.71")
    assert only_finding(check_gpus.check_driver(driver, "mxnet", ())).status == OK


def test_the_release_that_is_named_is_the_one_that_setup_installs(request):
    assert f'"{nvml.BINDINGS}=={check_gpus.BINDINGS_VERSION}"' in (request.config.rootpath / "setup.py").read_text()


# --- the driver


@pytest.mark.parametrize(
    ("version", "flavor", "statuses"),
    [
        *((version, "mxnet-cu112", [FAULT]) for version in ("450.80", "450.51.06", "440.33.01")),
        *((version, "mxnet-cu112", []) for version in ("450.80.02", "580.65")),
        ("440.33.01", "mxnet", [WARNING]),
    ],
)
def test_a_driver_is_new_enough_from_450_80_02_on(version, flavor, statuses):
    findings = check_gpus.check_driver(fake_driver(T4, driver=version), flavor)
    assert [finding.status for finding in findings if "too old" in finding.what] == statuses


@pytest.mark.parametrize(
    ("error", "flavor", "sign", "status", "words"),
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
def test_why_there_is_no_driver(tmp_path, error, flavor, sign, status, words):
    path = tmp_path / "nvidiactl"
    if sign:
        path.touch()
    finding = only_finding(check_gpus.check_driver(Driver(error=error), flavor, (path,)))
    assert finding.status == status and words in finding.what + finding.cure


@pytest.mark.parametrize(
    ("has_build", "cure"), [(True, pip_install_command("cu112")), (False, "train on CPU devices, or use x86-64")]
)
def test_gpus_of_a_driver_are_used_by_the_cuda_build_only(monkeypatch, has_build, cure):
    monkeypatch.setattr(check_gpus, "has_cuda_build", lambda: has_build)
    finding = check_gpus.check_driver(fake_driver(T4), "mxnet")[-1]
    assert (finding.status, finding.what) == (WARNING, "the GPUs are not used")
    assert cure in finding.cure
    assert finding_statuses(check_gpus.check_driver(fake_driver(T4), "mxnet-cu112")) == [OK]
    assert only_finding(check_gpus.check_driver(fake_driver(), "mxnet-cu112")).what == "no GPU"


# --- compute capabilities


def test_gpus_without_code_are_named_one_by_one():
    old, _, new = findings = check_gpus.check_capabilities(fake_driver(T4, K80, H100, H100), "mxnet-cu112")
    assert finding_statuses(findings) == [FAULT, OK, FAULT]
    assert old.what == "Tesla K80 (GPU 1) needs sm_37" and "sm_37 is older than these" in old.cause
    assert new.what == f"{H100[0]} (GPU 2), {H100[0]} (GPU 3) needs sm_90" and "newer" in new.cause
    cause = "mxnet-cu112 1.9.1 does not support it: its machine code is for sm_50, sm_60, sm_70, sm_80, sm_86"
    assert cause in new.cause
    # the CPU build does not use it
    assert finding_statuses(check_gpus.check_capabilities(fake_driver(H100), "mxnet")) == [WARNING]


@pytest.mark.parametrize(
    ("gpus", "order", "statuses"),
    [([T4, H100], {}, [OK, FAULT]), ([T4, H100], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [OK, WARNING]),
     ([K80, T4], {}, [WARNING, OK])],
)  # fmt: skip
def test_a_gpu_without_code_that_cuda_does_not_show_is_no_fault(gpus, order, statuses):
    """CUDA counts the fastest first: of T4 and H100, the H100, unless it is told otherwise."""
    environ = {"CUDA_VISIBLE_DEVICES": "0", **order}
    assert finding_statuses(check_gpus.check_capabilities(fake_driver(*gpus), "mxnet-cu112", environ)) == statuses


# --- TF32

A10G = ("NVIDIA A10G", (8, 6))


def test_gpus_that_could_round_to_tf32_are_told_what_they_do():
    assert check_gpus.check_tf32(fake_driver(V100, T4, H100), {}) == []  # MXNet has no code for the last
    for environ in ({}, {"NVIDIA_TF32_OVERRIDE": "0"}):
        finding = only_finding(check_gpus.check_tf32(fake_driver(V100, A100, A10G), environ))
        start = f"{A100[0]} (GPU 1), {A10G[0]} (GPU 2): float32 products are exact, unless --tf32"
        assert finding.status == OK and finding.what.startswith(start)
    finding = only_finding(check_gpus.check_tf32(fake_driver(A100), {"NVIDIA_TF32_OVERRIDE": "1"}))
    assert (finding.status, finding.cure) == (WARNING, "unset NVIDIA_TF32_OVERRIDE")
    assert "agree only to TF32's precision" in finding.cause


# --- memory


def test_memory_in_use_names_the_processes_and_the_other_gpus():
    processes = {1: [(4242, "/opt/bin/python", 12 * GIB), (7, "", None)]}
    findings = check_gpus.check_gpu_memory(fake_driver(V100, V100, V100, used={1: 12 * GIB}, processes=processes))
    assert finding_statuses(findings) == [OK, WARNING, OK]
    assert findings[1].what == "GPU 1: 12.0 of 16.0 GiB in use by python (4242, 12.0 GiB), ? (7)"
    assert "CUDA_VISIBLE_DEVICES=0,2" in findings[1].cure
    assert "containers" in only_finding(check_gpus.check_gpu_memory(fake_driver(T4, used={0: 15 * GIB}))).cause


PARTS = ["MIG-5c3a-1", "MIG-5c3a-2"]


@pytest.mark.parametrize(
    ("visible", "shown", "problem"),
    [
        (None, [0, 1, 2], ""),
        ("2,0", [2, 0], ""),
        *((nothing, [], "") for nothing in ("", " ", "-1")),
        ("1,-1,2", [1], ""),
        ("0,7,1", [0], "CUDA stops at '7'"),
        ("0,,1", [0], "CUDA stops at ''"),
        ("1,1", [], "GPU 1 is listed twice, so CUDA shows no GPU"),
        ("0,GPU-0", [], "GPU 0 is listed twice"),
        ("GPU-2fa5", [2], ""),
        ("GPU-2fa5,GPU-0", [2, 0], ""),
        # GPU- fits several; NVIDIA_VISIBLE_DEVICES knows all
        *((name, [], f"CUDA stops at '{name}'") for name in ("GPU-", "GPU-9", "first", "all")),
        (" 0 , 1 ", [0, 1], ""),
        ("1gpu,+2", [1, 2], ""),  # read as strtol does
    ],
)
def test_what_cuda_visible_devices_lets_through(visible, shown, problem):
    result = visible_gpus(fake_driver(T4, T4, T4).gpus, visible)
    assert [gpu.index for gpu in result.gpus] == shown
    assert bool(result.problem) == bool(problem) and problem in result.problem


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
    result = visible_gpus(fake_driver(A100, A100, parts={1: PARTS}).gpus, visible)
    assert ([gpu.index for gpu in result.gpus], bool(result.problem)) == (shown, not shown)


HERE = "CUDA_VISIBLE_DEVICES"
ORDERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("driver", "environ", "status", "what", "cause", "cure"),
    [
        (fake_driver(A100), {}, OK, "", "", ""),
        (fake_driver(A100, parts={0: PARTS}), {}, WARNING,
         "only one partition of GPU 0 is visible, as gpu:0", "it has 2 MIG partitions",
         "CUDA_VISIBLE_DEVICES=MIG-5c3a-1; nvidia-smi -i 0 -mig 0"),
        (fake_driver(A100, parts={0: PARTS}), {HERE: PARTS[1]}, OK, "gpu:0 is a MIG partition of nvidia-smi's GPU 0",
         "", ""),
        (fake_driver(A100, parts={0: []}), {}, WARNING, "CUDA does not show GPU 0", "", ""),
        (fake_driver(T4, T4), {HERE: "1"}, OK, "gpu:0 is GPU 1 of nvidia-smi", "", ""),
        (fake_driver(T4, T4), {HERE: "1,5"}, WARNING, "CUDA_VISIBLE_DEVICES=1,5: 1 GPU left",
         "CUDA stops at '5', which is not one of the 2 GPUs here, and ignores the rest",
         "use numbers from 0 to 1, or UUIDs from nvidia-smi -L, each only once"),
        (fake_driver(T4, T4), {HERE: "1,1"}, FAULT, "CUDA_VISIBLE_DEVICES=1,1: no GPUs left", "", ""),
        (fake_driver(T4), {HERE: "9"}, FAULT, "", "", ""),
        (fake_driver(T4), {HERE: ""}, WARNING, "", "", "unset CUDA_VISIBLE_DEVICES"),
        (fake_driver(T4, RTX), {}, WARNING, "", "", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (fake_driver(T4, RTX), ORDERED, OK, "", "", ""),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_and_parts_of_gpus_that_cuda_shows(driver, environ, status, what, cause, cure):
    finding = only_finding(check_gpu_order(driver, environ))
    assert finding.status == status and finding.what.startswith(what)
    assert cause in finding.cause and cure in finding.cure
    assert check_gpu_order(fake_driver(), environ) == []


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


def check_links(*gpus, instance=None, **description):
    """Return (status, what) of each finding about the links of a machine."""
    findings = check_gpus.check_links(fake_driver(*gpus, **description), instance)
    return [(finding.status, finding.what) for finding in findings]


@pytest.mark.parametrize("instance", ["p3.16xlarge", AMAZON])
def test_a_whole_cube_mesh_is_as_it_should_be(instance):
    (status, what), (peer_status, _) = check_links(*[V100] * 8, nvlinks=CUBE, instance=instance)
    assert (status, peer_status) == (OK, OK)
    assert what.endswith("as p3.16xlarge has") and "0-3: 2" in what


def test_a_link_that_is_down_is_named():
    nvlink = check_gpus.check_links(fake_driver(*[V100] * 8, nvlinks={**CUBE, (0, 3): 1, (5, 6): 0}), "p3.16xlarge")[0]
    assert (nvlink.status, nvlink.cause) == (WARNING, "links are down")
    assert nvlink.what == "NVLinks differ from p3.16xlarge: 0-3 has 1 instead of 2, 5-6 has 0 instead of 2"
    assert "stop and start the instance" in nvlink.cure


@given(st.permutations(range(8)))
def test_a_whole_cube_mesh_is_one_however_its_gpus_are_counted(order):
    """NVML counts along the PCI bus, and the table was made on another machine."""
    here = {tuple(sorted((order[a], order[b]))): count for (a, b), count in CUBE.items()}
    nvlink = check_gpus.check_links(fake_driver(*[V100] * 8, nvlinks=here), "p3.16xlarge")[0]
    assert nvlink.status == OK
    numbers = check_gpus.find_renumbering(here, CUBE, 8)
    assert {tuple(sorted((numbers[a], numbers[b]))): count for (a, b), count in CUBE.items()} == here
    assert ("whose GPUs" in nvlink.what) == (here != CUBE)


@given(st.permutations(range(8)), st.sampled_from(sorted(CUBE)))
def test_a_cube_mesh_with_a_link_less_is_none_however_its_gpus_are_counted(order, weak):
    here = {tuple(sorted((order[a], order[b]))): count - ((a, b) == weak) for (a, b), count in CUBE.items()}
    assert check_gpus.find_renumbering(here, CUBE, 8) is None


NO_LINKS = "no NVLinks between the GPUs, all traffic goes over PCIe"
TO_SWITCHES = "NVLinks to switches on GPUs "


@pytest.mark.parametrize(
    ("gpus", "description", "instance", "status", "what"),
    [
        # eight V100s on PCIe cards, or linked in another way, lack nothing
        ([V100] * 8, {}, None, OK, NO_LINKS),
        ([V100] * 8, {"nvlinks": {(0, 1): 6}}, None, OK, "NVLinks 0-1: 6"),
        ([T4] * 4, {}, "g4dn.12xlarge", OK, f"{NO_LINKS}, as g4dn.12xlarge has"),
        # machines that nobody knows
        ([RTX] * 2, {"nvlinks": {(0, 1): 4}}, AMAZON, OK, "NVLinks 0-1: 4"),
        ([RTX] * 2, {"nvlinks": {(0, 1): 4}}, None, OK, "NVLinks 0-1: 4"),
        ([H100] * 4, {"switched": True}, AMAZON, OK, f"{TO_SWITCHES}0, 1, 2, 3"),
        ([H100] * 4, {"switched": True}, None, OK, f"{TO_SWITCHES}0, 1, 2, 3"),
        # links that go to switches
        ([A100] * 8, {"switched": True}, "p4d.24xlarge", OK, f"{TO_SWITCHES}0, 1, 2, 3, 4, 5, 6, 7"),
        ([A100] * 8, {}, "p4d.24xlarge", WARNING,
         "NVLinks to switches on no GPU, but p4d.24xlarge has them on all 8"),
    ],
)  # fmt: skip
def test_nvlinks_are_compared_with_those_of_the_machine(gpus, description, instance, status, what):
    nvlink, peers = check_links(*gpus, instance=instance, **description)
    assert (nvlink, peers[0]) == ((status, what), OK)


def test_missing_peer_access_is_a_warning_where_there_are_nvlinks():
    far = check_links(*[V100] * 8, nvlinks=CUBE, no_peers=[(0, 7)], instance=AMAZON)[1]
    assert far == (OK, "no peer-to-peer access between 0-7: their copies go through the host")
    status, what = check_links(*[V100] * 8, nvlinks=CUBE, no_peers=[(0, 3)], instance=AMAZON)[1]
    assert status == WARNING and "0-3" in what


@pytest.mark.parametrize(("count", "pairs"), [(2, 1), (4, 6), (8, 28)])
def test_pairs_with_peer_access_are_counted(count, pairs):
    assert check_links(*[T4] * count)[-1] == (OK, f"peer-to-peer access between all {pairs} pairs")
    assert check_links(T4, instance=AMAZON) == check_links(T4) == []
