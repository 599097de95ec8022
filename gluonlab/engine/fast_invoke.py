"""Calls MXNet's operators and engine with little overhead.

``src.copyto(dst)`` and ``mx.nd.sgd_update(...)`` spend most of their time in Python, converting
arguments that do not change from step to step. `OperatorCall` converts the arguments once, so each
later call costs no more than MXNet's C call.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, NDArrayHandle, c_str_array, check_call

from gluonlab.engine.cpu_threads import EngineContext
from gluonlab.engine.mxnet_fixes import attribute_text

# elemwise_add uses oneDNN's sum, which takes 1.3 to 1.4 times as long for these arrays.
ADD_OPERATOR = "broadcast_add"
# Largest number of elements in an array, because MXNet's wheels are built without
# USE_INT64_TENSOR_SIZE.
ARRAY_LIMIT = 2**31 - 1

EngineCall = Callable[[], None]


def ndarray_from_numpy(array: "np.ndarray[Any, Any]", ctx: Optional[mx.Context] = None) -> nd.NDArray:
    """Copy a NumPy array to a new NDArray on a CPU device, by default mx.cpu(0), without waiting.

    nd.array would block a prefetching thread until the device has finished all queued work, because
    NDArray::WaitToWrite (include/mxnet/ndarray.h) queues an operation and waits for it.
    """
    array = np.ascontiguousarray(array)
    copy = nd.empty(array.shape, ctx or mx.cpu(0), array.dtype)
    memory = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(copy.handle, ctypes.byref(memory)))
    ctypes.memmove(memory, array.ctypes.data, array.nbytes)
    return copy


def slice_rows(array: nd.NDArray, begin: int, end: int) -> nd.NDArray:
    """Return ``array[begin:end]`` in half the time of indexing.

    ``begin`` and ``end`` must be in 0..len(array).
    """
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArraySlice(array.handle, begin, end, ctypes.byref(handle)))
    return type(array)(handle=handle)


class ShapeAndTypeReader:
    """Reads shapes and types of arrays in half the time that the arrays' properties take.

    Threads must not share a reader.
    """

    def __init__(self) -> None:
        self._axes, self._type = ctypes.c_int(), ctypes.c_int()
        self._sizes: Any = ctypes.POINTER(ctypes.c_int)()
        self._shape = ctypes.byref(self._axes), ctypes.byref(self._sizes)

    def read_shape(self, array: nd.NDArray) -> Tuple[int, ...]:
        """Return ``array.shape``."""
        check_call(_LIB.MXNDArrayGetShapeEx(array.handle, *self._shape))
        return tuple(self._sizes[: self._axes.value])

    def read_type_number(self, array: nd.NDArray) -> int:
        """Return MXNet's number for ``array.dtype``."""
        check_call(_LIB.MXNDArrayGetDType(array.handle, ctypes.byref(self._type)))
        return self._type.value


def address_range(array: nd.NDArray) -> Tuple[int, int]:
    """Wait for writes to an array.

    Return the addresses where the array's memory begins and ends.
    """
    array.wait_to_read()
    begin = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(begin)))
    return begin.value or 0, (begin.value or 0) + array.size * np.dtype(array.dtype).itemsize


def is_same_memory(array: nd.NDArray, other: nd.NDArray) -> bool:
    """Check if two arrays use the same memory, such as an array and its ``as_np_ndarray()``."""
    return array is other or address_range(array) == address_range(other)


def arrays_share_memory(arrays: Sequence[nd.NDArray], others: Sequence[nd.NDArray] = ()) -> bool:
    """Check if an array in ``arrays`` overlaps in memory with another array in either list.

    Overlaps between two arrays in ``others`` are ignored. Callers need this check because MXNet's
    engine does not order operations on different arrays that share memory.
    """
    spans = sorted(
        (*address_range(array), is_first_group)
        for is_first_group, group in ((True, arrays), (False, others))
        for array in group
        if array.size
    )
    ends = {True: 0, False: 0}  # the largest end of the spans so far, by group
    for begin, end, is_first_group in spans:
        if begin < ends[True] or (is_first_group and begin < ends[False]):
            return True
        ends[is_first_group] = max(ends[is_first_group], end)
    return False


class OperatorCall:
    """A repeatable operator call on fixed arrays. An array may be both input and output."""

    def __init__(self, name: str, inputs: Sequence[nd.NDArray], *outputs: nd.NDArray) -> None:
        self._operator = ctypes.c_void_p()
        check_call(_LIB.NNGetOpHandle(name.encode(), ctypes.byref(self._operator)))
        self._arrays = (*inputs, *outputs)  # keeps the handles alive
        self._inputs = (ctypes.c_void_p * len(inputs))(*[array.handle for array in inputs])
        handles = (ctypes.c_void_p * len(outputs))(*[output.handle for output in outputs])
        self._outputs = ctypes.cast(handles, ctypes.POINTER(NDArrayHandle))
        self._output_count = ctypes.c_int(len(outputs))
        self._prepared_attributes: "Attributes | None" = None
        self._invoke: Callable[[], int]

    def __call__(self, attributes: "Attributes") -> None:
        """Queue the operation without waiting for it."""
        if attributes is not self._prepared_attributes:
            self._prepare(attributes)
        check_call(self._invoke())

    def _prepare(self, attributes: "Attributes") -> None:
        """Prepare the C call with these attributes, for later calls with the same attributes."""
        self._prepared_attributes = attributes
        self._invoke = partial(
            _LIB.MXImperativeInvokeEx, self._operator, len(self._inputs), self._inputs,
            ctypes.byref(self._output_count), ctypes.byref(self._outputs), attributes.count,
            attributes.names, attributes.values, ctypes.byref(ctypes.POINTER(ctypes.c_int)()),
        )  # fmt: skip


class Attributes:
    """An operator's attributes, such as a learning rate, converted for MXNet's C API."""

    def __init__(self, values: Dict[str, Any]) -> None:
        self.count = len(values)
        self.names = c_str_array(list(values))
        self.values = c_str_array([attribute_text(value) for value in values.values()])


NO_ATTRIBUTES = Attributes({})


class CopyInto(OperatorCall):
    """``CopyInto(dst).copy(src)``: a faster ``src.copyto(dst)``, from sources on any device."""

    def __init__(self, destination: nd.NDArray) -> None:
        super().__init__("_copyto", [destination], destination)

    def copy(self, source: nd.NDArray) -> None:
        """Queue the copy without waiting for it."""
        self._inputs[0] = source.handle
        self(NO_ATTRIBUTES)


class AddInto(OperatorCall):
    """``AddInto(dst).add(src)``: a faster ``dst += src``, for sources on the same device."""

    def __init__(self, destination: nd.NDArray) -> None:
        super().__init__(ADD_OPERATOR, [destination, destination], destination)

    def add(self, source: nd.NDArray) -> None:
        """Queue the addition without waiting for it."""
        self._inputs[1] = source.handle
        self(NO_ATTRIBUTES)


class Fence:
    """An engine operation that computes nothing, and only orders other operations.

    The fence waits for all earlier writes to the arrays in ``read`` and all earlier uses of the
    arrays in ``written``. Later uses of ``written`` wait for the fence. So a fence can order
    operations on arrays that share memory, which the engine itself does not order.
    """

    # A C function of MXNet that needs neither arguments nor Python's GIL, and changes nothing.
    _NO_OP = ctypes.cast(_LIB.MXGetLastError, ctypes.c_void_p)

    def __init__(self, ctx: mx.Context, read: Sequence[nd.NDArray], written: Sequence[nd.NDArray]) -> None:
        self._ctx = EngineContext(ctx.device_typeid, ctx.device_id)
        self._arrays = (*read, *written)  # keeps the handles alive
        self._read = (ctypes.c_void_p * len(read))(*[array.handle for array in read])
        self._written = (ctypes.c_void_p * len(written))(*[array.handle for array in written])

    def __call__(self, priority: int = 0) -> None:
        """Queue the fence without waiting for it."""
        check_call(
            _LIB.MXEnginePushSyncND(
                self._NO_OP, None, None, ctypes.byref(self._ctx), self._read, len(self._read),
                self._written, len(self._written), None, priority, b"gluonlab.Fence",
            )
        )  # fmt: skip


@contextmanager
def order_between_passes(arrays: Sequence[nd.NDArray]) -> Iterator[None]:
    """Run the with block's operations on ``arrays`` after earlier and before later passes.

    A pass is a forward or backward pass of the network. ``arrays`` are BatchNorm's running
    statistics. MXNet's BatchNorm updates the statistics in the forward pass on a GPU, and in the
    backward pass on a CPU, but it only declares that it reads them. Without fences, the engine
    could copy the statistics in the middle of a pass.
    """
    fences = [Fence(array.context, [], [array]) for array in arrays]
    for fence in fences:
        fence()
    yield
    for fence in fences:
        fence()


def flat_view(array: nd.NDArray) -> nd.NDArray:
    """Return a one-dimensional mx.nd view of an array, or the array itself if it is empty."""
    # as_nd_ndarray, because reshaping an mx.np array copies it
    return array.as_nd_ndarray().reshape((-1,)) if array.size else array


def row_major_calls(flat: nd.NDArray) -> Iterator[EngineCall]:
    """Yield the calls that store a CPU array in row-major order, so that it can be sliced."""
    if flat.size and not is_on_gpu(flat):
        # Writing one element, with its own value, makes MXNet reorder the whole array.
        element = flat[0:1]
        yield operator_call("_mul_scalar", [element], element, Attributes({"scalar": 1.0}))


def operator_call(
    operator: str, inputs: Sequence[nd.NDArray], output: nd.NDArray, attributes: Attributes = NO_ATTRIBUTES
) -> EngineCall:
    """Return a function without arguments that queues the operator with these arrays."""
    return partial(OperatorCall(operator, inputs, output), attributes)


def is_on_gpu(array: nd.NDArray) -> bool:
    """Check if an array is in a GPU's memory."""
    return bool(array.context.device_type == "gpu")
