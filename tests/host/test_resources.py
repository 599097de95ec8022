"""The instructions that oneDNN uses, and memory that is freed and kept."""

import os
import subprocess
import sys

import pytest

from gluonlab.host.resources import INSTRUCTION_SETS, ISA_LIMIT_VARIABLE, cpu_vendor, instruction_set

ZEN3 = "fpu sse sse2 sse4_1 sse4_2 avx f16c avx2 fma"
SKYLAKE = f"{ZEN3} avx512f avx512dq avx512cd avx512bw avx512vl"


def proc_with(folder, flags, vendor="AuthenticAMD"):
    text = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: X\nflags\t\t: {flags}\n\n"
    (folder / "cpuinfo").write_text(text + text.replace("processor\t: 0", "processor\t: 1"))
    return folder


@pytest.mark.parametrize(
    "flags, limit, expected",
    [
        (SKYLAKE, None, "AVX512_CORE"),
        (SKYLAKE, "ALL", "AVX512_CORE"),
        (SKYLAKE, "AVX512_CORE_VNNI", "AVX512_CORE"),
        (SKYLAKE, "AVX2", "AVX2"),
        (SKYLAKE, "SSE41", "SSE41"),
        (SKYLAKE, "no such limit", "AVX512_CORE"),
        (ZEN3, None, "AVX2"),
        (ZEN3, "AVX512_CORE", "AVX2"),
        (ZEN3, "AVX", "AVX"),
        (f"{ZEN3} avx512f", None, "AVX2"),  # as on Knights Landing, without avx512bw
        ("fpu sse sse2 sse4_1", None, "SSE41"),
        ("fpu sse sse2", None, ""),
    ],
)
def test_the_widest_that_the_cpu_has_and_onednn_may_use(tmp_path, flags, limit, expected):
    environment = {} if limit is None else {ISA_LIMIT_VARIABLE: limit}
    assert instruction_set(environment, proc_with(tmp_path, flags)) == expected


def test_a_cpu_without_flags_has_none(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # as on ARM
    assert instruction_set({}, tmp_path) == cpu_vendor(tmp_path) == ""
    assert instruction_set({}, tmp_path / "missing") == ""


def test_the_vendor_is_the_cpus(tmp_path):
    assert cpu_vendor(proc_with(tmp_path, ZEN3, "GenuineIntel")) == "GenuineIntel"


# What oneDNN says of itself in the first line that it prints; its names as in the table.
SAYS = {"AVX512_CORE": "AVX-512", "AVX2": "Intel AVX2", "AVX": "Intel AVX", "SSE41": "Intel SSE4.1"}
CONVOLVE = """
import gluonlab
from mxnet import nd
image, weight = nd.ones((1, 8, 4, 4)), nd.ones((8, 8, 3, 3))
nd.Convolution(image, weight, kernel=(3, 3), num_filter=8, no_bias=True).wait_to_read()
"""


@pytest.mark.cpu_only("oneDNN computes on CPUs")
@pytest.mark.parametrize("limit", [None, "AVX2", "SSE41"])
def test_onednn_uses_these_instructions(limit):
    """oneDNN prints its own choice."""
    environment = {**os.environ, "DNNL_VERBOSE": "1"}
    environment.pop(ISA_LIMIT_VARIABLE, None)
    environment.update({} if limit is None else {ISA_LIMIT_VARIABLE: limit})
    told = subprocess.run(
        [sys.executable, "-c", CONVOLVE], env=environment, capture_output=True, encoding="utf-8",
        check=True, timeout=120,
    ).stdout  # fmt: skip
    named = [line for line in told.splitlines() if line.startswith("dnnl_verbose,info,cpu,isa:")]
    ours = instruction_set({} if limit is None else {ISA_LIMIT_VARIABLE: limit})
    assert ours in INSTRUCTION_SETS
    assert named and SAYS[ours] in named[0]


PROGRAM = """
import ctypes, resource, sys
from gluonlab.host.resources import keep_freed_memory
if sys.argv[1] == "keeps":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
SIZE = 20 * 2**20
def block():
    made = libc.malloc(SIZE)
    ctypes.memset(made, 1, SIZE)
    libc.free(made)
block()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how, **environment):
    """Pages that ten blocks of 20 MiB, one after the other, take from the system."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), **environment},
    )  # fmt: skip
    return int(done.stdout)


def test_freed_blocks_are_used_again_without_asking_the_system():
    assert faults("keeps") < 500 < 10 * 5120 * 0.5 < faults("does not", MALLOC_TRIM_THRESHOLD_="0")


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_"])
def test_what_the_user_has_set_counts(name):
    assert faults("keeps", **{name: "0"}) > 10 * 5120 * 0.5
