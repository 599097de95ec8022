"""Files of arrays in MXNet's format: written whole or not at all, checked as they are read.

Written are the bytes of ``mx.nd.save`` (NDArray::Save of src/ndarray/ndarray.cc), which does not
look at what closing the file says: on a full disk it loses the last buffer, and the file is cut off
without an error. Here Python writes them. ``mx.nd.load`` takes the memory that a header asks for:
one damaged byte, and it fills all that the machine has, or gives an array of more elements than its
functions allow. Here a header is looked at first. The format:

==========================  ===============================================================
list                        uint64 magic, reserved, count; arrays; uint64 count; names
name                        uint64 length; bytes
array                       uint32 magic, which tells the version, or is ndim in the oldest;
                            int32 storage type (from version 2 on); int32 ndim; the shape;
                            int32 device type, device number, type of the elements; bytes
==========================  ===============================================================

Version 3 is what MXNet writes after ``npx.set_np()``; it is laid out as version 2 is, but an array
without dimensions has one element, and a dimension may be 0. ``mx.nd.load`` reads each only in the
mode in which it was written; `read_arrays` reads all.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import struct
from pathlib import Path
from typing import IO, Any, Dict, Iterator, Mapping, NamedTuple, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.fast_invoke import ARRAY_LIMIT, ndarray_from_numpy
from gluonlab.files.atomic_files import ELSEWHERE, atomic_path, on_disk

LIST_MAGIC = 0x112  # what a list of arrays begins with
VERSION_1, VERSION_2, VERSION_3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
MOST_DIMENSIONS = 32
TYPES = dict(enumerate(("float32", "float64", "float16", "uint8", "int32", "int8", "int64")))


def save_arrays(path: Path, arrays: Mapping[str, nd.NDArray], remedy: str = ELSEWHERE) -> None:
    """Write named arrays, of any device; ``mx.nd.load`` reads them, on the CPU.

    Raises OutputError, and leaves an old file then.
    """
    with on_disk(path, remedy), atomic_path(path) as temporary, temporary.open("wb") as file:
        write_arrays(file, arrays)


def write_arrays(file: IO[bytes], arrays: Mapping[str, nd.NDArray]) -> None:
    """Write what a file of these arrays holds."""
    file.write(struct.pack("=3Q", LIST_MAGIC, 0, len(arrays)))
    for array in arrays.values():
        file.write(_in_bytes(array.as_in_context(mx.cpu())))
    file.write(struct.pack("=Q", len(arrays)))
    for name in arrays:
        file.write(struct.pack("=Q", len(name.encode())) + name.encode())


def _in_bytes(array: nd.NDArray) -> bytes:
    size, place = ctypes.c_size_t(), ctypes.c_void_p()
    check_call(_LIB.MXNDArraySaveRawBytes(array.handle, ctypes.byref(size), ctypes.byref(place)))
    return ctypes.string_at(place, size.value)


class Header(NamedTuple):
    """What an array's header says of the bytes that follow it."""

    version: int
    shape: Tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Their number."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def read_arrays(path: Path) -> Dict[str, nd.NDArray]:
    """The arrays of a file that `save_arrays` or ``mx.nd.save`` wrote, by name, on mx.cpu(0).

    The mode of ``npx.set_np`` makes no difference.

    An array without dimensions comes as (1,), one without elements is left out. Raises ValueError
    for a file that is not whole, or no list of dense arrays with different names, and OSError for
    one that cannot be read.
    """
    with path.open("rb") as file:
        return arrays_of(file)


def arrays_of(file: IO[bytes]) -> Dict[str, nd.NDArray]:
    """`read_arrays` of an open file, from its beginning to its end."""
    size = begin_of_list(file)
    arrays = [read_array(file, size) for _ in range(_count(file))]
    names = list(_names(file, size, len(arrays)))
    if file.tell() != size:
        raise ValueError("bytes after the end of the list")
    if len(set(names)) < len(names):
        raise ValueError("two arrays with the same name")
    return {name: array for name, array in zip(names, arrays) if array is not None}


def begin_of_list(file: IO[bytes]) -> int:
    """Read the start of a list of arrays, and return the length of its file in bytes.

    Raises ValueError for a file that is not a list.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    magic, _ = _read(file, "<QQ")
    if magic != LIST_MAGIC:
        raise ValueError("not a list of arrays")
    return size


def array_of(content: bytes) -> "nd.NDArray | None":
    """The array whose file content is ``content``, on mx.cpu(0); None for one without elements.

    An array without dimensions comes as (1,). Raises ValueError for content that is not one array.
    """
    file = io.BytesIO(content)
    array = read_array(file, len(content))
    if file.tell() != len(content):
        raise ValueError("bytes after the end of the array")
    return array


def read_array(file: IO[bytes], size: int) -> "nd.NDArray | None":
    """The array at this position of a file of ``size`` bytes, as `array_of`. Raises ValueError."""
    header = read_header(file)
    _need(file, header.nbytes, size)
    values = np.frombuffer(file.read(header.nbytes), header.dtype)
    return ndarray_from_numpy(values.reshape(header.shape or (1,))) if values.size else None


def read_header(file: IO[bytes]) -> Header:
    """Read an array's header. Raises ValueError for one that MXNet neither writes nor reads."""
    [version] = _read(file, "<I")
    if version in (VERSION_2, VERSION_3) and _read(file, "<i") != (0,):
        raise ValueError("an array that is not dense")
    newer = version in (VERSION_1, VERSION_2, VERSION_3)
    ndim = _read(file, "<i")[0] if newer else version
    least = 0 if version == VERSION_3 else 1
    if not least <= ndim <= MOST_DIMENSIONS:
        raise ValueError(f"an array of {ndim} dimensions")
    shape = _read(file, f"<{ndim}{'q' if newer else 'I'}")
    _, _, dtype = _read(file, "<iii")
    if min(shape, default=1) < least or math.prod(shape) >= ARRAY_LIMIT or dtype not in TYPES:
        raise ValueError(f"an array of shape {shape} and type {dtype}")
    return Header(version, shape, TYPES[dtype])


def _count(file: IO[bytes]) -> int:
    return int(_read(file, "<Q")[0])


def _names(file: IO[bytes], size: int, count: int) -> Iterator[str]:
    names = _count(file)
    if names != count:
        raise ValueError(f"{count} arrays and {names} names")
    for _ in range(names):
        length = _count(file)
        _need(file, length, size)
        yield file.read(length).decode()


def _read(file: IO[bytes], form: str) -> "Tuple[Any, ...]":
    content = file.read(struct.calcsize(form))
    if len(content) < struct.calcsize(form):
        raise ValueError("cut off")
    return struct.unpack(form, content)


def _need(file: IO[bytes], length: int, size: int) -> None:
    if length > size - file.tell():
        raise ValueError("cut off")
