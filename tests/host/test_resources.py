"""The instructions that oneDNN uses, and memory that is freed and kept."""

import os
import resource

import pytest

from gluonlab.host import resources
from gluonlab.host.resources import INSTRUCTION_SETS, ISA_LIMIT_VARIABLE, cpu_vendor, instruction_set

ZEN3 = "fpu sse sse2 sse4_1 sse4_2 avx f16c avx2 fma"
SKYLAKE = f"{ZEN3} avx512f avx512dq avx512cd avx512bw avx512vl"


def write_cpuinfo(folder, flags, vendor="AuthenticAMD"):
    text = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: X\nflags\t\t: {flags}\n\n"
    (folder / "cpuinfo").write_text(text + text.replace("processor\t: 0", "processor\t: 1"))
    return folder


@pytest.mark.parametrize(
    "flags, limit, expected",
    [
        *((SKYLAKE, limit, "AVX512_CORE") for limit in (None, "ALL", "AVX512_CORE_VNNI", "no such limit")),
        *((SKYLAKE, limit, limit) for limit in ("AVX2", "SSE41")),
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
    assert instruction_set(environment, write_cpuinfo(tmp_path, flags), "x86_64") == expected


def test_a_cpu_has_its_vendor_and_without_flags_no_instruction_set(tmp_path):
    assert cpu_vendor(write_cpuinfo(tmp_path, ZEN3, "GenuineIntel")) == "GenuineIntel"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # as on ARM
    assert instruction_set({}, tmp_path) == cpu_vendor(tmp_path) == instruction_set({}, tmp_path / "missing") == ""


def test_an_emulator_on_x86_64_has_no_instruction_set_of_x86_64(tmp_path):
    cpuinfo = write_cpuinfo(tmp_path, SKYLAKE)
    assert [instruction_set({}, cpuinfo, machine) for machine in ("x86_64", "aarch64")] == ["AVX512_CORE", ""]


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
def test_onednn_uses_these_instructions(limit, python):
    limits = {} if limit is None else {ISA_LIMIT_VARIABLE: limit}
    output = python("-c", CONVOLVE, DNNL_VERBOSE="1", **limits).stdout
    [choice, *_] = [line for line in output.splitlines() if line.startswith("dnnl_verbose,info,cpu,isa:")]
    assert instruction_set(limits) in INSTRUCTION_SETS
    assert SAYS[instruction_set(limits)] in choice


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
    memory = libc.malloc(SIZE)
    ctypes.memset(memory, 1, SIZE)
    libc.free(memory)
block()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(
    ("how", "variables", "reused"),
    [
        ("keeps", {}, True),
        ("does not", {"MALLOC_TRIM_THRESHOLD_": "0"}, False),
        ("keeps", {"MALLOC_TRIM_THRESHOLD_": "0"}, False),  # the user's variable takes precedence
    ],
)
def test_freed_blocks_are_used_again_without_asking_the_system(how, variables, reused, python):
    """Ten blocks of 20 MiB, one after the other, have 51200 pages."""
    page_faults = int(python("-c", PROGRAM, how, **variables).stdout)
    assert page_faults < 500 if reused else page_faults > 10 * 5120 * 0.5


def test_without_proc_the_peak_of_this_process_comes_from_getrusage(tmp_path):
    """Linux reports the peak in KiB."""
    peak = resources.peak_bytes(os.getpid(), tmp_path / "missing")
    assert peak == pytest.approx(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, rel=0.1)
    assert resources.peak_bytes(os.getppid(), tmp_path / "missing") == 0
    assert resources.child_pids(os.getpid(), tmp_path / "missing") == []


def test_systems_that_do_not_bind_processes_allow_all_cpus(monkeypatch):
    assert resources.allowed_cpus() == os.sched_getaffinity(0)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert resources.allowed_cpus() == {0, 1, 2}
