"""Arrays in a file, in MXNet's own format: there whole, or not at all.

The bytes are those of ``mx.nd.save`` (NDArray::Save of src/ndarray/ndarray.cc), which does not look at what closing the file says:
on a full disk it loses the last buffer, and the file is cut off without an error. Here Python writes them.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Mapping

import mxnet as mx
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.files import ELSEWHERE, atomic_path, on_disk

_LIST = 0x112  # what a list of arrays begins with


def save_arrays(path: Path, arrays: Mapping[str, nd.NDArray], remedy: str = ELSEWHERE) -> None:
    """Write named arrays, of any device; ``mx.nd.load`` reads them, on the CPU. Raises OutputError, and leaves an old file then."""
    with on_disk(path, remedy), atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(struct.pack("=3Q", _LIST, 0, len(arrays)))
        for array in arrays.values():
            file.write(_in_bytes(array.as_in_context(mx.cpu())))
        file.write(struct.pack("=Q", len(arrays)))
        for name in arrays:
            file.write(struct.pack("=Q", len(name.encode())) + name.encode())


def _in_bytes(array: nd.NDArray) -> bytes:
    size, place = ctypes.c_size_t(), ctypes.c_void_p()
    check_call(_LIB.MXNDArraySaveRawBytes(array.handle, ctypes.byref(size), ctypes.byref(place)))
    return ctypes.string_at(place, size.value)
