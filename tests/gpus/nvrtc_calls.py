"""NVRTC, called as a C program would: the simulated one here, NVIDIA's in another process."""

import ctypes
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import List, NamedTuple

SONAME = "libnvrtc.so.11.2"
V100 = ["--gpu-architecture=compute_70", "--std=c++11"]  # MXNet's options for one


class Program(NamedTuple):
    source: str
    options: List[str] = V100
    expressions: List[str] = []
    name: str = "made_up.cu"


def compile_program(library, program):
    """Compile a program; return status, log, PTX, its directives, and the kernels' lowered names."""
    library = ctypes.CDLL(library)
    handle, size, name = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_char_p()
    library.nvrtcCreateProgram(ctypes.byref(handle), program.source.encode(), program.name.encode(), 0, None, None)
    for expression in program.expressions:
        library.nvrtcAddNameExpression(handle, expression.encode())
    options = (ctypes.c_char_p * len(program.options))(*[option.encode() for option in program.options])
    status = library.nvrtcCompileProgram(handle, len(options), options)

    def text(kind):
        getattr(library, f"nvrtcGet{kind}Size")(handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(library, f"nvrtcGet{kind}")(handle, buffer)
        assert len(buffer.value) == size.value - 1
        return buffer.value.decode()

    lowered = []
    for expression in program.expressions:
        result = library.nvrtcGetLoweredName(handle, expression.encode(), ctypes.byref(name))
        lowered.append([result, name.value.decode() if result == 0 else ""])
    ptx, log = text("PTX"), text("ProgramLog")
    directives = [line for line in ptx.splitlines() if line.startswith((".version", ".target", ".address_size"))]
    library.nvrtcDestroyProgram(ctypes.byref(handle))
    return {"status": status, "log": log, "directives": directives, "lowered": lowered, "ptx": ptx}


def compile_simulated(program):
    return compile_program(SONAME, program)


def compile_with_nvidia(programs):
    """Compile all programs by NVIDIA's library, in a process that has real libraries only."""
    library = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cuda_nvrtc" / "lib" / SONAME
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    process = subprocess.run(
        [sys.executable, __file__, str(library)], input=json.dumps(programs), stdout=subprocess.PIPE, env=environment,
        check=True, encoding="utf-8", timeout=300,
    )  # fmt: skip
    return json.loads(process.stdout)


if __name__ == "__main__":
    print(json.dumps([compile_program(sys.argv[1], Program(*program)) for program in json.load(sys.stdin)]))
