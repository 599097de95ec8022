"""The CUDA libraries that mxnet-cu112 needs, loaded from the nvidia-*-cu11 wheels.

libmxnet.so names its libraries by soname only. Loading them first, by path and with global symbols,
makes it start on a machine that has a driver but no CUDA, and without LD_LIBRARY_PATH.
Order and list: what libmxnet.so 1.9.1 (cu112) and these wheels name as NEEDED, dependencies first.
"""

from __future__ import annotations

import ctypes
import site
import sys
from pathlib import Path
from typing import Iterator, NamedTuple


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
        if path.is_file():
            return path
    return None


def load_cuda_libraries() -> None:
    """Load every CUDA library that a wheel provides; those of the system are left to the linker.

    Raises OSError, in the linker's own words, for a library that is there but cannot be loaded.
    """
    for library in LIBRARIES:
        path = wheel_path(library)
        if path is not None:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
