"""The vector instructions that oneDNN uses, by the CPU's flags and oneDNN's own limit."""

import os
import subprocess
import sys

import pytest

from gluonlab.host.instruction_set import INSTRUCTION_SETS, LIMIT, cpu_vendor, instruction_set

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
    environment = {} if limit is None else {LIMIT: limit}
    assert instruction_set(environment, proc_with(tmp_path, flags)) == expected


def test_a_cpu_without_flags_has_none(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # as on ARM
    assert instruction_set({}, tmp_path) == cpu_vendor(tmp_path) == ""
    assert instruction_set({}, tmp_path / "missing") == ""


def test_the_vendor_is_the_cpus(tmp_path):
    assert cpu_vendor(proc_with(tmp_path, ZEN3, "GenuineIntel")) == "GenuineIntel"


# What oneDNN says of itself in the first line that it prints; its names as in the table.
SAYS = {
    "AVX512_CORE": "AVX-512", "AVX2": "Intel AVX2", "AVX": "Intel AVX", "SSE41": "Intel SSE4.1",
}  # fmt: skip
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
    environment.pop(LIMIT, None)
    environment.update({} if limit is None else {LIMIT: limit})
    told = subprocess.run(
        [sys.executable, "-c", CONVOLVE], env=environment, capture_output=True, encoding="utf-8",
        check=True, timeout=120,
    ).stdout  # fmt: skip
    named = [line for line in told.splitlines() if line.startswith("dnnl_verbose,info,cpu,isa:")]
    ours = instruction_set({} if limit is None else {LIMIT: limit})
    assert ours in INSTRUCTION_SETS
    assert named and SAYS[ours] in named[0]
