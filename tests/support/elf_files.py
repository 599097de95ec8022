"""Writer of small shared libraries for tests without a compiler.

The files are ELF of the System V ABI for this machine, x86-64 or AArch64: one segment with a
header, a symbol table, machine code, and a dynamic section. The real linker loads them, and checks
their NEEDED entries and missing symbols.
"""

import platform
import struct

IS_ARM = platform.machine() == "aarch64"
DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB = 0, 1, 4, 5, 6
DT_RELA, DT_RELASZ, DT_RELAENT = 7, 8, 9
DT_STRSZ, DT_SYMENT, DT_SONAME = 10, 11, 14
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
EXECUTE, READ_WRITE, PAGE = 1, 6, 1 << 16
MACHINE, GLOB_DAT = (183, 1025) if IS_ARM else (62, 6)
GLOBAL_FUNCTION = 0x12
SYMBOL, HEADERS = 24, 64 + 3 * 56  # bytes


def write_library(path, needed=(), undefined=(), functions=None, soname=None):
    """Write a shared library; return its path.

    Args:
        path: the file.
        needed: sonames of the libraries that it needs.
        undefined: symbols that it needs and no library has.
        functions: maps names to position-independent machine code.
        soname: its soname, by default the name of the file.
    """
    functions = functions or {}
    names = [*undefined, *functions]
    count = 1 + len(names)  # the first symbol is empty
    strings = _StringTable([*needed, *names, soname or path.name])
    code = _StringTable(functions.values(), first=bytes(16))
    sizes = [
        HEADERS, 8 * count, SYMBOL * count, 4 * (2 + 1 + count), 24 * len(undefined),
        len(strings.content), len(code.content),
    ]  # fmt: skip
    offsets = [0]
    for size in sizes:
        offsets.append(-(-(offsets[-1] + size) // 16) * 16)
    _, got_at, symbols_at, table_at, rela_at, strings_at, code_at, dynamic_at = offsets

    symbols = bytes(SYMBOL)
    for name in names:
        section, address = (1, code_at + code.offset(functions[name])) if name in functions else (0, 0)
        symbols += struct.pack("<IBBHQQ", strings.offset(name), GLOBAL_FUNCTION, 0, section, address, 0)
    # one bucket with a chain through all symbols
    first = min(1, len(names))
    chain = [1, count, first, 0, *range(2, count), *[0] * first]
    table = struct.pack(f"<{3 + count}I", *chain)
    rela = b"".join(struct.pack("<QQq", got_at + 8 * i, i << 32 | GLOB_DAT, 0) for i in range(1, 1 + len(undefined)))
    entries = [(DT_NEEDED, strings.offset(name)) for name in needed]
    entries += [(DT_SONAME, strings.offset(soname or path.name)), (DT_HASH, table_at), (DT_STRTAB, strings_at)]
    entries += [(DT_SYMTAB, symbols_at), (DT_STRSZ, len(strings.content)), (DT_SYMENT, SYMBOL)]
    entries += [(DT_RELA, rela_at), (DT_RELASZ, len(rela)), (DT_RELAENT, 24)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (DT_NULL, 0)])

    size = dynamic_at + len(dynamic)
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, MACHINE, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    )
    executable = EXECUTE if functions else 0
    segments = [
        (PT_LOAD, executable, 0, size, PAGE),
        (PT_DYNAMIC, 0, dynamic_at, len(dynamic), 8),
        (PT_GNU_STACK, 0, 0, 0, 16),
    ]
    for kind, flag, at, length, align in segments:
        header += struct.pack("<IIQQQQQQ", kind, READ_WRITE | flag, at, at, at, length, length, align)
    content = bytearray(size)
    for at, part in zip(offsets, (header, b"", symbols, table, rela, strings.content, code.content, dynamic)):
        content[at : at + len(part)] = part
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def code_that_returns(number):
    """Return the machine code of a C function that returns a number in 0..65535."""
    if IS_ARM:
        return struct.pack("<2I", 0x52800000 | number << 5, 0xD65F03C0)  # mov w0, number; ret
    return b"\xb8" + struct.pack("<I", number) + b"\xc3" + bytes(10)  # mov eax, number; ret


class _StringTable:
    """A byte string that contains each text or piece of code once."""

    def __init__(self, parts, first=b"\0"):
        self.content = first
        self._offsets = {}
        for part in parts:
            self._offsets[part] = len(self.content)
            self.content += part if isinstance(part, bytes) else part.encode() + b"\0"

    def offset(self, part):
        return self._offsets[part]
