"""Writes array files in MXNet's format atomically, and validates them while reading.

This module writes the same bytes as ``mx.nd.save`` (NDArray::Save in src/ndarray/ndarray.cc), but
fixes two of MXNet's problems:

- ``mx.nd.save`` ignores errors when it closes the file. On a full disk, the end of the file is lost
  without an error. So this module writes the file in Python.
- ``mx.nd.load`` allocates the array that a header describes. A single damaged byte can exhaust
  memory, or produce an array that is too large for MXNet. So this module checks headers first.

A file has the format of ``list`` in this table:

==========================  ===============================================================
list                        uint64 magic, reserved, count; arrays; uint64 count; names
name                        uint64 length; bytes
array                       uint32 magic with the version, or ndim in the oldest format;
                            int32 storage type (from version 2 on); int32 ndim; the shape;
                            int32 device type, device number, type of the elements; bytes
==========================  ===============================================================

MXNet writes version 3 after ``npx.set_np()``. Version 3 has the layout of version 2, but an array
without dimensions has one element, and a dimension may be 0. ``mx.nd.load`` reads version 3 only
after ``npx.set_np()``, and older versions only without ``npx.set_np()``. `read_arrays` reads all
versions.
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
from gluonlab.files.atomic_files import DEFAULT_REMEDY, atomic_path, raise_output_errors

LIST_MAGIC = 0x112  # start of a list of arrays
VERSION_1, VERSION_2, VERSION_3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
MAX_DIMENSIONS = 32
TYPES = dict(enumerate(("float32", "float64", "float16", "uint8", "int32", "int8", "int64")))


def save_arrays(path: Path, arrays: Mapping[str, nd.NDArray], remedy: str = DEFAULT_REMEDY) -> None:
    """Write named arrays from any device to a file that ``mx.nd.load`` can read.

    If writing fails, raises OutputError with ``remedy``, and keeps any existing file.
    """
    with raise_output_errors(path, remedy), atomic_path(path) as temporary, temporary.open("wb") as file:
        write_arrays(file, arrays)


def write_arrays(file: IO[bytes], arrays: Mapping[str, nd.NDArray]) -> None:
    """Write named arrays to an open file."""
    file.write(struct.pack("=3Q", LIST_MAGIC, 0, len(arrays)))
    for array in arrays.values():
        file.write(_array_bytes(array.as_in_context(mx.cpu())))
    file.write(struct.pack("=Q", len(arrays)))
    for name in arrays:
        file.write(struct.pack("=Q", len(name.encode())) + name.encode())


def _array_bytes(array: nd.NDArray) -> bytes:
    """Serialize an array on the CPU to MXNet's format."""
    size, address = ctypes.c_size_t(), ctypes.c_void_p()
    check_call(_LIB.MXNDArraySaveRawBytes(array.handle, ctypes.byref(size), ctypes.byref(address)))
    return ctypes.string_at(address, size.value)


class Header(NamedTuple):
    """The header of an array: version, shape and type."""

    version: int
    shape: Tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """The number of bytes that the elements after the header occupy."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def read_arrays(path: Path) -> Dict[str, nd.NDArray]:
    """Read a file from `save_arrays` or ``mx.nd.save``. Return its arrays by name, on mx.cpu(0).

    This function works with and without ``npx.set_np()``. An array without dimensions gets shape
    (1,). Arrays without elements are omitted.

    Raises:
        ValueError: If the file is incomplete, or is not a list of dense arrays with distinct names.
        OSError: If the file cannot be read.
    """
    with path.open("rb") as file:
        return read_open_arrays(file)


def read_open_arrays(file: IO[bytes]) -> Dict[str, nd.NDArray]:
    """Read the arrays in an open file, like `read_arrays`."""
    size = read_list_header(file)
    arrays = [read_array(file, size) for _ in range(_read_count(file))]
    names = list(_read_names(file, size, len(arrays)))
    if file.tell() != size:
        raise ValueError("there are bytes after the end of the list")
    if len(set(names)) < len(names):
        raise ValueError("two arrays have the same name")
    return {name: array for name, array in zip(names, arrays) if array is not None}


def read_list_header(file: IO[bytes]) -> int:
    """Read the magic number of a list of arrays, and return the length of the file in bytes.

    Raises ValueError for a file that is not a list.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    magic, _ = _unpack(file, "<QQ")
    if magic != LIST_MAGIC:
        raise ValueError("the file is not a list of arrays")
    return size


def parse_array(content: bytes) -> "nd.NDArray | None":
    """Return the array in ``content`` on mx.cpu(0), or None if the array has no elements.

    An array without dimensions gets shape (1,). Raises ValueError unless the content is exactly one
    array.
    """
    file = io.BytesIO(content)
    array = read_array(file, len(content))
    if file.tell() != len(content):
        raise ValueError("there are bytes after the end of the array")
    return array


def read_array(file: IO[bytes], size: int) -> "nd.NDArray | None":
    """Read the array at the current position in a file of ``size`` bytes, like `parse_array`.

    Raises ValueError if there is no valid array.
    """
    header = read_header(file)
    _check_length(file, header.nbytes, size)
    values = np.frombuffer(file.read(header.nbytes), header.dtype)
    return ndarray_from_numpy(values.reshape(header.shape or (1,))) if values.size else None


def read_header(file: IO[bytes]) -> Header:
    """Read an array's header. Raises ValueError for a header that MXNet would not write."""
    [version] = _unpack(file, "<I")
    if version in (VERSION_2, VERSION_3) and _unpack(file, "<i") != (0,):
        raise ValueError("an array is not dense")
    has_version = version in (VERSION_1, VERSION_2, VERSION_3)
    ndim = _unpack(file, "<i")[0] if has_version else version
    least = 0 if version == VERSION_3 else 1
    if not least <= ndim <= MAX_DIMENSIONS:
        raise ValueError(f"an array has {ndim} dimensions")
    shape = _unpack(file, f"<{ndim}{'q' if has_version else 'I'}")
    _, _, dtype = _unpack(file, "<iii")
    if min(shape, default=1) < least or math.prod(shape) >= ARRAY_LIMIT or dtype not in TYPES:
        raise ValueError(f"an array has shape {shape} and type {dtype}")
    return Header(version, shape, TYPES[dtype])


def _read_count(file: IO[bytes]) -> int:
    return int(_unpack(file, "<Q")[0])


def _read_names(file: IO[bytes], size: int, count: int) -> Iterator[str]:
    """Yield the ``count`` array names at the end of a file of ``size`` bytes."""
    names = _read_count(file)
    if names != count:
        raise ValueError(f"there are {count} arrays, but {names} names")
    for _ in range(names):
        length = _read_count(file)
        _check_length(file, length, size)
        yield file.read(length).decode()


def _unpack(file: IO[bytes], form: str) -> "Tuple[Any, ...]":
    """Read values, and unpack them with the ``struct`` format ``form``."""
    content = file.read(struct.calcsize(form))
    if len(content) < struct.calcsize(form):
        raise ValueError("the file is cut off")
    return struct.unpack(form, content)


def _check_length(file: IO[bytes], length: int, size: int) -> None:
    """Raise ValueError if fewer than ``length`` bytes are left in a file of ``size`` bytes."""
    if length > size - file.tell():
        raise ValueError("the file is cut off")
