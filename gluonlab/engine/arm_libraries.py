"""Loads OpenBLAS in place of Arm Performance Libraries, which MXNet's wheel for ARM Linux needs.

libmxnet.so 1.9.1 for aarch64 has NEEDED entries for three libraries (`ARM_LIBRARIES`) that are not
on PyPI or in Linux distributions. It calls only their CBLAS, LAPACK and LAPACKE functions, which
OpenBLAS also has. The dynamic linker accepts any loaded library with the right soname. So
`load_arm_libraries` writes a small library for each name (`make_stand_in_library`), which contains
nothing but its soname and a reference to OpenBLAS.

OpenBLAS is the first of these that exists:

1. the wheel cmeel-openblas, which gluonlab's extra ``cpu`` installs on Python 3.10 and newer;
2. the system's libopenblas.so.0 and liblapacke.so.3 (Debian: libopenblas0 and liblapacke).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import tempfile
from pathlib import Path
from typing import List, Sequence

from gluonlab.errors import EngineError

ARM_LIBRARIES = ("libarmpl_lp64_mp.so", "libamath.so", "libastring.so")
WHEEL_LIBRARY = Path("cmeel.prefix", "lib", "libopenblas.so.0")  # below a folder of sys.path
# Debian builds LAPACKE as a library of its own.
SYSTEM_LIBRARIES = ("libopenblas.so.0", "liblapacke.so.3")
# Functions that libmxnet.so needs; OpenBLAS can be built without the last two kinds.
REQUIRED_FUNCTIONS = ("cblas_sgemm", "sgetrf_", "LAPACKE_sgetrf")
INSTALL_OPENBLAS = "pip install cmeel-openblas (Python 3.10 or newer), or apt-get install libopenblas0 liblapacke"

# e_machine of ELF files, by platform.machine()
ELF_MACHINES = {"aarch64": 183, "x86_64": 62}
EM_HEADER_BYTES, PROGRAM_HEADER_BYTES, SYMBOL_BYTES, DYNAMIC_ENTRY_BYTES = 64, 56, 24, 16
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
READ_WRITE = 6
DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 0, 1, 4, 5, 6, 10, 11, 14
MAX_PAGE_BYTES = 1 << 16  # ARM kernels may use pages of 64 KiB


def make_stand_in_library(soname: str, needed: Sequence[str], machine: str = platform.machine()) -> bytes:
    """Return an ELF shared library with a soname and NEEDED entries, but without any symbols.

    ``machine``: the name of the processor architecture, a key of `ELF_MACHINES`. The layout is that
    of "Tool Interface Standard (TIS) ELF Specification", version 1.2, with 64-bit fields.
    """
    strings, offsets = b"\0", {}
    for name in (soname, *needed):
        offsets[name] = len(strings)
        strings += name.encode() + b"\0"
    program_headers = 3
    symbols_at = EM_HEADER_BYTES + program_headers * PROGRAM_HEADER_BYTES
    hash_at = symbols_at + SYMBOL_BYTES  # one symbol, the undefined one that every table begins with
    hash_table = struct.pack("<4I", 1, 1, 0, 0)  # one bucket and one chain, both empty
    dynamic_at = hash_at + len(hash_table)
    entries = [(DT_NEEDED, offsets[name]) for name in needed]
    entries += [(DT_SONAME, offsets[soname]), (DT_HASH, hash_at), (DT_SYMTAB, symbols_at), (DT_SYMENT, SYMBOL_BYTES)]
    strings_at = dynamic_at + (len(entries) + 3) * DYNAMIC_ENTRY_BYTES
    entries += [(DT_STRTAB, strings_at), (DT_STRSZ, len(strings)), (DT_NULL, 0)]
    dynamic = b"".join(struct.pack("<2Q", *entry) for entry in entries)
    size = strings_at + len(strings)

    def program_header(kind: int, start: int, length: int, alignment: int) -> bytes:
        return struct.pack("<2I6Q", kind, READ_WRITE, start, start, start, length, length, alignment)

    identification = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little-endian, version 1
    shared_object = 3
    header = identification + struct.pack(
        "<2HI3QI6H", shared_object, ELF_MACHINES[machine], 1, 0, EM_HEADER_BYTES, 0, 0, EM_HEADER_BYTES,
        PROGRAM_HEADER_BYTES, program_headers, 0, 0, 0,
    )  # fmt: skip
    headers = [
        program_header(PT_LOAD, 0, size, MAX_PAGE_BYTES),
        program_header(PT_DYNAMIC, dynamic_at, len(dynamic), 8),
        program_header(PT_GNU_STACK, 0, 0, 16),  # without it the linker makes the stack executable
    ]
    return b"".join([header, *headers, bytes(SYMBOL_BYTES), hash_table, dynamic, strings])


def load_stand_in_library(soname: str, needed: Sequence[str]) -> None:
    """Make the dynamic linker use an empty library wherever ``soname`` is needed.

    ``needed``: sonames of loaded libraries, whose functions replace those of ``soname``.
    """
    with tempfile.TemporaryDirectory(prefix="gluonlab-") as folder:
        path = os.path.join(folder, soname)
        Path(path).write_bytes(make_stand_in_library(soname, needed))
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def is_needed(machine: str = platform.machine(), system: str = platform.system()) -> bool:
    """Return whether MXNet's wheel for this platform needs Arm Performance Libraries."""
    return (machine, system) == ("aarch64", "Linux")


def load_arm_libraries(search_path: Sequence[str]) -> None:
    """Make libmxnet.so for aarch64 loadable: with Arm's libraries if installed, else with OpenBLAS.

    Args:
        search_path: the folders of Python packages, such as ``sys.path``.

    Raises:
        EngineError: There is no OpenBLAS with the `REQUIRED_FUNCTIONS`. The message says what to
            install.
    """
    if _can_load(ARM_LIBRARIES):
        return
    sonames = _load_openblas(search_path)
    for soname in ARM_LIBRARIES:
        load_stand_in_library(soname, sonames)


def _can_load(names: Sequence[str]) -> bool:
    """Load shared libraries by name; return whether all of them exist."""
    try:
        for name in names:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _load_openblas(search_path: Sequence[str]) -> List[str]:
    """Load OpenBLAS and LAPACKE, and return their sonames. Raise EngineError without them."""
    wheel_paths = (str(Path(folder) / WHEEL_LIBRARY) for folder in search_path if folder)
    path = next(filter(os.path.isfile, wheel_paths), None)
    if path is not None and _can_load([path]):
        return [WHEEL_LIBRARY.name]
    loaded = [name for name in SYSTEM_LIBRARIES if _can_load([name])]
    missing = [name for name in REQUIRED_FUNCTIONS if not _is_defined(name)]
    if missing:
        raise EngineError(f"MXNet for ARM needs OpenBLAS with {', '.join(missing)}: {INSTALL_OPENBLAS}")
    return loaded


def _is_defined(function: str) -> bool:
    """Return whether a loaded library defines a C function."""
    return hasattr(ctypes.CDLL(None), function)
