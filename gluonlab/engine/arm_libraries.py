"""Supplies OpenBLAS in place of Arm Performance Libraries, which MXNet's wheel for ARM Linux needs.

libmxnet.so 1.9.1 for aarch64 has NEEDED entries for three libraries (`ARM_LIBRARIES`) that are
neither on PyPI nor in Linux distributions. libmxnet.so calls only BLAS and LAPACK functions, which
OpenBLAS also contains (`FUNCTIONS`).

The dynamic linker accepts any loaded library that has the right soname. So `load_arm_libraries`
loads OpenBLAS, and then a stand-in library for each missing name. A stand-in library contains no
code. It only defines the functions as symbols, whose values are the addresses in OpenBLAS.

OpenBLAS is the first of these:

1. the wheel scipy-openblas32, which gluonlab's extra ``cpu`` installs on ARM;
2. the system's libopenblas.so.0 and liblapacke.so.3 (Debian: libopenblas0 and liblapacke).
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Dict, Mapping, Optional, Sequence

from gluonlab.errors import EngineError

ARM_LIBRARIES = ("libarmpl_lp64_mp.so", "libamath.so", "libastring.so")
FUNCTIONS = (
    *(f"cblas_{name}" for name in ("cgemm", "saxpy", "zgemm")),
    *(f"cblas_{kind}{name}" for kind in "ds" for name in ("dot", "gemm", "ger", "syrk", "trmm", "trsm")),
    *(f"{kind}{name}_" for kind in "ds" for name in ("gels", "geqrf", "gesdd", "gesv", "getrf", "posv", "potrf")),
    *(
        f"LAPACKE_{kind}{name}"
        for kind in "ds"
        for name in (
            "geev", "gelqf", "gesdd", "gesv", "gesvd", "getrf", "getri", "orglq", "potrf", "potri", "syevd",
        )
    ),
    "openblas_set_num_threads",  # for `set_openblas_threads`
)  # fmt: skip
# The version must be the version in setup.py, which gives the reason.
OPENBLAS_WHEEL = "scipy-openblas32==0.3.29.0.0"
WHEEL_LIBRARY = "scipy_openblas32/lib/libscipy_openblas.so"  # below a folder of sys.path
WHEEL_PREFIX = "scipy_"  # of the wheel's functions
# Debian's OpenBLAS does not contain the functions of LAPACKE.
SYSTEM_LIBRARIES = ("libopenblas.so.0", "liblapacke.so.3")
INSTALL_OPENBLAS = f"pip install {OPENBLAS_WHEEL}, or apt-get install libopenblas0 liblapacke"

# os.uname, because platform.machine() starts a process on Python 3.8
MACHINE = os.uname().machine
# e_machine of ELF files, by machine. The tests also run on x86-64.
ELF_MACHINES = {"aarch64": 183, "x86_64": 62}
ELF_SHARED_OBJECT = 3
FILE_HEADER_BYTES, PROGRAM_HEADER_BYTES, SYMBOL_BYTES = 64, 56, 24
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
READ_WRITE = 6
DT_NULL, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 0, 4, 5, 6, 10, 11, 14
GLOBAL_FUNCTION, SHN_ABS = 0x12, 0xFFF1
MAX_PAGE_BYTES = 1 << 16  # ARM kernels may use pages of 64 KiB


def load_arm_libraries(search_path: Sequence[str]) -> None:
    """Make libmxnet.so for aarch64 loadable: with Arm's libraries if installed, else with OpenBLAS.

    Args:
        search_path: the folders of Python packages, such as ``sys.path``.

    Raises:
        EngineError: There is no OpenBLAS with all `FUNCTIONS`. The message names the commands that
            install OpenBLAS.
    """
    missing = [soname for soname in ARM_LIBRARIES if _load_library(soname) is None]
    if missing:
        addresses = find_openblas_functions(search_path)
        for soname in missing:
            load_stand_in_library(soname, addresses)


def set_openblas_threads(threads: int) -> None:
    """Set the number of threads with which OpenBLAS computes for each device.

    These threads are not OpenMP's. When OpenBLAS is loaded, it reads OMP_NUM_THREADS, which is 1
    then (`gluonlab.engine.openmp_settings`). Arm's own libraries use OpenMP, so the function does
    not change anything if they are installed.
    """
    library = ctypes.CDLL(ARM_LIBRARIES[0])
    if hasattr(library, "openblas_set_num_threads"):
        library.openblas_set_num_threads(threads)


def find_openblas_functions(search_path: Sequence[str]) -> Dict[str, int]:
    """Load OpenBLAS, and return the addresses of `FUNCTIONS` by name.

    ``search_path``, and the error without OpenBLAS: see `load_arm_libraries`.
    """
    paths = [os.path.join(folder, WHEEL_LIBRARY) for folder in search_path]
    wheel_libraries = list(filter(os.path.isfile, paths))[:1]
    for prefix, names in ((WHEEL_PREFIX, wheel_libraries), ("", SYSTEM_LIBRARIES)):
        addresses: Dict[str, int] = {}
        for library in filter(None, map(_load_library, names)):
            for name in FUNCTIONS:
                if hasattr(library, prefix + name):
                    addresses.setdefault(name, _address_of(library, prefix + name))
        missing = [name for name in FUNCTIONS if name not in addresses]
        if not missing:
            return addresses
    raise EngineError(f"MXNet for ARM needs OpenBLAS, but found no library with {missing[0]}: {INSTALL_OPENBLAS}")


def load_stand_in_library(soname: str, addresses: Mapping[str, int]) -> ctypes.CDLL:
    """Make the dynamic linker use functions of this process wherever ``soname`` is needed.

    Args:
        soname: the name of a library that does not exist.
        addresses: the functions' addresses in this process, by the names of their symbols.

    Returns:
        The loaded library.

    Raises:
        EngineError: The C library is older than glibc 2.28, which first supported such symbols.
    """
    import platform  # here, because other platforms import this module but do not need it

    # A file in memory needs no folder. It stays open, because the linker takes another file of the
    # same path for the same library.
    file = os.memfd_create(soname)
    with open(file, "wb", closefd=False) as content:
        content.write(make_stand_in_library(soname, addresses))
    library = ctypes.CDLL(f"/proc/self/fd/{file}")
    if any(_address_of(library, name) != address for name, address in addresses.items()):
        raise EngineError(
            f"MXNet for ARM needs glibc 2.28 or newer, but this system has {' '.join(platform.libc_ver())}: "
            "use a newer Linux distribution"
        )
    return library


def write_stand_in_library(folder: str, soname: str, addresses: Mapping[str, int]) -> Path:
    """Write the library of `make_stand_in_library` to a folder, and return its path."""
    path = Path(folder, soname)
    path.write_bytes(make_stand_in_library(soname, addresses))
    return path


def make_stand_in_library(soname: str, addresses: Mapping[str, int], machine: str = MACHINE) -> bytes:
    """Return the content of an ELF shared library that defines symbols with absolute addresses.

    ``machine``: the name of the processor architecture, a key of `ELF_MACHINES`. The format is
    described in "Tool Interface Standard (TIS) ELF Specification", version 1.2. The fields have
    64 bits.
    """
    strings = b"\0"
    symbols = bytes(SYMBOL_BYTES)  # the first symbol of every table is empty
    for name, address in addresses.items():
        symbols += struct.pack("<I2BH2Q", len(strings), GLOBAL_FUNCTION, 0, SHN_ABS, address, 0)
        strings += name.encode() + b"\0"
    soname_offset = len(strings)
    strings += soname.encode() + b"\0"
    # A hash table with one bucket, whose chain contains all symbols: 1, 2, ..., and 0 at the end.
    count = len(addresses) + 1
    chain = [0, *range(2, count), 0][:count]
    hash_table = struct.pack(f"<{3 + count}I", 1, count, min(1, count - 1), *chain)

    program_headers = 3
    symbols_at = FILE_HEADER_BYTES + program_headers * PROGRAM_HEADER_BYTES
    dynamic_at = symbols_at + len(symbols)
    strings_at = dynamic_at + 7 * struct.calcsize("<2Q")
    hash_at = -(-(strings_at + len(strings)) // 4) * 4  # aligned to 4 bytes
    entries = [
        (DT_SONAME, soname_offset), (DT_HASH, hash_at), (DT_SYMTAB, symbols_at), (DT_SYMENT, SYMBOL_BYTES),
        (DT_STRTAB, strings_at), (DT_STRSZ, len(strings)), (DT_NULL, 0),
    ]  # fmt: skip
    dynamic = b"".join(struct.pack("<2Q", *entry) for entry in entries)
    size = hash_at + len(hash_table)

    identification = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little-endian, version 1
    content = identification + struct.pack(
        "<2HI3QI6H", ELF_SHARED_OBJECT, ELF_MACHINES[machine], 1, 0, FILE_HEADER_BYTES, 0, 0, FILE_HEADER_BYTES,
        PROGRAM_HEADER_BYTES, program_headers, 0, 0, 0,
    )  # fmt: skip
    for kind, start, length, alignment in (
        (PT_LOAD, 0, size, MAX_PAGE_BYTES),
        (PT_DYNAMIC, dynamic_at, len(dynamic), 8),
        (PT_GNU_STACK, 0, 0, 16),  # without this header, the linker makes the stack executable
    ):
        content += struct.pack("<2I6Q", kind, READ_WRITE, start, start, start, length, length, alignment)
    return (content + symbols + dynamic + strings).ljust(hash_at, b"\0") + hash_table


def _load_library(name: str) -> Optional[ctypes.CDLL]:
    """Load a shared library by name or path; return None if it cannot be loaded."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _address_of(library: ctypes.CDLL, function: str) -> int:
    return ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
