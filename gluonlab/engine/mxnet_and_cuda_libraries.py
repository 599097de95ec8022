"""Finds the installed MXNet, loads its CUDA libraries, and checks the GPU driver's version."""

from __future__ import annotations

import ctypes
import os
import site
import sys
from contextlib import suppress
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Optional, Tuple

# setup.py's extras install MXNet on Python 3.8 to 3.12. MXNet's metadata requires numpy<2, which
# does not exist for Python 3.13, so pip refuses the extras. MXNet works with numpy 2 under
# gluonlab, and --no-deps makes pip ignore the metadata.
PIP_WITHOUT_METADATA = {
    "cpu": "pip install --no-deps mxnet==1.9.1",
    "cu112": "pip install 'gluonlab[cuda11]' && pip install --no-deps mxnet-cu112==1.9.1",
}
MXNET_DISTRIBUTIONS = ("mxnet", "mxnet-cu112")
REINSTALL_MXNET = "install MXNet again: pip install --force-reinstall --no-deps mxnet==1.9.1, or mxnet-cu112==1.9.1"


def pip_install_command(extra: str, version: Tuple[int, ...] = sys.version_info[:2]) -> str:
    """Return the pip command that installs MXNet with an extra: ``cpu``, or ``cu112`` for GPUs.

    ``version``: the version of Python, such as (3, 11).
    """
    if version >= (3, 13) and extra in PIP_WITHOUT_METADATA:
        return PIP_WITHOUT_METADATA[extra]
    return f"pip install 'gluonlab[{extra}]'"


def pip_install_choices(
    version: Tuple[int, ...] = sys.version_info[:2], system: str = sys.platform, machine: Optional[str] = None
) -> str:
    """Return text with the commands that install MXNet for CPUs and, on x86-64 Linux, for GPUs.

    ``machine``: the name of the processor architecture. The default is this machine's architecture.
    """
    machine = os.uname().machine if machine is None else machine
    if (system, machine) == ("darwin", "arm64"):
        return "MXNet has no wheel for Apple silicon, so use a Linux container (see gluonlab's docs/install.md)"
    on_gpus = f", or, on a machine with NVIDIA GPUs, {pip_install_command('cu112', version)}"
    return f"run {pip_install_command('cpu', version)}" + on_gpus * has_cuda_build(system, machine)


def has_cuda_build(system: str = sys.platform, machine: Optional[str] = None) -> bool:
    """Return whether MXNet 1.9.1 has a wheel with CUDA for this platform.

    ``machine``: the name of the processor architecture. The default is this machine's architecture.
    """
    return (system, os.uname().machine if machine is None else machine) == ("linux", "x86_64")


def cuda_build_advice(system: str = sys.platform, machine: Optional[str] = None) -> str:
    """Return text that says how to replace MXNet's CPU build with its CUDA build, if there is one."""
    if not has_cuda_build(system, machine):
        return "MXNet has CUDA builds only for Linux on x86-64"
    return f"on a machine with GPUs, run pip uninstall -y mxnet, then {pip_install_command('cu112')}"


def installed_distributions() -> Tuple[str, ...]:
    """Return the installed packages among MXNET_DISTRIBUTIONS, normally just one."""
    import importlib.metadata  # here, because it would double the time of `import gluonlab`

    installed = []
    for name in MXNET_DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.distribution(name)
            installed.append(name)
    return tuple(installed)


def needs_arm_libraries(system: str = sys.platform, machine: Optional[str] = None) -> bool:
    """Return whether MXNet's wheel for this platform needs Arm Performance Libraries.

    ``machine``: the name of the processor architecture; by default, this machine's.
    """
    return system == "linux" and (os.uname().machine if machine is None else machine) == "aarch64"


# The CUDA libraries that mxnet-cu112 needs.
#
# libmxnet.so refers to its libraries by soname. If gluonlab first loads the libraries by path, with
# global symbols, MXNet needs neither an installed CUDA nor LD_LIBRARY_PATH, but only a driver.
# Each library is loaded from the first of these places:
#
# 1. a folder of LD_LIBRARY_PATH, which has precedence as in every program;
# 2. the nvidia-*-cu11 wheels;
# 3. the linker's default folders, with the system's CUDA 11.x.
#
# Libraries of different places can be mixed, because all CUDA 11.x have the same sonames. LIBRARIES
# contains the NEEDED entries of libmxnet.so 1.9.1 (cu112) and of the wheels, dependencies first.


class Library(NamedTuple):
    """A shared library: its soname, its wheel, and its folder below ``nvidia/`` in the wheel."""

    soname: str
    wheel: str
    folder: str


LIBRARIES = (
    Library("libcudart.so.11.0", "nvidia-cuda-runtime-cu11", "cuda_runtime"),
    Library("libnvrtc.so.11.2", "nvidia-cuda-nvrtc-cu11", "cuda_nvrtc"),
    Library("libnvToolsExt.so.1", "nvidia-nvtx-cu11", "nvtx"),
    Library("libcublasLt.so.11", "nvidia-cublas-cu11", "cublas"),
    Library("libcublas.so.11", "nvidia-cublas-cu11", "cublas"),
    Library("libcufft.so.10", "nvidia-cufft-cu11", "cufft"),
    Library("libcurand.so.10", "nvidia-curand-cu11", "curand"),
    Library("libcusparse.so.11", "nvidia-cusparse-cu11", "cusparse"),
    Library("libcusolver.so.11", "nvidia-cusolver-cu11", "cusolver"),
    Library("libcudnn.so.8", "nvidia-cudnn-cu11", "cudnn"),
    Library("libnccl.so.2", "nvidia-nccl-cu11", "nccl"),
)
WHEEL_BY_SONAME = {library.soname: library.wheel for library in LIBRARIES}


def _site_folders() -> Iterator[Path]:
    yield from (Path(folder) for folder in sys.path if folder)
    if site.ENABLE_USER_SITE:
        yield Path(site.getusersitepackages())


def path_in_wheel(library: Library) -> "Path | None":
    """Return the path of a library in its wheel, or None if the wheel is not installed."""
    for folder in _site_folders():
        path = folder / "nvidia" / library.folder / "lib" / library.soname
        if os.path.isfile(path):
            return path
    return None


def ld_library_path_folders(environ: Mapping[str, str] = os.environ) -> List[Path]:
    """Return the folders in LD_LIBRARY_PATH."""
    folders = environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    return [Path(folder) for folder in folders if folder]


def path_in_ld_library_path(library: Library, environ: Mapping[str, str] = os.environ) -> "Path | None":
    """Return the path of a library in a folder in LD_LIBRARY_PATH, or None."""
    paths = (folder / library.soname for folder in ld_library_path_folders(environ))
    return next((path for path in paths if os.path.isfile(path)), None)


def owning_wheel(path: Path) -> str:
    """Return the name of the CUDA wheel that contains the file ``path``; "" if there is none."""
    folder = path.parent.parent
    wheels = {library.folder: library.wheel for library in LIBRARIES}
    return wheels.get(folder.name, "") if folder.parent.name == "nvidia" else ""


def wheel_folders() -> List[Path]:
    """Return the folders of LIBRARIES in the installed wheels."""
    paths = [path_in_wheel(library) for library in LIBRARIES]
    return list(dict.fromkeys(path.parent for path in paths if path is not None))


def find_other_versions(soname: str, environ: Mapping[str, str] = os.environ) -> List[Path]:
    """Return the files of other versions of a library, such as libcudnn.so.9 for libcudnn.so.8.

    Searches LD_LIBRARY_PATH and the wheels.
    """
    stem = soname.partition(".so")[0] + ".so."
    folders = ld_library_path_folders(environ)
    for library in LIBRARIES:
        if library.soname == soname:
            folders += [folder / "nvidia" / library.folder / "lib" for folder in _site_folders()]
    return [
        path
        for folder in dict.fromkeys(folders)
        if os.path.isdir(folder)
        for path in sorted(folder.glob(stem + "*"))
        if not f"{path.name}.".startswith(f"{soname}.")
    ]


def load_cuda_libraries() -> None:
    """Load LIBRARIES from LD_LIBRARY_PATH or the wheels.

    Libraries that are in neither are left to the linker, which searches the system's folders.
    Raises OSError with the linker's message for a library that exists but cannot be loaded.
    """
    for library in LIBRARIES:
        path = path_in_ld_library_path(library) or path_in_wheel(library)
        if path is not None:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


# Compatibility of the driver with NVRTC, which compiles MXNet's fused operators.
#
# On GPUs MXNet 1.9.1 fuses pointwise operators in three steps. MXNet generates CUDA source, NVRTC
# compiles the source to PTX, and the driver compiles the PTX for the GPU. The PTX has the CUDA
# version of NVRTC, and a driver accepts PTX up to its own CUDA version.
#
# The NVRTC 11.8 of the wheels needs driver R520 or newer. With an older driver the run fails with
# "the provided PTX was compiled with an unsupported toolchain". All other libraries of CUDA 11 run
# with driver 450.80.02 or newer (see "minor version compatibility" in NVIDIA's documentation).


NVRTC_LIBRARY, DRIVER_LIBRARY = "libnvrtc.so.11.2", "libcuda.so.1"
SUCCESS = 0  # value of nvrtcResult and CUresult


class CudaVersions(NamedTuple):
    """The CUDA versions of the GPU driver and of NVRTC, such as 11080 for 11.8; None if unknown.

    Args:
        driver: the newest CUDA version that the driver supports
        compiler: the CUDA version of NVRTC, which compiles MXNet's fused operators
    """

    driver: Optional[int]
    compiler: Optional[int]

    @property
    def are_compatible(self) -> bool:
        """Whether the driver can run NVRTC's output. True if one of the versions is unknown."""
        return self.driver is None or self.compiler is None or self.driver >= self.compiler

    def __str__(self) -> str:
        driver, compiler = format_cuda_version(self.driver), format_cuda_version(self.compiler)
        verb = "runs" if self.are_compatible else "does not run"
        return f"the driver supports CUDA {driver} and {verb} code that NVRTC {compiler} compiles"


def cuda_versions() -> CudaVersions:
    """Return the CUDA versions of the driver and NVRTC, without initializing a GPU."""
    return CudaVersions(_driver_cuda_version(), _nvrtc_cuda_version())


def format_cuda_version(version: Optional[int]) -> str:
    """Format a CUDA version: ``11.8`` for 11080, ``?`` for None."""
    return "?" if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _driver_cuda_version() -> Optional[int]:
    """Return the newest CUDA version for the driver, such as 11080; None without a driver."""
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL(DRIVER_LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):  # no driver, or a stub library without this function
        return None
    return version.value if status == SUCCESS and version.value else None


def _nvrtc_cuda_version() -> Optional[int]:
    """Return the CUDA version of NVRTC, such as 11080 for 11.8; None without NVRTC."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        status = ctypes.CDLL(NVRTC_LIBRARY).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except (OSError, AttributeError):
        return None
    return major.value * 1000 + minor.value * 10 if status == SUCCESS else None
