"""Whether this machine's driver runs what NVRTC compiles: MXNet's fused operators.

On GPUs MXNet 1.9.1 fuses pointwise operators: it writes their source when it meets them, NVRTC
compiles that to PTX, and the driver compiles the PTX for the GPU. NVRTC writes PTX of its own CUDA,
whatever GPU it is for, and a driver takes PTX up to that of the CUDA of its time: the NVRTC 11.8 of
the wheels needs a driver of R520 or newer. An older one says "the provided PTX was compiled with an
unsupported toolchain", and the run ends. All else of CUDA 11 runs from 450.80.02 on (NVIDIA, CUDA
compatibility: minor versions, and their limit for PTX).
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Optional

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
        knows = f"the driver knows CUDA {in_words(self.driver)}"
        takes = "and runs" if self.fit else "and does not run"
        return f"{knows} {takes} what NVRTC {in_words(self.compiler)} compiles"


def versions() -> Versions:
    """The Versions of the libraries that are loaded or that the linker finds; no GPU is touched."""
    return Versions(_driver(), _compiler())


def in_words(version: Optional[int]) -> str:
    """``11.8`` of 11080."""
    return "?" if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _driver() -> Optional[int]:
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL(DRIVER).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):  # none, which MXNet will say; or a stand-in that lacks it
        return None
    return version.value if status == SUCCESS and version.value else None


def _compiler() -> Optional[int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        status = ctypes.CDLL(COMPILER).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except (OSError, AttributeError):
        return None
    return major.value * 1000 + minor.value * 10 if status == SUCCESS else None
