"""The vector instructions that oneDNN uses on this CPU."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Mapping, Optional, Tuple

from gluonlab.host.control_groups import PROC, text_of

# Flags of /proc/cpuinfo that oneDNN 2.4 asks for, the widest vectors first: all flags of a row must
# be there. The names are those of its variable DNNL_MAX_CPU_ISA.
INSTRUCTION_SETS = {
    "AVX512_CORE": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "AVX2": ("avx2",),
    "AVX": ("avx",),
    "SSE41": ("sse4_1",),
}
LIMIT = "DNNL_MAX_CPU_ISA"
# For each value of LIMIT that excludes some of these instruction sets: the widest that is left.
WIDEST = {
    "SSE41": "SSE41", "AVX": "AVX", "AVX2": "AVX2", "AVX2_VNNI": "AVX2",
    "AVX512_MIC": "AVX2", "AVX512_MIC_4OPS": "AVX2",
}  # fmt: skip


def instruction_set(environment: Mapping[str, str] = os.environ, proc: Path = PROC) -> str:
    """Return the widest of INSTRUCTION_SETS that oneDNN may use; "" if it may use none of them.

    It reads the kernel's list of flags, and oneDNN's own limit, the variable DNNL_MAX_CPU_ISA.
    """
    flags = cpu_flags(proc)
    names = list(INSTRUCTION_SETS)
    allowed = names[names.index(WIDEST.get(environment.get(LIMIT, ""), names[0])) :]
    for name in allowed:
        if all(flag in flags for flag in INSTRUCTION_SETS[name]):
            return name
    return ""


def cpu_flags(proc: Path = PROC) -> Tuple[str, ...]:
    """Return the flags of the first CPU; empty if the kernel lists none, as on ARM."""
    return tuple(_field("flags", proc).split())


def cpu_vendor(proc: Path = PROC) -> str:
    """Return the vendor that the CPU names, such as GenuineIntel; "" if it names none."""
    return _field("vendor_id", proc)


def cpu_numbers(proc: Path = PROC) -> Optional[Tuple[int, int]]:
    """Return the numbers of the CPU's family and model, such as (25, 17); None if it has none."""
    family, model = _field("cpu family", proc), _field("model", proc)
    return (int(family), int(model)) if family.isdigit() and model.isdigit() else None


def _field(name: str, proc: Path) -> str:
    found = re.search(rf"^{name}\s*:(.*)$", text_of(proc / "cpuinfo"), re.M)
    return found[1].strip() if found else ""
