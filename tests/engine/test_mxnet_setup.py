"""The engine: what is true when MXNet's first line runs, and what is said when it cannot."""

import ctypes
import json
import os
import re
import types

import numpy
import pytest
from support.covering import pairwise
from support.environments import VirtualEnvironment
from support.processes import write_package

from gluonlab.engine import mxnet_fixes, mxnet_import, mxnet_installation, openmp_settings
from gluonlab.engine.mxnet_installation import pip_install_command
from gluonlab.errors import EngineError
from gluonlab.host import resources

REPORT = "import json, os, sys; print(json.dumps({'modules': sorted(sys.modules), 'environment': dict(os.environ)}))"


def distribution(folder, name):
    """What pip leaves of an installed distribution, as far as importlib.metadata looks."""
    info = folder / f"{name.replace('-', '_')}-1.9.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.1\n")


def import_error(result):
    """The class and message that a process printed for a failed import of mxnet."""
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


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


def test_importing_gluonlab_imports_nothing_heavy(python):
    """The command's module, too: --help and a wrong option answer without MXNet."""
    modules = json.loads(python("-c", f"import gluonlab, gluonlab.config; {REPORT}").stdout)["modules"]
    assert {"gluonlab", "gluonlab.engine.mxnet_setup", "gluonlab.config"} <= set(modules)
    assert not {"mxnet", "numpy", "click", "sklearn", "matplotlib", "tqdm"} & set(modules)
    modules = json.loads(python("-c", f"import gluonlab.run; {REPORT}").stdout)["modules"]
    assert not {"mxnet", "numpy", "sklearn", "matplotlib", "tqdm"} & set(modules)


# --- numpy's names


def test_names_that_numpy_lacks_are_put_back():
    """An empty module stands for a numpy that dropped them all; the values are those of a numpy
    that still had them.
    """
    bare = types.ModuleType("numpy")
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
    """numpy warns when one of them is asked for."""

    class Touchy(types.ModuleType):
        def __getattr__(self, name):
            raise AssertionError(f"asked for {name}")

    mxnet_fixes.put_back_numpy_names(Touchy("numpy"))


# --- what can go wrong when MXNet is imported


@pytest.mark.parametrize(
    ("library", "cure"),
    [
        ("libcudnn.so.8", pip_install_command("cu112")),
        ("libcudnn.so.8", "nvidia-cudnn-cu11"),
        ("libnvrtc.so.11.2", "nvidia-cuda-nvrtc-cu11"),
        ("libnccl.so.2", "nvidia-nccl-cu11"),
        ("libcudart.so.11.0", "nvidia-cuda-runtime-cu11"),
        ("libcuda.so.1", "install the driver"),
        ("libgomp.so.1", "apt-get install libgomp1"),
        ("libquadmath.so.0", "apt-get install libquadmath0"),
        ("libother.so.1", "package of your system"),
    ],
)
def test_a_missing_library_is_named_with_its_cure(library, cure):
    said = explained(OSError(f"{library}: cannot open shared object file: No such file or directory"))
    assert f"cannot load {library}:" in said
    assert cure in said


def explained(error):
    answer = mxnet_import.explain_import_error(error)
    assert type(answer) is EngineError
    assert "\n" not in str(answer)
    return str(answer)


def test_missing_distutils_is_explained():
    assert "setuptools<81" in explained(ModuleNotFoundError("No module named 'distutils'", name="distutils"))


def test_other_failures_keep_their_words_on_one_line():
    assert explained(RuntimeError("something\n  else")) == "mxnet cannot be imported: something else"


def test_a_library_that_is_not_there_is_an_engine_error(tmp_path):
    """A real import of a package that asks the real linker for what this environment does not
    have.
    """
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    environment.add_package("mxnet", "import ctypes\nctypes.CDLL('libcudnn.so.8')\n")
    error = import_error(environment.run_python("-c", CATCH))
    assert error["kinds"][0] == "EngineError"
    assert "OSError" not in error["kinds"]
    assert error["cause"] == "OSError"
    assert "libcudnn.so.8" in error["message"]
    assert pip_install_command("cu112") in error["message"]


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        # as of a numpy that is newer than all that were tried
        ("import numpy; numpy.of_no_numpy", "of_no_numpy"),
        ("from numpy import of_no_numpy", "of_no_numpy"),
    ],
)
def test_what_mxnet_misses_is_an_engine_error(python, tmp_path, code, missing):
    error = import_error(python("-c", CATCH, path=[write_package(tmp_path / "site", "mxnet", code)]))
    assert error["kinds"][0] == "EngineError"
    assert missing in error["message"]


def test_no_mxnet_at_all_is_an_import_error_that_says_what_to_install(python):
    error = import_error(python("-S", "-c", CATCH))  # without site-packages
    assert error["kinds"][0] == "MissingMXNet"
    assert {"EngineError", "ImportError", "ModuleNotFoundError"} <= set(error["kinds"])
    assert pip_install_command("cpu") in error["message"]


def test_both_flavours_together_are_refused_before_mxnet_begins(python, tmp_path):
    site = write_package(tmp_path / "site", "mxnet", "raise SystemExit('mxnet was begun')\n")
    for name in ("mxnet", "mxnet-cu112"):
        distribution(tmp_path / "site", name)
    error = import_error(python("-c", CATCH, path=[site]))
    assert error["kinds"][0] == "EngineError"
    assert "pip uninstall -y mxnet mxnet-cu112" in error["message"]


def test_the_installed_flavours_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert mxnet_installation.installed_distributions() == ()
    distribution(tmp_path, "mxnet-cu112")
    distribution(tmp_path, "mxnet-other")
    assert mxnet_installation.installed_distributions() == ("mxnet-cu112",)
    distribution(tmp_path, "mxnet")
    assert mxnet_installation.installed_distributions() == ("mxnet", "mxnet-cu112")


# --- the environment


CHOSEN = {"MXNET_CPU_TEMP_COPY": "7", "MXNET_SUBGRAPH_VERBOSE": "1"}


@pytest.mark.parametrize("exported", [{}, CHOSEN], ids=str)
def test_the_environment_is_set_when_mxnet_begins_and_what_the_user_has_set_is_kept(python, tmp_path, exported):
    site = write_package(tmp_path / "site", "mxnet", REPORT)
    report = python("-c", "import gluonlab, mxnet", path=[site], **exported).stdout
    found = json.loads(report)["environment"]
    # what MXNet and OpenMP read: each worker begins alone
    expected = exported or {"MXNET_CPU_TEMP_COPY": "64", "OMP_NUM_THREADS": "1"}
    assert {name: found[name] for name in expected} == expected


def test_the_number_of_threads_is_the_users_again_when_mxnet_is_loaded(python, tmp_path):
    exported = {"OMP_NUM_THREADS": "3"}
    site = write_package(tmp_path / "site", "mxnet", "")
    found = json.loads(python("-c", f"import gluonlab, mxnet; {REPORT}", path=[site], **exported).stdout)["environment"]
    assert {name: found[name] for name in found if name.startswith("OMP_")} == exported


SPINS = {"GOMP_SPINCOUNT": "77"}


@pytest.mark.parametrize(
    ("exported", "seen"),
    [
        ({}, {"GOMP_SPINCOUNT": openmp_settings.SPIN_COUNT}),
        (SPINS, SPINS),
        pytest.param({"GOMP_SPINCOUNT": ""}, {"GOMP_SPINCOUNT": openmp_settings.SPIN_COUNT}, marks=pytest.mark.long),
        pytest.param({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}, marks=pytest.mark.long),
        pytest.param(
            {"OMP_SCHEDULE": "dynamic", **SPINS}, {"OMP_SCHEDULE": "dynamic", **SPINS}, marks=pytest.mark.long
        ),
        (
            {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "OMP_DYNAMIC": "TRUE"},
            {"GOMP_SPINCOUNT": openmp_settings.SPIN_COUNT},
        ),
    ],
    ids=str,
)
def test_mxnet_loads_with_openmp_set_for_it_and_everybody_else_with_what_the_user_has_set(
    python, tmp_path, exported, seen
):
    site = write_package(tmp_path / "site", "mxnet", REPORT)
    result = python("-W", "always", "-c", f"import gluonlab, mxnet; {REPORT}", path=[site], **exported)
    while_it_loads, afterwards = [settings_of(report) for report in result.stdout.splitlines()]
    assert while_it_loads == {"OMP_NUM_THREADS": "1", **seen}
    assert afterwards == exported
    gone = {name: value for name, value in exported.items() if value and name not in seen}
    assert all(f"{name}={value} is overridden for MXNet" in result.stderr for name, value in gone.items())
    assert result.stderr.count("is overridden") == len(gone)


def settings_of(report):
    return {
        name: value for name, value in json.loads(report)["environment"].items() if name.startswith(("OMP_", "GOMP_"))
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("GOMP_SPINCOUNT", value) for value in (" 7 ", "5 K", "1e5", "7x", "INFINITY", "inf", "passive")],
        *[("OMP_WAIT_POLICY", value) for value in ("Passive ", "lazy", "7")],
    ],
)
def test_libgomp_itself_says_which_settings_it_passes_over(python, monkeypatch, name, value):
    """What it passes over is no setting of the user's: gluonlab sets its own then."""
    monkeypatch.setenv(name, value)
    said = python("-c", "import ctypes; ctypes.CDLL('libgomp.so.1')", **{name: value}).stderr
    assert (name in openmp_settings.user_spin_settings()) == (
        f"Invalid value for environment variable {name}" not in said
    )


@pairwise(
    order=["mxnet, gluonlab", "gluonlab, mxnet"],
    inherited=[{}, {"MXNET_CPU_TEMP_COPY": "64"}],
    exported=[{}, {"GOMP_SPINCOUNT": "9"}],
)
def test_threads_are_known_to_spin_where_mxnet_came_first(python, tmp_path, order, inherited, exported):
    """Also in what a process of ours has started, which inherits enough scratch memory, but not
    what OpenMP was told.
    """
    site = write_package(tmp_path / "site", "mxnet", "")
    code = f"import {order}; from gluonlab.engine import openmp_settings as openmp; "
    code += "print(openmp.spins_by_default())"
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
def test_what_would_harm_mxnet_is_known(monkeypatch, exported, named):
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    assert list(openmp_settings.harmful_user_settings()) == named


def test_importing_gluonlab_alone_changes_no_environment(python):
    before = json.loads(python("-c", REPORT).stdout)["environment"]
    assert json.loads(python("-c", f"import gluonlab; {REPORT}").stdout)["environment"] == before


def test_other_modules_are_found_as_ever(python, tmp_path):
    """Only mxnet itself is prepared: not what lies in it, nor what is called like it."""
    site = write_package(tmp_path / "site", "mxnet", "import mxnet.part\n")
    (tmp_path / "site" / "mxnet" / "part.py").write_text("print('part')\n")
    write_package(tmp_path / "other", "mxnet_tools", "print('tools')\n")
    result = python(
        "-c",
        "import gluonlab, mxnet_tools, mxnet, sys; print('numpy' in sys.modules)",
        path=[site, str(tmp_path / "other")],
    )
    assert result.stdout.split() == ["tools", "part", "True"]


def of_v1(quota, folder="cpu"):
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        (None, {}, 8),
        (None, {"cpu.max": "max 100000"}, 8),
        (None, {"cpu.max": "250000 100000"}, 2),
        (None, {"cpu.max": "50000 100000"}, 1),
        (None, of_v1("-1"), 8),
        (None, of_v1("300000"), 3),
        (None, of_v1("odd"), 8),
        # systemd's CPUQuota=
        ("0::/user.slice/session-2.scope", {"user.slice/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"cpu.max": "max 100000", "a/cpu.max": "500000 100000", "a/b/cpu.max": "400000 100000"}, 4),
        # what lies above counts, too
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"}, 2),
        ("0::/a", {"b/cpu.max": "100000 100000"}, 8),  # somebody else's
        # a path outside of the container: its own group is at the root
        ("0::/docker/gone", {"cpu.max": "200000 100000"}, 2),
        ("4:cpu,cpuacct:/job", of_v1("200000", "cpu/job"), 2),
        ("4:cpuset:/job", of_v1("200000", "cpu/job"), 8),
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
    ("openmps", "mxnets", "said"),
    [
        (None, None, None),
        ("", None, None),
        ("4", None, "OMP_NUM_THREADS=4"),
        (" 4 ", None, "OMP_NUM_THREADS=4"),
        ("4,2", None, "OMP_NUM_THREADS=4"),
        ("0", None, None),
        ("-1", None, None),
        (None, "3", "MXNET_OMP_MAX_THREADS=3"),
        ("2", "3", "OMP_NUM_THREADS=2"),  # MXNet asks in this order, too
        ("all", "3", "MXNET_OMP_MAX_THREADS=3"),
        (None, "0", None),
    ],
)
def test_the_number_of_threads_is_read_as_openmp_and_mxnet_read_it(monkeypatch, openmps, mxnets, said):
    for name, value in (("OMP_NUM_THREADS", openmps), ("MXNET_OMP_MAX_THREADS", mxnets)):
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, False)
    assert openmp_settings.exported_threads() is said is None or str(openmp_settings.exported_threads()) == said
    assert openmp_settings.exported_thread_count() == (said and int(said[-1]))


def test_cores_are_those_that_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    assert 1 <= resources.available_cores() <= len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert resources.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


# --- CUDA's libraries


def test_the_wheels_are_those_that_setup_installs(request):
    wanted = re.findall(r'"(nvidia-[\w-]+-cu11)==', (request.config.rootpath / "setup.py").read_text())
    headers = {"nvidia-cuda-nvcc-cu11"}  # which the simulated GPUs are compiled with
    assert {library.wheel for library in mxnet_installation.LIBRARIES} == set(wanted) - headers


def test_all_libraries_are_loaded_before_mxnet_begins(python, tmp_path):
    """Real shared libraries (copies of OpenMP's) in the wheels' places, and mxnet-cu112 as the
    installed flavour.
    """
    ctypes.CDLL("libgomp.so.1")
    with open("/proc/self/maps") as maps:
        content = open(next(line.split()[-1] for line in maps if "libgomp" in line), "rb").read()  # noqa: SIM115
    site = tmp_path / "site"
    for library in mxnet_installation.LIBRARIES:
        path = site / "nvidia" / library.folder / "lib" / library.soname
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_package(site, "mxnet", "print(open('/proc/self/maps').read())\n")
    # the mxnet that the tests themselves run with must not count as a second flavour
    code = (
        "import numpy, gluonlab.engine.mxnet_setup as engine\n"
        "engine.installed_distributions = lambda: ('mxnet-cu112',)\nimport mxnet"
    )
    result = python("-c", code, path=[str(site)])
    assert result.returncode == 0, result.stderr
    loaded = {line.split()[-1] for line in result.stdout.splitlines() if str(site) in line}
    assert loaded == {
        str(site / "nvidia" / library.folder / "lib" / library.soname) for library in mxnet_installation.LIBRARIES
    }


def test_a_damaged_library_is_named(tmp_path, monkeypatch):
    path = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.8"
    path.parent.mkdir(parents=True)
    path.write_text("not a library")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(OSError, match=r"libcudnn\.so\.8") as error:
        mxnet_installation.load_cuda_libraries()
    assert "cannot load libcudnn.so.8" in explained(error.value)


def test_asking_whether_there_is_an_mxnet_is_answered_with_no(python, tmp_path):
    """Other libraries probe like this.

    A folder in front of all others, and nothing else to find.
    """
    code = (
        "import sys, importlib.util, gluonlab\n"
        "sys.path[:] = []\n"
        "sys.modules.pop('mxnet', None)\n"
        "print(importlib.util.find_spec('mxnet'))"
    )
    result = python("-c", code)
    assert (result.returncode, result.stdout.strip()) == (0, "None"), result.stderr
