"""Small shared libraries, written byte by byte, so that no test needs a compiler.

x86-64 ELF as the System V ABI describes it: one writable segment with a header, a symbol table with nothing in it but undefined
symbols, and a dynamic section. The real linker loads them, and takes their NEEDED entries and missing symbols seriously.
"""

import struct

DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT, DT_STRSZ, DT_SYMENT, DT_SONAME = (
    0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 14,
)  # fmt: skip
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
READ_WRITE, PAGE = 6, 4096
R_X86_64_GLOB_DAT, GLOBAL_FUNCTION = 6, 0x12


def write_library(path, needed=(), undefined=(), soname=None):
    """A library that needs others (``needed``: sonames) and asks for symbols that nobody has (``undefined``)."""
    strings = b"\0"
    places = {}
    for text in [*needed, *undefined, soname or path.name]:
        places[text] = len(strings)
        strings += text.encode() + b"\0"
    symbols = b"\0" * 24 + b"".join(struct.pack("<IBBHQQ", places[name], GLOBAL_FUNCTION, 0, 0, 0, 0) for name in undefined)
    count = 1 + len(undefined)
    table = struct.pack(f"<{3 + count}I", 1, count, 0, *[0] * count)  # one bucket, nothing in it
    got_at = _aligned(64 + 3 * 56)
    symbols_at = got_at + 8 * count
    table_at = symbols_at + len(symbols)
    rela_at = _aligned(table_at + len(table))
    rela = b"".join(struct.pack("<QQq", got_at + 8 * i, (i << 32) | R_X86_64_GLOB_DAT, 0) for i in range(1, count))
    strings_at = rela_at + len(rela)
    dynamic_at = _aligned(strings_at + len(strings))
    entries = [(DT_NEEDED, places[name]) for name in needed]
    entries += [(DT_SONAME, places[soname or path.name]), (DT_HASH, table_at), (DT_STRTAB, strings_at), (DT_SYMTAB, symbols_at)]
    entries += [(DT_STRSZ, len(strings)), (DT_SYMENT, 24), (DT_RELA, rela_at), (DT_RELASZ, len(rela)), (DT_RELAENT, 24)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (DT_NULL, 0)])
    size = dynamic_at + len(dynamic)
    header = b"\x7fELF\x02\x01\x01" + b"\0" * 9 + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    segments = [(PT_LOAD, 0, size, PAGE), (PT_DYNAMIC, dynamic_at, len(dynamic), 8), (PT_GNU_STACK, 0, 0, 16)]
    header += b"".join(struct.pack("<IIQQQQQQ", kind, READ_WRITE, at, at, at, n, n, align) for kind, at, n, align in segments)
    content = bytearray(size)
    for at, part in (
        (0, header), (symbols_at, symbols), (table_at, table), (rela_at, rela), (strings_at, strings), (dynamic_at, dynamic),
    ):  # fmt: skip
        content[at : at + len(part)] = part
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _aligned(place):
    return -(-place // 16) * 16
