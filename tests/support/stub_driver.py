"""Fake CUDA driver, whose functions return "no device".

With this libcuda.so.1 mxnet-cu112 can be imported without a GPU, and computes on CPUs.

    PYTHONPATH=tests python tests/support/stub_driver.py FOLDER    # then LD_LIBRARY_PATH=FOLDER
"""

import sys
from pathlib import Path

from support.elf_files import write_library

NO_DEVICE = b"\xb8\x64\x00\x00\x00\xc3"  # mov eax, 100; ret
# lea rax, [rip + 6]; mov [rsi], rax; xor eax, eax; ret; the text: int cuGetErrorString(int, const
# char **)
ERROR_STRING = b"\x48\x8d\x05\x06\x00\x00\x00\x48\x89\x06\x31\xc0\xc3" + b"no device\0"
# The symbols that libmxnet.so 1.9.1 and the libraries of the wheels need.
FUNCTIONS = (
    "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuGraphKernelNodeGetParams", "cuGraphNodeGetType", "cuLaunchKernel",
    "cuModuleGetFunction", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleUnload",
)  # fmt: skip


def write_driver(folder):
    """Write the driver; return the folder for LD_LIBRARY_PATH."""
    functions = {**dict.fromkeys(FUNCTIONS, NO_DEVICE), "cuGetErrorString": ERROR_STRING}
    return write_library(folder / "libcuda.so.1", functions=functions).parent


if __name__ == "__main__":
    print(write_driver(Path(sys.argv[1])))
