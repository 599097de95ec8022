"""What is installed: which MXNet, the CUDA libraries that it needs, and what its driver can run."""

from __future__ import annotations

import ctypes
import os
import site
import sys
from contextlib import suppress
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Optional, Tuple

# setup.py's extras for Python 3.8 to 3.12. From 3.13 on there is no numpy that MXNet's metadata
# allows (numpy<2), so that pip refuses them; MXNet without its metadata works with the numpy that
# gluonlab brings.
WITHOUT_METADATA = {
    "cpu": "pip install --no-deps mxnet==1.9.1",
    "cu112": "pip install 'gluonlab[cuda11]' && pip install --no-deps mxnet-cu112==1.9.1",
}
FLAVOURS = ("mxnet", "mxnet-cu112")
AGAIN = (
    "install MXNet again: pip install --force-reinstall --no-deps mxnet==1.9.1, "
    "or mxnet-cu112==1.9.1"
)


def pip_install(extra: str, version: Tuple[int, ...] = sys.version_info[:2]) -> str:
    """The command that adds an extra such as ``cpu`` to an installed gluonlab under this Python."""
    if version >= (3, 13) and extra in WITHOUT_METADATA:
        return WITHOUT_METADATA[extra]
    return f"pip install 'gluonlab[{extra}]'"


def either(version: Tuple[int, ...] = sys.version_info[:2]) -> str:
    """Both commands in words, and which is for whom."""
    on_gpus = f"on a machine with NVIDIA GPUs {pip_install('cu112', version)}"
    return f"{pip_install('cpu', version)}, or {on_gpus}"


def flavours() -> Tuple[str, ...]:
    """The MXNet distributions that are installed: normally one of FLAVOURS."""
    import importlib.metadata  # not for those who only import gluonlab: it takes as long as that

    found = []
    for name in FLAVOURS:
        with suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.distribution(name)
            found.append(name)
    return tuple(found)


# The CUDA libraries that mxnet-cu112 needs: the user's, the nvidia-*-cu11 wheels', the system's.
#
# libmxnet.so names its libraries by soname only. Loading them first, by path and with global
# symbols, makes it start on a machine that has a driver but no CUDA, and without LD_LIBRARY_PATH.
# Each library is taken from where it is found first:
#
# 1. a folder of LD_LIBRARY_PATH: what the user has put there wins, as with every program;
# 2. the wheels;
# 3. where the linker looks by itself: the system's CUDA 11.x.
#
# All CUDA 11.x have the same sonames, so the three can be mixed. Order and list: what libmxnet.so
# 1.9.1 (cu112) and these wheels name as NEEDED, dependencies first.


class Library(NamedTuple):
    """A shared library: its soname, and the wheel and folder below ``nvidia/`` that hold it."""

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
WHEEL_OF = {library.soname: library.wheel for library in LIBRARIES}


def _site_folders() -> Iterator[Path]:
    yield from (Path(folder) for folder in sys.path if folder)
    if site.ENABLE_USER_SITE:
        yield Path(site.getusersitepackages())


def wheel_path(library: Library) -> "Path | None":
    """Where a wheel put the library, or None when that wheel is not installed."""
    for folder in _site_folders():
        path = folder / "nvidia" / library.folder / "lib" / library.soname
        if os.path.isfile(path):
            return path
    return None


def search_path(environ: Mapping[str, str] = os.environ) -> List[Path]:
    """The folders of LD_LIBRARY_PATH."""
    folders = environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    return [Path(folder) for folder in folders if folder]


def users_path(library: Library, environ: Mapping[str, str] = os.environ) -> "Path | None":
    """Where LD_LIBRARY_PATH has the library, or None."""
    paths = (folder / library.soname for folder in search_path(environ))
    return next((path for path in paths if os.path.isfile(path)), None)


def wheel_of(path: Path) -> str:
    """The wheel that such a file belongs to, or an empty string."""
    folder = path.parent.parent
    wheels = {library.folder: library.wheel for library in LIBRARIES}
    return wheels.get(folder.name, "") if folder.parent.name == "nvidia" else ""


def wheel_folders() -> List[Path]:
    """The folders of the wheels that hold at least one of LIBRARIES."""
    paths = [wheel_path(library) for library in LIBRARIES]
    return list(dict.fromkeys(path.parent for path in paths if path is not None))


def other_versions(soname: str, environ: Mapping[str, str] = os.environ) -> List[Path]:
    """Files of the same library with another number: libcudnn.so.9 for libcudnn.so.8.

    They are looked for in LD_LIBRARY_PATH and the wheels.
    """
    stem = soname.partition(".so")[0] + ".so."
    folders = search_path(environ)
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
    """Load every CUDA library of LD_LIBRARY_PATH or of a wheel; the linker finds the system's.

    Raises OSError, in the linker's own words, for a library that is there but cannot be loaded.
    """
    for library in LIBRARIES:
        path = users_path(library) or wheel_path(library)
        if path is not None:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


# Whether this machine's driver runs what NVRTC compiles: MXNet's fused operators.
#
# On GPUs MXNet 1.9.1 fuses pointwise operators: it writes their source when it meets them, NVRTC
# compiles that to PTX, and the driver compiles the PTX for the GPU. NVRTC writes PTX of its own
# CUDA, whatever GPU it is for, and a driver takes PTX up to that of the CUDA of its time: the NVRTC
# 11.8 of the wheels needs a driver of R520 or newer. An older one says "the provided PTX was
# compiled with an unsupported toolchain", and the run ends. All else of CUDA 11 runs from 450.80.02
# on (NVIDIA, CUDA compatibility: minor versions, and their limit for PTX).


COMPILER, DRIVER = "libnvrtc.so.11.2", "libcuda.so.1"
SUCCESS = 0  # of nvrtcResult and CUresult


class Versions(NamedTuple):
    """The newest CUDA that the driver knows, and that of the NVRTC that MXNet uses: 11080 is 11.8.

    None where it is unknown.
    """

    driver: Optional[int]
    compiler: Optional[int]

    @property
    def fit(self) -> bool:
        """Whether the driver runs what NVRTC compiles; true where a version is unknown."""
        return self.driver is None or self.compiler is None or self.driver >= self.compiler

    def __str__(self) -> str:
        knows = f"the driver knows CUDA {version_in_words(self.driver)}"
        takes = "and runs" if self.fit else "and does not run"
        return f"{knows} {takes} what NVRTC {version_in_words(self.compiler)} compiles"


def cuda_versions() -> Versions:
    """The Versions of the libraries that are loaded or that the linker finds; no GPU is touched."""
    return Versions(_driver_version(), _compiler_version())


def version_in_words(version: Optional[int]) -> str:
    """``11.8`` of 11080."""
    return "?" if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _driver_version() -> Optional[int]:
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL(DRIVER).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):  # none, which MXNet will say; or a stand-in that lacks it
        return None
    return version.value if status == SUCCESS and version.value else None


def _compiler_version() -> Optional[int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        status = ctypes.CDLL(COMPILER).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except (OSError, AttributeError):
        return None
    return major.value * 1000 + minor.value * 10 if status == SUCCESS else None
