"""python tests/gpus/build.py FOLDER: make the libraries of a simulated CUDA machine, for the
mxnet-cu112 of this Python.

It needs g++ and make, and the headers that the nvidia-*-cu11 wheels hold; the extra
``simulated-gpus`` of setup.py adds the compiler's own. What is up to date is not made again.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent


def build(folder):
    """Make them in ``folder``, which may be in LD_LIBRARY_PATH then."""
    site = Path(sysconfig.get_paths()["purelib"])
    mxnet = site / "mxnet" / "libmxnet.so"
    includes = sorted(path for path in (site / "nvidia").glob("*/include") if path.is_dir())
    if not mxnet.is_file() or not (site / "nvidia" / "cuda_nvcc" / "include" / "crt").is_dir():
        sys.exit(
            "error: the simulated GPUs are made for mxnet-cu112, with CUDA's headers: "
            "pip install '.[cu112,simulated-gpus]'"
        )
    arguments = [f"OUT={Path(folder).resolve()}", f"MXNET={mxnet}", f"PYTHON={sys.executable}"]
    arguments.append("INCLUDES=" + " ".join(map(str, includes)))
    process = subprocess.run(["make", "--silent", "-C", str(HERE), f"-j{os.cpu_count()}", *arguments], check=False)
    sys.exit(process.returncode)


if __name__ == "__main__":
    build(sys.argv[1])
