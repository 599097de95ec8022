"""Small shared libraries, written byte by byte, so that no test needs a compiler.

x86-64 ELF as the System V ABI describes it: one segment with a header, a symbol table, machine
code, and a dynamic section. The real linker loads them, and takes their NEEDED entries and missing
symbols seriously.
"""

import struct

DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB = 0, 1, 4, 5, 6
DT_RELA, DT_RELASZ, DT_RELAENT = 7, 8, 9
DT_STRSZ, DT_SYMENT, DT_SONAME = 10, 11, 14
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
EXECUTE, READ_WRITE, PAGE = 1, 6, 4096
R_X86_64_GLOB_DAT, GLOBAL_FUNCTION = 6, 0x12
SYMBOL, HEADERS = 24, 64 + 3 * 56  # bytes


def write_library(path, needed=(), undefined=(), functions=None, soname=None):
    """A library that needs others (``needed``: sonames), asks for symbols that nobody has
    (``undefined``), and has ``functions``.

    ``functions``: name -> machine code, which may use no address but its own.
    """
    functions = functions or {}
    names = [*undefined, *functions]
    count = 1 + len(names)  # the first symbol is none
    strings = _StringTable([*needed, *names, soname or path.name])
    code = _StringTable(functions.values(), first=b"\xc3" * 16)  # ret
    sizes = [
        HEADERS, 8 * count, SYMBOL * count, 4 * (2 + 1 + count), 24 * len(undefined),
        len(strings.content), len(code.content),
    ]  # fmt: skip
    places = [0]
    for size in sizes:
        places.append(-(-(places[-1] + size) // 16) * 16)
    _, got_at, symbols_at, table_at, rela_at, strings_at, code_at, dynamic_at = places

    symbols = bytes(SYMBOL)
    for name in names:
        section, place = (1, code_at + code.place(functions[name])) if name in functions else (0, 0)
        symbols += struct.pack(
            "<IBBHQQ", strings.place(name), GLOBAL_FUNCTION, 0, section, place, 0
        )
    # one bucket with a chain through all symbols
    first = min(1, len(names))
    chain = [1, count, first, 0, *range(2, count), *[0] * first]
    table = struct.pack(f"<{3 + count}I", *chain)
    rela = b"".join(
        struct.pack("<QQq", got_at + 8 * i, i << 32 | R_X86_64_GLOB_DAT, 0)
        for i in range(1, 1 + len(undefined))
    )
    entries = [(DT_NEEDED, strings.place(name)) for name in needed]
    entries += [
        (DT_SONAME, strings.place(soname or path.name)),
        (DT_HASH, table_at),
        (DT_STRTAB, strings_at),
    ]
    entries += [(DT_SYMTAB, symbols_at), (DT_STRSZ, len(strings.content)), (DT_SYMENT, SYMBOL)]
    entries += [(DT_RELA, rela_at), (DT_RELASZ, len(rela)), (DT_RELAENT, 24)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (DT_NULL, 0)])

    size = dynamic_at + len(dynamic)
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    )
    executable = EXECUTE if functions else 0
    segments = [
        (PT_LOAD, executable, 0, size, PAGE),
        (PT_DYNAMIC, 0, dynamic_at, len(dynamic), 8),
        (PT_GNU_STACK, 0, 0, 0, 16),
    ]
    for kind, flag, at, length, align in segments:
        header += struct.pack(
            "<IIQQQQQQ", kind, READ_WRITE | flag, at, at, at, length, length, align
        )
    content = bytearray(size)
    for at, part in zip(
        places, (header, b"", symbols, table, rela, strings.content, code.content, dynamic)
    ):
        content[at : at + len(part)] = part
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class _StringTable:
    """Texts or pieces of code behind each other, each once."""

    def __init__(self, parts, first=b"\0"):
        self.content = first
        self._places = {}
        for part in parts:
            self._places[part] = len(self.content)
            self.content += part if isinstance(part, bytes) else part.encode() + b"\0"

    def place(self, part):
        return self._places[part]
