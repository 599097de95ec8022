"""The set-up before MXNet is imported, and the errors if MXNet cannot be imported."""

import json
import os
import re
import types
from contextlib import nullcontext

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.covering import pairwise
from support.elf_files import write_library
from support.environments import VirtualEnvironment
from support.processes import write_package

from gluonlab.engine import mxnet_and_cuda_libraries, mxnet_fixes, mxnet_import, mxnet_setup, openmp_settings
from gluonlab.engine.mxnet_and_cuda_libraries import CudaVersions, format_cuda_version, pip_install_command
from gluonlab.errors import EngineError, GluonlabWarning
from gluonlab.host import resources

REPORT = "import json, os, sys; print(json.dumps({'modules': sorted(sys.modules), 'environment': dict(os.environ)}))"


def write_distribution(folder, name):
    info = folder / f"{name.replace('-', '_')}-1.9.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.1\n")


def read_error(process):
    """Return what CATCH printed for a failed import of mxnet."""
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


CATCH = """
import json, gluonlab
from gluonlab.errors import EngineError, MissingMXNet
try:
    import mxnet
except Exception as error:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    cause = type(error.__cause__).__name__
    print(json.dumps({"kinds": kinds, "cause": cause, "message": str(error)}))
"""


@pytest.mark.parametrize("module", ["gluonlab.config", "gluonlab.run"])
def test_importing_gluonlab_imports_nothing_heavy(python, module):
    # --help and wrong options are answered without MXNet.
    modules = set(json.loads(python("-c", f"import gluonlab, {module}; {REPORT}").stdout)["modules"])
    assert {"gluonlab", "gluonlab.engine.mxnet_setup", module} <= modules
    heavy = {"mxnet", "numpy", "sklearn", "matplotlib", "tqdm", *(["click"] if module == "gluonlab.config" else [])}
    assert not heavy & modules


# --- numpy's names


def test_names_that_numpy_lacks_are_put_back():
    bare = types.ModuleType("numpy")  # without all of them
    for name in mxnet_fixes.RENAMED_FUNCTIONS.values():
        setattr(bare, name, getattr(numpy, name, name))
    mxnet_fixes.put_back_numpy_names(bare)
    infinite = (bare.Inf, bare.PINF, bare.infty, bare.Infinity, -bare.NINF)
    assert infinite == (float("inf"),) * 5
    assert (str(bare.PZERO), str(bare.NZERO), str(bare.NaN), str(bare.NAN)) == (
        "0.0", "-0.0", "nan", "nan",
    )  # fmt: skip
    kinds = (bare.int, bare.float, bare.complex, bare.object, bare.str)
    assert kinds == (int, float, complex, object, str)
    assert (bare.bool, bare.float_, bare.complex_) == (numpy.bool_, numpy.float64, numpy.complex128)
    assert (bare.unicode_, bare.string_) == (numpy.str_, numpy.bytes_)
    functions = (bare.product, bare.cumproduct, bare.sometrue, bare.alltrue)
    assert functions == (numpy.prod, numpy.cumprod, numpy.any, numpy.all)
    assert (bare.round_, bare.row_stack, bare.trapz) == (numpy.round, numpy.vstack, bare.trapezoid)
    for name in ("fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate"):
        with pytest.raises(NotImplementedError, match=f"numpy.{name} "):
            getattr(bare, name)(1, 2)


def test_names_that_numpy_has_are_left_alone():
    full = types.ModuleType("numpy")
    names = [*mxnet_fixes.REMOVED_VALUES, *mxnet_fixes.RENAMED_FUNCTIONS, *mxnet_fixes.REMOVED_FUNCTIONS]
    for name in names:
        setattr(full, name, f"numpy's own {name}")
    mxnet_fixes.put_back_numpy_names(full)
    assert all(getattr(full, name) == f"numpy's own {name}" for name in names)


def test_putting_names_back_asks_numpy_for_none_of_them():
    # NumPy warns when one of them is read.
    class StrictModule(types.ModuleType):
        def __getattr__(self, name):
            raise AssertionError(f"{name} was read")

    mxnet_fixes.put_back_numpy_names(StrictModule("numpy"))


# --- failed imports of MXNet


@pytest.mark.parametrize(
    ("library", "cure"),
    [
        ("libcudnn.so.8", pip_install_command("cu112")),
        ("libcudnn.so.8", "nvidia-cudnn-cu11"),
        ("libnvrtc.so.11.2", "nvidia-cuda-nvrtc-cu11"),
        ("libnccl.so.2", "nvidia-nccl-cu11"),
        ("libcudart.so.11.0", "nvidia-cuda-runtime-cu11"),
        ("libcuda.so.1", "install the NVIDIA driver"),
        ("libgomp.so.1", "apt-get install libgomp1"),
        ("libquadmath.so.0", "apt-get install libquadmath0"),
        ("libother.so.1", "package of your system"),
    ],
)
def test_a_missing_library_is_named_with_its_cure(library, cure):
    message = explain_in_one_line(OSError(f"{library}: cannot open shared object file: No such file or directory"))
    assert f"cannot load {library}:" in message
    assert cure in message


def explain_in_one_line(error):
    answer = mxnet_import.explain_import_error(error)
    assert type(answer) is EngineError
    assert "\n" not in str(answer)
    return str(answer)


def test_missing_distutils_is_explained_and_other_errors_keep_their_words():
    missing = ModuleNotFoundError("No module named 'distutils'", name="distutils")
    assert "setuptools<81" in explain_in_one_line(missing)
    assert explain_in_one_line(RuntimeError("something\n  else")) == "mxnet cannot be imported: something else"


def test_a_missing_library_is_an_engine_error(tmp_path):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_package("mxnet", "import ctypes\nctypes.CDLL('libcudnn.so.8')\n")
    error = read_error(environment.run_python("-c", CATCH))
    assert (error["kinds"][0], error["cause"]) == ("EngineError", "OSError") and "OSError" not in error["kinds"]
    assert "libcudnn.so.8" in error["message"] and pip_install_command("cu112") in error["message"]


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("import numpy; numpy.of_no_numpy", "of_no_numpy"),  # as of a newer NumPy
        ("from numpy import of_no_numpy", "of_no_numpy"),
    ],
)
def test_a_missing_module_or_name_is_an_engine_error(python, tmp_path, code, missing):
    error = read_error(python("-c", CATCH, path=[write_package(tmp_path / "site", "mxnet", code)]))
    assert error["kinds"][0] == "EngineError" and missing in error["message"]


def test_without_mxnet_an_import_error_names_the_command_that_installs_it(python):
    error = read_error(python("-S", "-c", CATCH))  # without site-packages
    assert error["kinds"][0] == "MissingMXNet" and pip_install_command("cpu") in error["message"]
    assert {"EngineError", "ImportError", "ModuleNotFoundError"} <= set(error["kinds"])


def test_two_builds_of_mxnet_are_refused_before_mxnet_starts(python, tmp_path):
    site = write_package(tmp_path / "site", "mxnet", "raise SystemExit('mxnet was started')\n")
    for name in ("mxnet", "mxnet-cu112"):
        write_distribution(tmp_path / "site", name)
    error = read_error(python("-c", CATCH, path=[site]))
    assert error["kinds"][0] == "EngineError" and "pip uninstall -y mxnet mxnet-cu112" in error["message"]


def test_the_installed_builds_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert mxnet_and_cuda_libraries.installed_distributions() == ()
    write_distribution(tmp_path, "mxnet-cu112")
    write_distribution(tmp_path, "mxnet-other")
    assert mxnet_and_cuda_libraries.installed_distributions() == ("mxnet-cu112",)
    write_distribution(tmp_path, "mxnet")
    assert mxnet_and_cuda_libraries.installed_distributions() == ("mxnet", "mxnet-cu112")


# --- the environment


CHOSEN = {"MXNET_CPU_TEMP_COPY": "7", "MXNET_SUBGRAPH_VERBOSE": "1"}


@pytest.mark.parametrize("exported", [{}, CHOSEN], ids=str)
def test_the_environment_is_set_for_mxnet_and_the_users_values_are_kept(python, tmp_path, exported):
    site = write_package(tmp_path / "site", "mxnet", REPORT)
    environment = json.loads(python("-c", "import gluonlab, mxnet", path=[site], **exported).stdout)["environment"]
    expected = exported or {"MXNET_CPU_TEMP_COPY": "64", "OMP_NUM_THREADS": "1"}
    assert {name: environment[name] for name in expected} == expected


SPINS = {"GOMP_SPINCOUNT": "77"}
DEFAULT_SPINS = {"GOMP_SPINCOUNT": openmp_settings.SPIN_COUNT}
LONG_CASES = [
    ({"GOMP_SPINCOUNT": ""}, DEFAULT_SPINS),
    ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ({"OMP_SCHEDULE": "dynamic", **SPINS}, {"OMP_SCHEDULE": "dynamic", **SPINS}),
]


@pytest.mark.parametrize(
    ("exported", "seen"),
    [
        ({}, DEFAULT_SPINS),
        (SPINS, SPINS),
        *(pytest.param(*case, marks=pytest.mark.long) for case in LONG_CASES),
        ({"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "OMP_DYNAMIC": "TRUE"}, DEFAULT_SPINS),
        ({"OMP_NUM_THREADS": "3"}, DEFAULT_SPINS),
    ],
    ids=str,
)
def test_mxnet_loads_with_our_openmp_settings_and_the_process_keeps_the_users(python, tmp_path, exported, seen):
    site = write_package(tmp_path / "site", "mxnet", REPORT)
    result = python("-W", "always", "-c", f"import gluonlab, mxnet; {REPORT}", path=[site], **exported)
    during, afterwards = (
        {name: value for name, value in json.loads(line)["environment"].items() if name.startswith(("OMP_", "GOMP_"))}
        for line in result.stdout.splitlines()
    )
    assert during == {"OMP_NUM_THREADS": "1", **seen}
    assert afterwards == exported
    overridden = {name for name, value in exported.items() if value and name not in during}
    assert all(f"{name}={exported[name]} is overridden for MXNet" in result.stderr for name in overridden)
    assert result.stderr.count("is overridden") == len(overridden)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("GOMP_SPINCOUNT", value) for value in (" 7 ", "5 K", "1e5", "7x", "INFINITY", "inf", "passive")],
        *[("OMP_WAIT_POLICY", value) for value in ("Passive ", "lazy", "7")],
    ],
)
def test_settings_that_libgomp_ignores_do_not_count_as_the_users(python, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    output = python("-c", "import ctypes; ctypes.CDLL('libgomp.so.1')", **{name: value}).stderr
    is_invalid = f"Invalid value for environment variable {name}" in output
    assert (name in openmp_settings.user_spin_settings()) == (not is_invalid)


@pairwise(
    order=["mxnet, gluonlab", "gluonlab, mxnet"],
    inherited=[{}, {"MXNET_CPU_TEMP_COPY": "64"}],
    exported=[{}, {"GOMP_SPINCOUNT": "9"}],
)
def test_idle_threads_spin_if_mxnet_was_imported_first(python, tmp_path, order, inherited, exported):
    site = write_package(tmp_path / "site", "mxnet", "")
    code = f"import {order}; from gluonlab.engine.openmp_settings import spins_by_default; print(spins_by_default())"
    spins = order == "mxnet, gluonlab" and not exported
    assert python("-c", code, path=[site], **inherited, **exported).stdout == f"{spins}\n"


@pytest.mark.parametrize(
    ("exported", "named"),
    [
        ({}, []),
        ({"OMP_DYNAMIC": "true"}, ["OMP_DYNAMIC=true"]),
        ({"OMP_DYNAMIC": "False"}, []),
        ({"OMP_THREAD_LIMIT": "1", "OMP_MAX_ACTIVE_LEVELS": "0"}, ["OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0"]),
        ({"OMP_MAX_ACTIVE_LEVELS": "2"}, []),
        ({"GOMP_CPU_AFFINITY": "0-3"}, ["GOMP_CPU_AFFINITY=0-3"]),
        ({"GOMP_CPU_AFFINITY": "0-3", "OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}, []),
        ({"OMP_PROC_BIND": "close"}, ["OMP_PROC_BIND=close"]),
    ],
    ids=str,
)
def test_openmp_settings_that_harm_mxnet_are_found(monkeypatch, exported, named):
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    assert list(openmp_settings.harmful_user_settings()) == named


def test_importing_gluonlab_alone_changes_no_environment(python):
    before = json.loads(python("-c", REPORT).stdout)["environment"]
    assert json.loads(python("-c", f"import gluonlab; {REPORT}").stdout)["environment"] == before


def test_other_modules_are_imported_as_usual(python, tmp_path):
    site = write_package(tmp_path / "site", "mxnet", "import mxnet.part\n")
    (tmp_path / "site" / "mxnet" / "part.py").write_text("print('part')\n")
    write_package(tmp_path / "other", "mxnet_tools", "print('tools')\n")
    code = "import gluonlab, mxnet_tools, mxnet, sys; print('numpy' in sys.modules)"
    result = python("-c", code, path=[site, str(tmp_path / "other")])
    assert result.stdout.split() == ["tools", "part", "True"]


def cgroup_v1(quota, folder="cpu"):
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        (None, {}, 8),
        *((None, {"cpu.max": f"{quota} 100000"}, limit) for quota, limit in (("max", 8), (250000, 2), (50000, 1))),
        *((None, cgroup_v1(quota), limit) for quota, limit in (("-1", 8), ("300000", 3), ("odd", 8))),
        # systemd's CPUQuota=
        ("0::/user.slice/session-2.scope", {"user.slice/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"cpu.max": "max 100000", "a/cpu.max": "500000 100000", "a/b/cpu.max": "400000 100000"}, 4),
        # parents count
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"}, 2),
        ("0::/a", {"b/cpu.max": "100000 100000"}, 8),  # of another process
        # a path outside of the container, whose group is at the root
        ("0::/docker/gone", {"cpu.max": "200000 100000"}, 2),
        ("4:cpu,cpuacct:/job", cgroup_v1("200000", "cpu/job"), 2),
        ("4:cpuset:/job", cgroup_v1("200000", "cpu/job"), 8),
        ("0::/../a", {"cpu.max": "max 100000"}, 8),
        ("nonsense", {"cpu.max": "100000 0"}, 8),
    ],
)
def test_limits_of_containers_jobs_and_services_count_under_both_versions_of_control_groups(
    tmp_path, membership, files, limit
):
    content = {f"groups/{path}": text for path, text in files.items()}
    if membership is not None:
        content["proc/self/cgroup"] = membership
    for path, text in content.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    assert (resources.core_limit(tmp_path / "groups", tmp_path / "proc") or 8) == limit


@pytest.mark.parametrize(
    ("openmp", "mxnet", "expected"),
    [
        *((value, None, None) for value in (None, "", "0", "-1")),
        *((value, None, "OMP_NUM_THREADS=4") for value in ("4", " 4 ", "4,2")),
        (None, "3", "MXNET_OMP_MAX_THREADS=3"),
        ("2", "3", "OMP_NUM_THREADS=2"),  # as MXNet
        ("all", "3", "MXNET_OMP_MAX_THREADS=3"),
        (None, "0", None),
    ],
)
def test_the_number_of_threads_is_read_as_openmp_and_mxnet_read_it(monkeypatch, openmp, mxnet, expected):
    for name, value in (("OMP_NUM_THREADS", openmp), ("MXNET_OMP_MAX_THREADS", mxnet)):
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, False)
    threads = openmp_settings.exported_threads()
    assert (threads and str(threads)) == expected
    assert openmp_settings.exported_thread_count() == (expected and int(expected[-1]))


def test_available_cores_are_those_that_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    assert 1 <= resources.available_cores() <= len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert resources.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


# --- CUDA's libraries


def test_the_wheels_are_those_that_setup_installs(request):
    installed = re.findall(r'"(nvidia-[\w-]+-cu11)==', (request.config.rootpath / "setup.py").read_text())
    headers = {"nvidia-cuda-nvcc-cu11"}  # which the simulated GPUs are compiled with
    assert {library.wheel for library in mxnet_and_cuda_libraries.LIBRARIES} == set(installed) - headers


def test_all_libraries_are_loaded_before_mxnet_starts(python, tmp_path):
    site = tmp_path / "site"
    paths = [
        site / "nvidia" / library.folder / "lib" / library.soname for library in mxnet_and_cuda_libraries.LIBRARIES
    ]
    for path in paths:
        write_library(path)
    write_package(site, "mxnet", "print(open('/proc/self/maps').read())\n")
    # The mxnet of these tests must not count as a second build.
    code = (
        "import numpy, gluonlab.engine.mxnet_setup as engine\n"
        "engine.installed_distributions = lambda: ('mxnet-cu112',)\nimport mxnet"
    )
    result = python("-c", code, path=[str(site)])
    assert result.returncode == 0, result.stderr
    loaded = {line.split()[-1] for line in result.stdout.splitlines() if str(site) in line}
    assert loaded == set(map(str, paths))


def test_a_damaged_library_is_named(tmp_path, monkeypatch):
    path = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.8"
    path.parent.mkdir(parents=True)
    path.write_text("not a library")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(OSError, match=r"libcudnn\.so\.8") as error:
        mxnet_and_cuda_libraries.load_cuda_libraries()
    assert "cannot load libcudnn.so.8" in explain_in_one_line(error.value)


def test_find_spec_returns_none_without_mxnet(python):
    code = "import sys, importlib.util, gluonlab; sys.path[:] = []; sys.modules.pop('mxnet', None); "
    result = python("-c", code + "print(importlib.util.find_spec('mxnet'))")
    assert (result.returncode, result.stdout.strip()) == (0, "None"), result.stderr


CUDA = st.builds(lambda major, minor: major * 1000 + minor * 10, st.integers(10, 13), st.integers(0, 9))


@given(CUDA, CUDA)
def test_a_driver_runs_code_of_its_own_or_an_older_cuda_compiler(driver, compiler):
    versions, words = CudaVersions(driver, compiler), "and runs" if driver >= compiler else "and does not run"
    assert versions.are_compatible == (driver >= compiler)
    assert f"{format_cuda_version(driver)} {words}" in str(versions)
    assert CudaVersions(None, compiler).are_compatible and CudaVersions(driver, None).are_compatible


OLD = "the driver supports CUDA 11.4 and does not run code that NVRTC 11.8 compiles"


@pytest.mark.parametrize(
    ("exported", "driver", "is_on", "reason"),
    [
        (None, 11040, False, OLD),
        *((None, driver, True, None) for driver in (11080, 12020, None)),
        *(
            (value, driver, False, f"MXNET_USE_FUSION={value} is set")
            for value in ("0", "false")
            for driver in (11040, 12020)
        ),
        *((value, 11040, True, None) for value in ("1", "true")),
    ],
)
def test_fusion_is_on_if_the_driver_supports_it_or_the_user_asks_for_it(monkeypatch, exported, driver, is_on, reason):
    monkeypatch.setattr(mxnet_setup, "cuda_versions", lambda: CudaVersions(driver, 11080))
    monkeypatch.setattr(mxnet_setup, "_fusion_is_off", False)
    monkeypatch.delenv(mxnet_setup.FUSION_VARIABLE, raising=False)
    if exported is not None:
        monkeypatch.setenv(mxnet_setup.FUSION_VARIABLE, exported)
    message = f"MXNET_USE_FUSION={exported} is set, but the driver supports CUDA 11.4 .* unset"
    with pytest.warns(GluonlabWarning, match=message) if exported in ("1", "true") else nullcontext():
        mxnet_setup._disable_unsupported_fusion()
    state = mxnet_setup.fusion_state()
    assert (state.is_on, state.driver_supports) == (is_on, driver != 11040)
    assert reason is None or state.reason == reason
    assert os.environ.get(mxnet_setup.FUSION_VARIABLE) == ("0" if reason == OLD else exported)
