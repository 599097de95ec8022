"""CUDA libraries from LD_LIBRARY_PATH, wheels and the system, and errors of the real linker."""

import json
import subprocess
import sys

import pytest
from support.elf_files import write_library
from support.environments import VirtualEnvironment
from support.processes import clean_environment

from gluonlab.engine import linker_errors, mxnet_and_cuda_libraries
from gluonlab.engine.linker_errors import diagnose_linker_error, library_origin
from gluonlab.engine.mxnet_and_cuda_libraries import LIBRARIES, pip_install_command

BY_SONAME = {library.soname: library for library in LIBRARIES}
MISSING = "cannot open shared object file: No such file or directory"
LOADED = """
import json, sys
sys.path.insert(0, {site!r})
from gluonlab.engine import mxnet_and_cuda_libraries
mxnet_and_cuda_libraries.load_cuda_libraries()
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


def wheel_path(site, soname):
    return site / "nvidia" / BY_SONAME[soname].folder / "lib" / soname


def load_libraries(python, root, site, **environment):
    """Return the files below ``root`` that a process has loaded after load_cuda_libraries."""
    result = python("-c", LOADED.format(site=str(site), root=str(root)), **environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def dlopen_message(path):
    """Return the error in a process that has loaded no other libraries."""
    code = f"import ctypes\ntry:\n    ctypes.CDLL({str(path)!r})\nexcept OSError as error:\n    print(error)"
    command, environment = [sys.executable, "-S", "-c", code], clean_environment(LD_LIBRARY_PATH="")
    process = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=60)
    assert process.stdout.strip(), process.stderr
    return process.stdout.strip()


# --- which of several is loaded


def test_libraries_in_ld_library_path_precede_wheels(python, tmp_path):
    site, system = tmp_path / "site", tmp_path / "cuda-11.2"
    wheels = [write_library(wheel_path(site, soname)) for soname in BY_SONAME]
    users = [write_library(system / soname) for soname in ("libcudart.so.11.0", "libcublas.so.11")]
    others = [path for path in wheels if path.name not in {path.name for path in users}]
    result = load_libraries(python, tmp_path, site, LD_LIBRARY_PATH=f"{tmp_path}/nothing::{system}")
    assert result == sorted(map(str, [*users, *others]))
    assert load_libraries(python, tmp_path, site, LD_LIBRARY_PATH="") == sorted(map(str, wheels))


def test_without_wheels_the_linker_finds_the_other_libraries(python, tmp_path):
    cuda = tmp_path / "cuda"
    users = [write_library(cuda / soname) for soname in ("libcudart.so.11.0", "libcurand.so.10")]
    result = load_libraries(python, tmp_path, tmp_path / "site", LD_LIBRARY_PATH=str(cuda))
    assert result == sorted(map(str, users))


def test_the_origin_of_a_library_and_its_wheel(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    environ, cudnn = {"LD_LIBRARY_PATH": f"{tmp_path}/missing:{tmp_path}/link"}, wheel_path(tmp_path, "libcudnn.so.8")
    for path, origin in {
        tmp_path / "real" / "libx.so.1": "LD_LIBRARY_PATH",
        tmp_path / "mxnet" / "libopenblas.so.0": "mxnet",
        cudnn: "wheel",
        tmp_path / "other" / "libc.so.6": "system",
    }.items():
        assert library_origin(path, environ) == origin
    assert mxnet_and_cuda_libraries.owning_wheel(cudnn.with_name("libcudnn.so.9")) == "nvidia-cudnn-cu11"
    assert mxnet_and_cuda_libraries.owning_wheel(tmp_path / "cudnn" / "lib" / "libcudnn.so.8") == ""


# --- errors of the linker, and their causes


def test_a_missing_library_whose_other_version_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    twelve = write_library(tmp_path / "cuda-12" / "libcublas.so.12")
    user = write_library(tmp_path / "user.so", needed=["libcublas.so.11"])
    complaint = diagnose_linker_error(dlopen_message(user), {"LD_LIBRARY_PATH": str(twelve.parent)})
    assert complaint.library == "libcublas.so.11"
    assert complaint.cause.startswith(f"{twelve} is another version")
    assert "nvidia-cublas-cu11, which contains it: " + pip_install_command("cu112") in complaint.cure
    assert diagnose_linker_error(dlopen_message(user), {}).cause == ""


@pytest.mark.parametrize(
    ("soname", "wrong", "wheel"),
    [
        ("libcudnn.so.8", "libcudnn.so.9", "'nvidia-cudnn-cu11<9'"),
        ("libcudart.so.11.0", "libcudart.so.12", "nvidia-cuda-runtime-cu11"),
    ],
)
def test_a_wheel_of_another_version_in_the_same_folder(tmp_path, monkeypatch, soname, wrong, wheel):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    other = write_library(wheel_path(tmp_path, soname).with_name(wrong))
    complaint = diagnose_linker_error(f"{soname}: {MISSING}", {})
    assert complaint.cause.startswith(f"{other} is another version")
    assert complaint.cure == f"pip install --force-reinstall --no-deps {wheel}"


def test_a_wheel_that_has_lost_its_file_is_installed_again(tmp_path, monkeypatch):
    # pip install alone would report that the requirement is satisfied.
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    info, reinstall = (
        tmp_path / "nvidia_cudnn_cu11-8.9.6.50.dist-info",
        "--force-reinstall --no-deps 'nvidia-cudnn-cu11<9'",
    )
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cudnn-cu11\nVersion: 8.9.6.50\n")
    assert diagnose_linker_error(f"libcudnn.so.8: {MISSING}", {}).cure.endswith(f"pip install {reinstall}")
    write_library(wheel_path(tmp_path, "libcudnn.so.8"))
    assert diagnose_linker_error(f"libcudnn.so.8: {MISSING}", {}).cure.endswith(pip_install_command("cu112"))


def test_a_file_with_the_full_version_is_not_another_version(tmp_path):
    for name in ("libcudart.so", "libcudart.so.11.0", "libcudart.so.11.0.221"):
        write_library(tmp_path / name)
    assert mxnet_and_cuda_libraries.find_other_versions("libcudart.so.11.0", {"LD_LIBRARY_PATH": str(tmp_path)}) == []


def test_a_system_cuda_that_the_linker_does_not_know(tmp_path, monkeypatch):
    monkeypatch.setattr(linker_errors, "SYSTEM_CUDA_ROOT", tmp_path)
    path = write_library(tmp_path / "cuda-11.2" / "lib64" / "libcufft.so.10")
    complaint = diagnose_linker_error(f"libcufft.so.10: {MISSING}", {})
    assert complaint.cause == f"{path} exists, but the linker does not search its folder"
    assert f"export LD_LIBRARY_PATH={path.parent}" in complaint.cure


def test_a_library_that_lacks_a_symbol(tmp_path):
    user = write_library(tmp_path / "libcublas.so.11", undefined=["cublasLtGetStatusString"])
    complaint = diagnose_linker_error(dlopen_message(user), {"LD_LIBRARY_PATH": str(tmp_path)})
    assert complaint.library == "libcublas.so.11"
    assert "none of them contains cublasLtGetStatusString" in complaint.cause
    assert complaint.cure.startswith(f"remove {tmp_path} from LD_LIBRARY_PATH")


def test_a_symbol_with_a_version_names_the_library_that_should_have_it(tmp_path):
    old = write_library(tmp_path / "old" / "libcublasLt.so.11")
    user = wheel_path(tmp_path, "libcublas.so.11")
    message = f"{user}: undefined symbol: cublasLtGetStatusString, version libcublasLt.so.11"
    complaint = diagnose_linker_error(message, {"LD_LIBRARY_PATH": str(old.parent)})
    assert complaint.library == "libcublasLt.so.11"
    assert f"{old} is not the version that {user} needs: it does not contain cublasLtGetStatusString" in complaint.cause
    assert f"remove {old.parent} from LD_LIBRARY_PATH" in complaint.cure


TAKE_OUT = "remove /opt/old from LD_LIBRARY_PATH"
NOT_OPENED, NOT_MAPPED = "cannot open shared object file", "failed to map segment from shared object"


@pytest.mark.parametrize(
    ("message", "library", "cause", "cure"),
    [
        ("/opt/old/libstdc++.so.6: version `GLIBCXX_3' not found", "libstdc++.so.6", "GLIBCXX_3", TAKE_OUT),
        ("/a/libmxnet.so: undefined symbol: _ZTVN10, version CXXABI_1.3", "libstdc++.so.6", "not contain _ZTVN10", ""),
        ("/a/libmxnet.so: undefined symbol: omp_x, version OMP_1.0", "libgomp.so.1", "not contain omp_x", ""),
        ("/opt/old/libnccl.so.2: file too short", "libnccl.so.2", "file too short", TAKE_OUT),
        ("/opt/old/libnccl.so.2: wrong ELF class: X", "libnccl.so.2", "class: X", TAKE_OUT),
        ("a: /opt/old/libx.so.1: no version information available (", "libx.so.1", "no versions", TAKE_OUT),
        (f"libpython3.11.so.1.0: {MISSING}", "libpython3.11.so.1.0", "", ""),
        (f"/a/libx.so.8: {NOT_OPENED}: Permission denied", "libx.so.8", "Permission denied", "make it readable"),
        (f"libx.so.8: {NOT_OPENED}: Too many open files", "libx.so.8", "Too many open files", "fix that"),
        (f"/a/libx.so: {NOT_MAPPED}: Operation not permitted", "libx.so", "not permitted", "noexec"),
        (f"/a/libx.so: {NOT_MAPPED}", "libx.so", "no reason", "noexec"),
        ("/a/libx.so: cannot enable executable stack as shared object requires: X", "libx.so", "stack", "patchelf"),
        ("/a/libx.so.1: cannot allocate memory in static TLS block", "libx.so.1", "too late", "import gluonlab and mx"),
        ("/a/libgomp.so.1: something else", "libgomp.so.1", "something else", "reinstall"),
    ],
)
def test_messages_of_the_linker_are_understood(message, library, cause, cure):
    complaint = diagnose_linker_error(message, {"LD_LIBRARY_PATH": "/opt/old"})
    assert (complaint.library, cause in complaint.cause) == (library, True)
    assert complaint.cure.startswith(cure) if cure == TAKE_OUT else cure in complaint.cure
    if message.startswith("/a/libx") or "something" in message:  # a library that exists is not called missing
        assert "apt-get" not in complaint.cure


def test_a_file_that_is_not_a_library_is_named_and_replaced(tmp_path):
    path = wheel_path(tmp_path, "libnccl.so.2")
    path.parent.mkdir(parents=True)
    path.write_text("no library")
    complaint = diagnose_linker_error(dlopen_message(path), {})
    assert complaint.library == "libnccl.so.2"
    assert f"{path} is not a library for this machine" in complaint.cause
    assert complaint.cure.startswith("pip install --force-reinstall --no-deps nvidia-nccl-cu11")


@pytest.mark.parametrize("message", ["", "out of memory", "No module named 'x'"])
def test_other_messages_are_ignored(message):
    assert diagnose_linker_error(message) is None


# --- errors of the engine


def make_cu112(folder, code):
    """Make an environment without wheels, whose mxnet-cu112 runs ``code`` when it is imported."""
    environment = VirtualEnvironment(folder, without=["mxnet"])
    environment.add_package("mxnet", code)
    environment.add_distribution("mxnet-cu112")
    return environment


def test_the_engines_error_names_the_wrong_version_in_ld_library_path(tmp_path):
    environment, system = make_cu112(tmp_path, "raise SystemExit('mxnet was begun')"), tmp_path / "cuda"
    users = write_library(system / "libcublas.so.11", undefined=["cublasLtShutdownCtx"])
    write_library(wheel_path(environment.site, "libcublas.so.11"))
    message = environment.run_python("-c", IMPORT, LD_LIBRARY_PATH=str(system)).stdout.strip()
    assert message.startswith(f"mxnet cannot load libcublas.so.11: {users} does not fit")
    assert f"remove {system} from LD_LIBRARY_PATH" in message
    assert "\n" not in message


def test_the_engines_error_names_cudnn_9(tmp_path):
    environment = make_cu112(tmp_path, "import ctypes\nctypes.CDLL('libcudnn.so.8')")
    nine = write_library(wheel_path(environment.site, "libcudnn.so.8").with_name("libcudnn.so.9"))
    message = environment.run_python("-c", IMPORT).stdout
    assert f"mxnet cannot load libcudnn.so.8: {nine} is another version" in message
    assert "pip install --force-reinstall --no-deps 'nvidia-cudnn-cu11<9'" in message
