"""CUDA's libraries from LD_LIBRARY_PATH, wheels and system, and what is said of one that does not
fit. The linker is real.
"""

import json
import subprocess
import sys

import pytest
from support.elf_files import write_library
from support.environments import VirtualEnvironment
from support.processes import clean_environment

from gluonlab.engine import linker_errors, mxnet_installation
from gluonlab.engine.linker_errors import diagnose_linker_error, library_origin
from gluonlab.engine.mxnet_installation import LIBRARIES, pip_install_command

BY_SONAME = {library.soname: library for library in LIBRARIES}
LOADED = """
import json, sys
sys.path.insert(0, {site!r})
from gluonlab.engine import mxnet_installation
mxnet_installation.load_cuda_libraries()
maps = [line.split()[-1] for line in open("/proc/self/maps") if {root!r} in line]
print(json.dumps(sorted(set(maps))))
"""
IMPORT = """
import gluonlab, gluonlab.engine.mxnet_setup as engine
try:
    import mxnet
except engine.EngineError as error:
    print(error)
"""


def wheel_place(site, soname):
    return site / "nvidia" / BY_SONAME[soname].folder / "lib" / soname


def loaded(python, root, site, **environment):
    """The files below ``root`` that a process has loaded after load_cuda_libraries."""
    result = python("-c", LOADED.format(site=str(site), root=str(root)), **environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def the_dlopen_message(path):
    """In a process that has loaded nothing else: this one may have all of CUDA's libraries."""
    code = f"import ctypes\ntry:\n    ctypes.CDLL({str(path)!r})\nexcept OSError as error:\n    print(error)"
    environment = clean_environment(LD_LIBRARY_PATH="")
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, encoding="utf-8", timeout=60
    )
    assert ended.stdout.strip(), ended.stderr
    return ended.stdout.strip()


# --- which of several is loaded


def test_what_the_user_has_put_into_ld_library_path_wins(python, tmp_path):
    site, system = tmp_path / "site", tmp_path / "cuda-11.2"
    wheels = [write_library(wheel_place(site, soname)) for soname in BY_SONAME]
    users = [write_library(system / soname) for soname in ("libcudart.so.11.0", "libcublas.so.11")]
    mixed = loaded(python, tmp_path, site, LD_LIBRARY_PATH=f"{tmp_path}/nothing::{system}")
    own = {path.name for path in users}
    others = [path for path in wheels if path.name not in own]
    assert mixed == sorted(map(str, [*users, *others]))
    assert loaded(python, tmp_path, site, LD_LIBRARY_PATH="") == sorted(map(str, wheels))


def test_a_system_cuda_alone_is_left_to_the_linker(python, tmp_path):
    """Without wheels: those of LD_LIBRARY_PATH are loaded, and nothing is said of the others, which
    the linker may find.
    """
    users = [write_library(tmp_path / "cuda" / soname) for soname in ("libcudart.so.11.0", "libcurand.so.10")]
    assert loaded(python, tmp_path, tmp_path / "site", LD_LIBRARY_PATH=str(tmp_path / "cuda")) == sorted(
        map(str, users)
    )


def test_where_a_library_comes_from(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/missing:{tmp_path}/link"}
    assert library_origin(tmp_path / "real" / "libx.so.1", environ) == "LD_LIBRARY_PATH"
    assert library_origin(tmp_path / "mxnet" / "libopenblas.so.0", environ) == "mxnet"
    assert library_origin(wheel_place(tmp_path, "libcudnn.so.8"), environ) == "wheel"
    assert library_origin(tmp_path / "other" / "libc.so.6", environ) == "system"
    assert (
        mxnet_installation.owning_wheel(wheel_place(tmp_path, "libcudnn.so.8").with_name("libcudnn.so.9"))
        == "nvidia-cudnn-cu11"
    )
    assert mxnet_installation.owning_wheel(tmp_path / "cudnn" / "lib" / "libcudnn.so.8") == ""


# --- what the linker says, and what it means


def test_a_missing_library_whose_other_version_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    twelve = write_library(tmp_path / "cuda-12" / "libcublas.so.12")
    user = write_library(tmp_path / "user.so", needed=["libcublas.so.11"])
    complaint = diagnose_linker_error(the_dlopen_message(user), {"LD_LIBRARY_PATH": str(twelve.parent)})
    assert complaint.library == "libcublas.so.11"
    assert complaint.cause.startswith(f"{twelve} is another version")
    assert "nvidia-cublas-cu11: " + pip_install_command("cu112") in complaint.cure
    assert diagnose_linker_error(the_dlopen_message(user), {}).cause == ""


@pytest.mark.parametrize(
    ("soname", "wrong", "wheel"),
    [
        ("libcudnn.so.8", "libcudnn.so.9", "'nvidia-cudnn-cu11<9'"),
        ("libcudart.so.11.0", "libcudart.so.12", "nvidia-cuda-runtime-cu11"),
    ],
)
def test_a_wheel_of_another_version_in_the_same_folder(tmp_path, monkeypatch, soname, wrong, wheel):
    """The wheels of CUDA 12 and of cuDNN 9 put their libraries into the folders of these."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    other = write_library(wheel_place(tmp_path, soname).with_name(wrong))
    complaint = diagnose_linker_error(f"{soname}: cannot open shared object file: No such file or directory", {})
    assert complaint.cause.startswith(f"{other} is another version")
    assert complaint.cure == f"pip install --force-reinstall --no-deps {wheel}"


def test_a_wheel_that_has_lost_its_file_is_installed_again(tmp_path, monkeypatch):
    """pip install would say that the requirement is satisfied."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    info = tmp_path / "nvidia_cudnn_cu11-8.9.6.50.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cudnn-cu11\nVersion: 8.9.6.50\n")
    said = "libcudnn.so.8: cannot open shared object file: No such file or directory"
    assert diagnose_linker_error(said, {}).cure.endswith(
        "pip install --force-reinstall --no-deps 'nvidia-cudnn-cu11<9'"
    )
    write_library(wheel_place(tmp_path, "libcudnn.so.8"))
    assert diagnose_linker_error(said, {}).cure.endswith(pip_install_command("cu112"))


def test_the_file_with_the_full_version_is_no_other_version(tmp_path):
    for name in ("libcudart.so", "libcudart.so.11.0", "libcudart.so.11.0.221"):
        write_library(tmp_path / name)
    assert mxnet_installation.find_other_versions("libcudart.so.11.0", {"LD_LIBRARY_PATH": str(tmp_path)}) == []


def test_a_system_cuda_that_the_linker_does_not_know(tmp_path, monkeypatch):
    monkeypatch.setattr(linker_errors, "SYSTEM_CUDA_ROOT", tmp_path)
    path = write_library(tmp_path / "cuda-11.2" / "lib64" / "libcufft.so.10")
    complaint = diagnose_linker_error("libcufft.so.10: cannot open shared object file: No such file or directory", {})
    assert complaint.cause == f"{path} exists, but the linker does not search its folder"
    assert f"export LD_LIBRARY_PATH={path.parent}" in complaint.cure


def test_a_library_that_lacks_a_symbol(tmp_path):
    """The linker's own words; with a symbol that has a version they also name the library that
    should have it.
    """
    user = write_library(tmp_path / "libcublas.so.11", undefined=["cublasLtGetStatusString"])
    complaint = diagnose_linker_error(the_dlopen_message(user), {"LD_LIBRARY_PATH": str(tmp_path)})
    assert complaint.library == "libcublas.so.11"
    assert "none of them has cublasLtGetStatusString" in complaint.cause
    assert complaint.cure.startswith(f"take {tmp_path} out of LD_LIBRARY_PATH")


def test_a_symbol_with_a_version_names_the_library_that_should_have_it(tmp_path):
    old = write_library(tmp_path / "old" / "libcublasLt.so.11")
    user = wheel_place(tmp_path, "libcublas.so.11")
    said = f"{user}: undefined symbol: cublasLtGetStatusString, version libcublasLt.so.11"
    complaint = diagnose_linker_error(said, {"LD_LIBRARY_PATH": str(old.parent)})
    assert complaint.library == "libcublasLt.so.11"
    assert f"{old} is not the version that {user} needs: it lacks cublasLtGetStatusString" in complaint.cause
    assert f"take {old.parent} out of LD_LIBRARY_PATH" in complaint.cure


TAKE_OUT = "take /opt/old out of LD_LIBRARY_PATH"


@pytest.mark.parametrize(
    ("said", "library", "cause", "cure"),
    [
        (
            "/opt/old/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /a/b.so)",
            "libstdc++.so.6", "GLIBCXX_3.4.30", TAKE_OUT,
        ),
        (
            "/a/libmxnet.so: undefined symbol: _ZTVN10, version CXXABI_1.3",
            "libstdc++.so.6", "lacks _ZTVN10", "",
        ),
        (
            "/a/libmxnet.so: undefined symbol: omp_x, version OMP_1.0",
            "libgomp.so.1", "lacks omp_x", "",
        ),
        ("/opt/old/libnccl.so.2: file too short", "libnccl.so.2", "file too short", TAKE_OUT),
        ("/opt/old/libnccl.so.2: wrong ELF class: X", "libnccl.so.2", "class: X", TAKE_OUT),
        (
            "a: /opt/old/libgomp.so.1: no version information available (required by a)",
            "libgomp.so.1", "no versions", TAKE_OUT,
        ),
        (
            "libpython3.11.so.1.0: cannot open shared object file: No such file or directory",
            "libpython3.11.so.1.0", "", "",
        ),
        (
            "/a/libx.so.8: cannot open shared object file: Permission denied",
            "libx.so.8", "Permission denied", "make it readable",
        ),
        (
            "libx.so.8: cannot open shared object file: Too many open files",
            "libx.so.8", "Too many open files", "fix that",
        ),
        (
            "/a/libx.so: failed to map segment from shared object: Operation not permitted",
            "libx.so", "not permitted", "noexec",
        ),
        ("/a/libx.so: failed to map segment from shared object", "libx.so", "no reason", "noexec"),
        (
            "/a/libx.so: cannot enable executable stack as shared object requires: X",
            "libx.so", "stack", "patchelf",
        ),
        (
            "/a/libgomp.so.1: cannot allocate memory in static TLS block",
            "libgomp.so.1", "too late", "import gluonlab and mxnet first",
        ),
        ("/a/libgomp.so.1: something else", "libgomp.so.1", "something else", "reinstall"),
    ],
)  # fmt: skip
def test_the_words_of_the_linker_are_understood(said, library, cause, cure):
    complaint = diagnose_linker_error(said, {"LD_LIBRARY_PATH": "/opt/old"})
    assert (complaint.library, cause in complaint.cause) == (library, True)
    assert complaint.cure.startswith(cure) if cure == TAKE_OUT else cure in complaint.cure
    if said.startswith("/a/libx") or "something" in said:  # what is there is not called missing
        assert "apt-get" not in complaint.cure


def test_a_file_that_is_no_library_is_cured_where_it_lies(tmp_path):
    path = wheel_place(tmp_path, "libnccl.so.2")
    path.parent.mkdir(parents=True)
    path.write_text("no library")
    complaint = diagnose_linker_error(the_dlopen_message(path), {})
    assert complaint.library == "libnccl.so.2"
    assert f"{path} is not a library for this machine" in complaint.cause
    assert complaint.cure.startswith("pip install --force-reinstall --no-deps nvidia-nccl-cu11")


@pytest.mark.parametrize("said", ["", "out of memory", "No module named 'x'"])
def test_what_is_not_about_libraries_is_left_alone(said):
    assert diagnose_linker_error(said) is None


# --- and the engine says it


@pytest.fixture
def cu112(tmp_path):
    """``cu112(code)``: an environment whose mxnet-cu112 does ``code`` when it is imported, and that
    has no wheels yet.
    """

    def make(code):
        environment = VirtualEnvironment(tmp_path, without=["mxnet"])
        environment.add_package("mxnet", code)
        environment.add_distribution("mxnet-cu112")
        return environment

    return make


def test_the_engines_error_names_the_wrong_version_in_ld_library_path(cu112, tmp_path):
    environment, system = cu112("raise SystemExit('mxnet was begun')"), tmp_path / "cuda"
    users = write_library(system / "libcublas.so.11", undefined=["cublasLtShutdownCtx"])
    write_library(wheel_place(environment.site, "libcublas.so.11"))
    said = environment.run_python("-c", IMPORT, LD_LIBRARY_PATH=str(system)).stdout.strip()
    assert said.startswith(f"mxnet cannot load libcublas.so.11: {users} does not fit")
    assert f"take {system} out of LD_LIBRARY_PATH" in said
    assert "\n" not in said


def test_the_engines_error_names_cudnn_9(cu112):
    environment = cu112("import ctypes\nctypes.CDLL('libcudnn.so.8')")
    nine = write_library(wheel_place(environment.site, "libcudnn.so.8").with_name("libcudnn.so.9"))
    said = environment.run_python("-c", IMPORT).stdout
    assert f"mxnet cannot load libcudnn.so.8: {nine} is another version" in said
    assert "pip install --force-reinstall --no-deps 'nvidia-cudnn-cu11<9'" in said
