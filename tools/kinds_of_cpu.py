"""Kinds of CPU that benchmark records name. Only figures of one kind can be compared."""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this gluonlab

from gluonlab.host.resources import INSTRUCTION_SETS, ISA_LIMIT_VARIABLE


class CpuKind(NamedTuple):
    """CPUs of one product line and generation, and the instruction set that oneDNN used.

    `limited`: whether DNNL_MAX_CPU_ISA excluded a wider instruction set.
    """

    line: str
    generation: str
    instructions: str
    limited: bool = False

    def __str__(self):
        return f"{self.line}, {self.short_name}" if self.generation else self.short_name

    @property
    def short_name(self):
        """Return the name without the product line."""
        name = self.generation or self.line
        if self.limited:
            return f"{name} limited to {self.instructions}"
        return f"{name} ({self.instructions})" if self.instructions else name


LINES = {"AMD EPYC": "AMD EPYC", "Intel(R) Xeon(R)": "Intel Xeon"}  # by the model name's beginning
INSTRUCTIONS = {"AVX512_CORE": "AVX-512", "SSE41": "SSE4.1"}
# Generations by vendor, family and first and last model (AMD's and Intel's lists of CPUIDs).
GENERATIONS = {
    ("AuthenticAMD", 23, 0x00, 0x2F): "Zen", ("AuthenticAMD", 23, 0x30, 0xFF): "Zen 2",
    ("AuthenticAMD", 25, 0x00, 0x0F): "Zen 3", ("AuthenticAMD", 25, 0x10, 0x1F): "Zen 4",
    ("AuthenticAMD", 25, 0x20, 0x5F): "Zen 3", ("AuthenticAMD", 25, 0x60, 0xAF): "Zen 4",
    ("AuthenticAMD", 26, 0x00, 0xFF): "Zen 5", ("GenuineIntel", 6, 79, 79): "Broadwell",
    ("GenuineIntel", 6, 85, 85): "Skylake", ("GenuineIntel", 6, 106, 108): "Ice Lake",
    ("GenuineIntel", 6, 143, 143): "Sapphire Rapids", ("GenuineIntel", 6, 207, 207): "Emerald Rapids",
}  # fmt: skip
CASCADE_LAKE_FLAG = "avx512_vnni"  # its numbers are Skylake's

ZEN_4 = CpuKind("AMD EPYC", "Zen 4", "AVX-512")
ZEN_4_AVX2 = CpuKind("AMD EPYC", "Zen 4", "AVX2", limited=True)
CASCADE_LAKE = CpuKind("Intel Xeon", "Cascade Lake", "AVX-512")
ZEN_3 = CpuKind("AMD EPYC", "Zen 3", "AVX2")
# Older records contain the model name only. The EPYC was a Zen 4; which Xeon it was is not known.
KINDS_BY_MODEL_NAME = {"AMD EPYC": ZEN_4, "Intel(R) Xeon(R) Processor": CpuKind("Intel Xeon", "model not recorded", "")}


def cpu_kind(about):
    """Return the kind of CPU that the `about` of a record describes."""
    name = about.get("cpu", "unknown CPU")
    if "instruction_set" not in about:
        return KINDS_BY_MODEL_NAME.get(name, CpuKind(name, "", ""))
    line = next((short for start, short in LINES.items() if name.startswith(start)), name)
    instruction_set, processor = about["instruction_set"], about.get("processor", {})
    limited = ISA_LIMIT_VARIABLE in about and instruction_set != _widest_instruction_set(processor.get("flags", ()))
    instructions = INSTRUCTIONS.get(instruction_set, instruction_set) or "no vector instructions"
    return CpuKind(line, _cpu_generation(processor), instructions, limited)


def _widest_instruction_set(flags):
    for name, required_flags in INSTRUCTION_SETS.items():
        if set(required_flags) <= set(flags):
            return name
    return ""


def _cpu_generation(processor):
    vendor, family, model = (processor.get(name) for name in ("vendor", "family", "model"))
    if family is None:
        return ""
    for (known_vendor, known_family, first, last), name in GENERATIONS.items():
        if (vendor, family) == (known_vendor, known_family) and first <= model <= last:
            newer = name == "Skylake" and CASCADE_LAKE_FLAG in processor.get("flags", ())
            return "Cascade Lake" if newer else name
    return f"family {family}, model {model}"
