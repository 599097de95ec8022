"""Whether a file of arrays is what its own headers promise, looked at before MXNet believes them.

``mx.nd.load`` takes the memory that a header asks for: one damaged byte, and it fills all that the machine has, or gives an array
of more elements than its functions allow. The format is that of NDArray::Save (src/ndarray/ndarray.cc):

==========================  ===============================================================
list                        uint64 magic, reserved, count; arrays; uint64 count; names
name                        uint64 length; bytes
array                       uint32 magic, which tells the version, or is ndim in the oldest;
                            int32 storage type (version 2); int32 ndim; the shape;
                            int32 device type, device number, type of the elements; bytes
==========================  ===============================================================
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import IO, Any, Tuple

from gluonlab.invoke import ARRAY_LIMIT

LIST_MAGIC = 0x112
VERSION_1, VERSION_2 = 0xF993FAC8, 0xF993FAC9
MOST_DIMENSIONS = 32
ITEM_BYTES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8}  # float32, float64, float16, uint8, int32, int8, int64


def check_params_file(path: Path) -> None:
    """Raise ValueError when a file is not a list of dense arrays with names, or not as long as it says."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        magic, _, count = _read(file, "<QQQ")
        if magic != LIST_MAGIC:
            raise ValueError("no list of arrays")
        for _ in range(count):
            _skip(file, _array_bytes(file), size)
        [names] = _read(file, "<Q")
        if names != count:
            raise ValueError(f"{count} arrays and {names} names")
        for _ in range(names):
            [length] = _read(file, "<Q")
            _skip(file, length, size)


def _array_bytes(file: IO[bytes]) -> int:
    """Read one array's header: the bytes that follow it."""
    [version] = _read(file, "<I")
    if version == VERSION_2 and _read(file, "<i") != (0,):
        raise ValueError("an array that is not dense")
    ndim = _read(file, "<i")[0] if version in (VERSION_1, VERSION_2) else version
    if not 1 <= ndim <= MOST_DIMENSIONS:
        raise ValueError(f"an array of {ndim} dimensions")
    shape = _read(file, f"<{ndim}{'q' if version in (VERSION_1, VERSION_2) else 'I'}")
    _, _, dtype = _read(file, "<iii")
    elements: int = math.prod(shape)
    if min(shape) < 1 or elements >= ARRAY_LIMIT or dtype not in ITEM_BYTES:
        raise ValueError(f"an array of shape {shape} and type {dtype}")
    return elements * ITEM_BYTES[dtype]


def _read(file: IO[bytes], form: str) -> "Tuple[Any, ...]":
    content = file.read(struct.calcsize(form))
    if len(content) < struct.calcsize(form):
        raise ValueError("cut off")
    return struct.unpack(form, content)


def _skip(file: IO[bytes], length: int, size: int) -> None:
    if length > size - file.tell():
        raise ValueError("cut off")
    file.seek(length, os.SEEK_CUR)
