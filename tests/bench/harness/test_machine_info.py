"""A record describes the machine: its CPU, and how busy others kept it."""

import textwrap

import pytest

from gluonlab.bench.harness import machine_info
from gluonlab.bench.harness.machine_info import busy_seconds, describe_processor
from gluonlab.host.resources import ISA_LIMIT_VARIABLE, instruction_set

CPUINFO = """
    processor\t: 0
    vendor_id\t: AuthenticAMD
    cpu family\t: 25
    model\t\t: 1
    model name\t: AMD EPYC
    stepping\t: 1
    flags\t\t: fpu sse2 ssse3 fma avx avx2 rdrand
"""


def test_the_load_and_the_processor_are_read_from_the_kernels_files(tmp_path):
    # all ticks except idle and iowait
    assert busy_seconds("cpu  100 20 30 800 10 1 2 3 0 0\ncpu0 1 2 3", ticks_per_second=100) == 1.56
    (tmp_path / "cpuinfo").write_text(textwrap.dedent(CPUINFO))
    flags = ["sse2", "ssse3", "fma", "avx", "avx2"]
    assert describe_processor(tmp_path) == {"vendor": "AuthenticAMD", "family": 25, "model": 1, "flags": flags}
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # as on ARM
    assert describe_processor(tmp_path) == describe_processor(tmp_path / "missing") == {}


@pytest.mark.parametrize("limit", [None, "AVX2"])
def test_the_limit_of_onednn_is_recorded_and_printed_with_what_it_leaves(monkeypatch, limit):
    monkeypatch.delenv(ISA_LIMIT_VARIABLE, raising=False)
    if limit:
        monkeypatch.setenv(ISA_LIMIT_VARIABLE, limit)
    about, lines = machine_info.describe_environment(), machine_info.describe_machine().splitlines()
    assert about.get(ISA_LIMIT_VARIABLE) == limit and about["instruction_set"] == instruction_set()
    assert about["instruction_set"] in " ".join(lines)
    assert (f"{ISA_LIMIT_VARIABLE}={limit}" in " ".join(lines)) == (limit is not None)
    assert max(map(len, lines)) <= 80
