"""The doctor's other checks: packages, libraries, data, SageMaker, training."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.devices import contexts, devices
from support.elf_files import code_that_returns, write_library
from support.fake_nvml import only_finding
from support.file_server import hang_response, respond_with_status

from gluonlab.doctor import check_host, check_mxnet, check_software, check_training, findings
from gluonlab.doctor.findings import FAULT, OK, WARNING
from gluonlab.gpu.isolated_process import ProcessOutcome

# --- findings


def test_the_worst_finding_counts():
    results = [findings.ok("a", "x"), findings.fault("b", "x", "y", "z"), findings.warning("c", "x")]
    assert [findings.worst_status(some) for some in (results, results[::2], [])] == [FAULT, WARNING, OK]


def test_lines_have_cause_and_cure_below_them():
    results = [findings.ok("a", "fine"), findings.fault("longer", "bad", "why", "how")]
    assert findings.format_findings(results, 1.25).split("\n") == [
        "ok       a       fine",
        "fault    longer  bad",
        "                 cause: why",
        "                 cure:  how",
        "",
        "1 fault, no warnings, 1.2 s",
    ]


# --- Python, numpy, MXNet


@pytest.mark.parametrize(
    ("version", "machine", "status"),
    [
        ((3, 8, 0), "x86_64", OK), ((3, 14, 1), "x86_64", OK), ((3, 7, 16), "x86_64", FAULT),
        ((3, 15, 0), "x86_64", WARNING), ((3, 11, 0), "aarch64", OK), ((3, 11, 0), "riscv64", FAULT),
    ],
)  # fmt: skip
def test_pythons_that_have_an_mxnet(version, machine, status):
    assert check_software.check_python(version, machine, "linux", "glibc").status == status
    on_mac = status if machine == "x86_64" else FAULT
    assert check_software.check_python(version, machine, "darwin", "").status == on_mac
    musl = check_software.check_python(version, machine, "linux", "")
    assert musl.status == FAULT and "another C library than glibc" in musl.cause


@pytest.mark.parametrize(
    ("numpy", "python", "status"),
    [
        ("1.23.5", (3, 11), OK), ("1.24.0", (3, 11), WARNING), ("1.26.4", (3, 11), WARNING),
        ("2.2.0rc1", (3, 10), WARNING), ("1.26.4", (3, 12), OK), ("2.5.1", (3, 13), OK), ("2.6.0", (3, 13), WARNING),
        (None, (3, 11), FAULT),
    ],
)  # fmt: skip
def test_numpys_that_mxnet_runs_with(numpy, python, status):
    assert check_software.check_numpy(numpy, python).status == status


@pytest.mark.parametrize(
    ("installed", "there", "status"),
    [
        ({"mxnet": "1.9.1"}, True, OK), ({"mxnet-cu112": "1.9.1"}, True, OK),
        ({"mxnet-cu102": "1.9.1"}, True, WARNING), ({"mxnet": "1.8.0"}, True, WARNING), ({}, True, WARNING),
        ({}, False, FAULT), ({"mxnet": "1.9.1"}, False, FAULT),
        ({"mxnet": "1.9.1", "mxnet-cu112": "1.9.1"}, True, FAULT),
    ],
)  # fmt: skip
def test_mxnets_that_are_installed(installed, there, status):
    assert check_software.check_installed_mxnet(installed, Path("/site/mxnet") if there else None).status == status


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["mxnet_cu112-1.0", "MXNet-1.0", "mxnet_mkl-1.0", "mxnet_model_server-1.0", "gluoncv-1.0"],
         dict.fromkeys(["mxnet", "mxnet-cu112", "mxnet-mkl"], "1.0")),
        (["mxnet-1.9.1", "system/mxnet-1.8.0"], {"mxnet": "1.9.1"}),  # the first in the path
        (["mxnet-", "~xnet-"], {"mxnet": "without a version"}),  # left by an interrupted pip
    ],
)  # fmt: skip
def test_distributions_that_bring_mxnet_are_found(folders, expected, tmp_path, monkeypatch):
    for folder in folders:
        info = tmp_path / f"{folder}.dist-info"
        info.mkdir(parents=True)
        name, _, version = info.name[: -len(".dist-info")].partition("-")
        if version:
            (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "system")])
    assert check_software.installed_mxnets() == expected


def test_a_module_is_found_where_python_would(tmp_path):
    (tmp_path / "b" / "mxnet").mkdir(parents=True)
    (tmp_path / "b" / "mxnet" / "__init__.py").touch()
    assert check_software.module_folder("mxnet", [str(tmp_path / "a"), str(tmp_path / "b")]) == tmp_path / "b" / "mxnet"
    assert check_software.module_folder("mxnet", [str(tmp_path)]) is None


def test_what_can_be_installed_again_needs_no_gluonlab_from_elsewhere():
    cure = check_software.check_installed_mxnet({"mxnet-cu112": "1.9.1"}, None).cure
    assert cure == "pip install --force-reinstall --no-deps mxnet-cu112==1.9.1"


def test_a_file_of_that_name_is_no_mxnet(tmp_path):
    """A user's first script."""
    (tmp_path / "mxnet.py").touch()
    fault = check_software.check_installed_mxnet(
        {"mxnet": "1.9.1"}, check_software.module_folder("mxnet", [str(tmp_path)])
    )
    assert (fault.status, fault.what, fault.cure) == (FAULT, f"{tmp_path}/mxnet.py is imported as mxnet", "rename it")


# --- libraries


@pytest.fixture
def mxnet_folder(tmp_path):
    """A libmxnet.so that needs liba, which needs libb, which is in another place."""
    write_library(tmp_path / "mxnet" / "libmxnet.so", needed=["liba.so.1", "libc.so.6"])
    write_library(tmp_path / "one" / "liba.so.1", needed=["libb.so.2"])
    write_library(tmp_path / "two" / "libb.so.2")
    return tmp_path / "mxnet"


def trace_libraries(mxnet_folder, path, wheels=()):
    return check_software.trace_libraries(mxnet_folder / "libmxnet.so", {"LD_LIBRARY_PATH": path}, wheels)


def test_libraries_are_followed_from_each_to_the_next(mxnet_folder, tmp_path):
    traced = trace_libraries(mxnet_folder, f"{tmp_path}/one:{tmp_path}/two")
    assert traced.paths["liba.so.1"] == tmp_path / "one" / "liba.so.1"
    assert traced.paths["libb.so.2"] == tmp_path / "two" / "libb.so.2"
    assert traced.paths["libc.so.6"].is_file() and traced.complaints == []


def test_wheels_come_after_ld_library_path(mxnet_folder, tmp_path):
    first = write_library(tmp_path / "users" / "libb.so.2")
    wheels = [tmp_path / "one", tmp_path / "two"]
    assert trace_libraries(mxnet_folder, "", wheels).paths["libb.so.2"] == tmp_path / "two" / "libb.so.2"
    assert trace_libraries(mxnet_folder, str(first.parent), wheels).paths["libb.so.2"] == first


def test_a_library_of_a_library_that_is_missing_is_named(mxnet_folder, tmp_path):
    results = check_software.check_libraries(mxnet_folder, {"LD_LIBRARY_PATH": f"{tmp_path}/one"})
    assert [finding.what for finding in results if finding.status == FAULT] == ["libb.so.2 is missing"]


def test_a_symbol_that_nobody_has_is_one_fault_for_each_library(mxnet_folder, tmp_path):
    write_library(tmp_path / "one" / "liba.so.1", undefined=["first", "second"])
    results = check_software.check_libraries(mxnet_folder, {"LD_LIBRARY_PATH": f"{tmp_path}/one"})
    [fault] = [finding for finding in results if finding.status == FAULT]
    assert fault.what == "liba.so.1 does not fit"
    assert "none of them contains first" in fault.cause
    assert f"remove {tmp_path}/one from LD_LIBRARY_PATH" in fault.cure


def test_cublas_from_two_places_is_a_warning(tmp_path):
    write_library(tmp_path / "mxnet" / "libmxnet.so", needed=["libcublas.so.11", "libcublasLt.so.11"])
    for folder in ("a", "b"):
        write_library(tmp_path / folder / f"libcublas{'Lt' * (folder == 'b')}.so.11")
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/a:{tmp_path}/b"}
    assert "come from different places" in check_software.check_libraries(tmp_path / "mxnet", environ)[0].what
    write_library(tmp_path / "a" / "libcublasLt.so.11")
    assert {finding.status for finding in check_software.check_libraries(tmp_path / "mxnet", environ)} == {OK}


def test_a_relative_folder_in_ld_library_path_counts(mxnet_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    traced = trace_libraries(mxnet_folder, "one:./two")
    assert (traced.paths["liba.so.1"], traced.paths["libb.so.2"]) == (Path("one/liba.so.1"), Path("two/libb.so.2"))


def test_stand_in_libraries_are_no_fault_on_arm(tmp_path, monkeypatch):
    monkeypatch.setattr(check_software, "needs_arm_libraries", lambda: True)
    arm, functions = check_software.arm_libraries.ARM_LIBRARIES, check_software.arm_libraries.FUNCTIONS
    write_library(tmp_path / "mxnet" / "libmxnet.so", needed=[*arm, "libc.so.6"], undefined=functions)
    results = check_software.check_libraries(tmp_path / "mxnet", {})
    assert {finding.status for finding in results} == {OK}
    assert results[-1].what == "replaced by OpenBLAS: libarmpl_lp64_mp.so, libamath.so, libastring.so"
    for name in arm:  # installed
        write_library(tmp_path / "arm" / name, functions=dict.fromkeys(functions, code_that_returns(0)))
    [system, users] = check_software.check_libraries(tmp_path / "mxnet", {"LD_LIBRARY_PATH": f"{tmp_path}/arm"})
    listing = {system.what, users.what}
    assert {finding.status for finding in (system, users)} == {OK}
    assert f"from LD_LIBRARY_PATH: {tmp_path}/arm: {', '.join(arm)}" in listing


def test_a_system_without_glibcs_linker_is_not_asked(mxnet_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(check_software, "LINKER", str(tmp_path / "none"))
    assert only_finding(check_software.check_libraries(mxnet_folder)).what == "not examined"


def test_without_a_libmxnet_there_is_one_fault(tmp_path):
    assert only_finding(check_software.check_libraries(tmp_path)).status == FAULT
    assert check_software.check_libraries(None) == []


# --- MXNet, kvstores, Horovod

LOADED = {"version": "1.9.1", "built_with": ["OPENMP"], "gpus": 0}


def mxnet_findings(*answers, failure="", horovod=None):
    return check_mxnet.mxnet_findings(ProcessOutcome(list(answers), failure, ""), True, horovod)


def find_all(results, check):
    return [(finding.status, finding.what) for finding in results if finding.check == check]


def test_copies_between_gpus_have_a_line_if_there_are_several():
    message = "copies between GPUs are direct, 1 of 1 pairs"
    assert find_all(mxnet_findings({**LOADED, "gpus": 2}, {"copies": message}), "copies") == [(OK, message)]
    assert find_all(mxnet_findings(LOADED), "copies") == []


def test_a_kvstore_that_sums_wrongly_is_found(monkeypatch):
    """Like a store that gives every device its own gradient back, as kvstore=None does."""
    assert (
        check_mxnet.check_kvstore_sum("ring", devices(3)) == check_mxnet.check_kvstore_sum("local", contexts(2)) == ""
    )
    monkeypatch.setattr("gluonlab.kvstores.make_kvstore", lambda name, ctxs: None)
    assert check_mxnet.check_kvstore_sum("device", contexts(2)) == "the sum is 1 instead of 3"


LOCAL_WORKS = {"kvstore": "local", "works": True, "problem": ""}


def test_a_kvstore_that_hangs_or_fails_is_named():
    star_fails = {"kvstore": "star", "works": False, "problem": "bad"}
    answers = [LOADED, LOCAL_WORKS, star_fails, {"trying": "kvstore ring"}]
    results = mxnet_findings(*answers, failure="was still running after 60 s")
    stores = [(OK, "local work"), (FAULT, "star fails"), (FAULT, "kvstore ring fails")]
    assert find_all(results, "kvstores") == stores
    assert any("still running after 60 s" in finding.cause for finding in results)


def test_a_process_that_crashes_while_it_exits_has_tried_everything():
    results = mxnet_findings(LOADED, {"trying": "kvstore local"}, LOCAL_WORKS, failure="crashed (SIGSEGV)")
    assert {finding.status for finding in results} == {OK}


@pytest.mark.parametrize(
    ("answer", "installed", "status", "words"),
    [
        (None, None, OK, "not installed"),
        ({"horovod": "0.28.1", "built_with": ["gloo"]}, "0.28.1", OK, "built with gloo"),
        ({"horovod": None, "problem": "ImportError: no mxnet"}, "0.28.1", FAULT, "does not load"),
        (None, "0.28.1", WARNING, "was not tested"),
    ],
)
def test_horovod(answer, installed, status, words):
    finding = mxnet_findings(LOADED, *([answer] if answer else []), horovod=installed)[-1]
    assert (finding.check, finding.status) == ("horovod", status) and words in finding.what


def test_an_import_that_fails_without_a_known_reason_keeps_its_words():
    finding = mxnet_findings({"error": "mxnet cannot be imported: something"})[0]
    assert (finding.status, finding.cause) == (FAULT, "mxnet cannot be imported: something")
    assert "tools/make_venv.py" in finding.cure


# --- data sets


def test_data_sets_that_are_there_are_named(tmp_path, monkeypatch):
    from gluonlab.data.fetching.download_sources import SOURCES

    monkeypatch.setenv("GLUONLAB_DATA", str(tmp_path))
    assert "only the built-in data set digits" in only_finding(check_host.check_data_folder()).what
    (tmp_path / "mnist").mkdir()
    for file in SOURCES["mnist"].files:
        (tmp_path / "mnist" / file.name).touch()
    assert "available: mnist, and digits" in only_finding(check_host.check_data_folder()).what


def test_mirrors_are_asked_for_headers_alone(serve):
    server = serve({"a.gz": b"x" * 100})
    good, gone, closed = f"{server.url}a.gz", f"{server.url}b.gz", "http://127.0.0.1:9/a.gz"
    results = check_host.check_mirrors({"good": (good,), "half": (closed, good), "bad": (gone, closed)}, 20)
    assert [finding.status for finding in results] == [OK, WARNING, FAULT]
    _, half, bad = results
    assert "1 of 2 mirrors fail" in half.what and f"{closed}: Connection refused" in half.cause
    assert f"{gone}: status 404" in bad.cause and "--mirror URL" in bad.cure


def test_a_mirror_that_is_silent_is_given_up(serve):
    server = serve({"a.gz": b"x"})
    url = f"{server.url}a.gz"
    server.add_faults("a.gz", hang_response())
    assert check_host.check_url(url, timeout_s=0.5) == "no answer within 0.5 s"
    for statuses, message in (([503], "status 503"), ([405], ""), ([405, 404], "status 404")):  # to HEAD, then to GET
        server.add_faults("a.gz", *map(respond_with_status, statuses))
        assert check_host.check_url(url) == message


# --- SageMaker


def test_a_notebook_and_what_it_does_not_keep(tmp_path):
    path, kept = tmp_path / "metadata.json", tmp_path / "SageMaker"
    assert only_finding(check_host.check_sagemaker({}, path)).what == "not on SageMaker"
    arn = "arn:aws:sagemaker:eu-west-1:1:notebook-instance/lab"
    kept.mkdir()
    path.write_text(json.dumps({"ResourceArn": arn, "ResourceName": "lab"}))
    notebook, lost = check_host.check_sagemaker({}, path, kept)
    assert notebook.what == f"notebook lab, {arn}"
    assert lost.status == WARNING and str(kept) in lost.cure
    assert len(check_host.check_sagemaker({}, path, Path(check_host.__file__).parent.parent)) == 1


@pytest.mark.parametrize("content", ["", "[]", "{}", "{"])
def test_metadata_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "metadata.json"
    path.write_text(content)
    assert only_finding(check_host.check_sagemaker({}, path)).status == WARNING


def test_a_training_job():
    environ = {
        "TRAINING_JOB_NAME": "job-1", "SM_HOSTS": '["algo-1", "algo-2"]',
        "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "8", "SM_CURRENT_INSTANCE_TYPE": "ml.p3.16xlarge",
    }  # fmt: skip
    expected = "training job job-1, ml.p3.16xlarge, 8 GPUs, host algo-2, one of 2"
    assert only_finding(check_host.check_sagemaker(environ)).what == expected
    assert only_finding(check_host.check_sagemaker({**environ, "SM_HOSTS": "algo-1"})).status == WARNING


# --- training


@pytest.mark.parametrize(
    ("answers", "ended", "status", "words"),
    [
        ([{"devices": "gpu(0)"}, {"difference": 3e-7, "images": 8}], "", OK, "gpu(0)"),
        ([{"devices": "gpu(0)"}, {"difference": 0.5, "images": 8}], "", FAULT, "5.0e-01"),
        ([{"devices": "gpu(0)"}, {"difference": float("nan"), "images": 8}], "", FAULT, "nan"),
        ([{"devices": "gpu(0)"}, {"error": "no kernel image is available"}], "", FAULT, "gpu(0)"),
        ([{"error": "CUDA: out of memory"}], "", FAULT, "fails"),
        ([{"devices": "cpu(0)"}], "crashed (SIGSEGV)", FAULT, "cpu(0)"),
    ],
)
def test_the_result_of_a_training_step_is_judged(answers, ended, status, words):
    finding = only_finding(check_training.training_findings(ProcessOutcome(answers, ended, "")))
    assert finding.status == status and words in finding.what
    assert status == OK or (finding.cause and finding.cure)


def test_a_step_on_all_devices_equals_one_on_a_single_device():
    finding = only_finding(check_training.probe_training())
    assert finding.status == OK and ("cpu(0) cpu(1)" in finding.what or "gpu" in finding.what)


def test_training_that_differs_is_reported_with_the_difference(monkeypatch):
    """The replicas of a store that sums nothing drift apart."""
    ctxs, real = devices(2), check_training.parameters_after_step
    assert check_training.max_parameter_difference(ctxs) <= check_training.TOLERANCE

    def scale(ctxs, *rest):
        return [[np.array(array) * len(ctxs) for array in arrays] for arrays in real(ctxs, *rest)]

    monkeypatch.setattr(check_training, "parameters_after_step", scale)
    assert check_training.max_parameter_difference(ctxs) > 0.5
    good, bad = np.ones(3), np.array([1, np.nan, 1])
    monkeypatch.setattr(check_training, "parameters_after_step", lambda ctxs, *rest: [[good, bad, good]] * len(ctxs))
    assert np.isnan(check_training.max_parameter_difference([None, None]))


def test_training_is_compared_without_the_rounding_of_tensor_cores(monkeypatch):
    environ = {}

    def run_isolated(module, **options):
        environ.update(options["environ"])
        return ProcessOutcome([], "", "")

    monkeypatch.setattr(check_training, "run_isolated", run_isolated)
    check_training.probe_training()
    assert environ["NVIDIA_TF32_OVERRIDE"] == "0" and environ["PATH"]
