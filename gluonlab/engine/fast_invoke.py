"""Operator calls whose arrays are known in advance, at the cost of MXNet's C call alone.

``src.copyto(dst)`` and ``mx.nd.sgd_update(...)`` spend most of their time in Python, on arguments
that do not change from step to step. Here they are converted once."""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, NDArrayHandle, c_str_array, check_call

from gluonlab.engine.cpu_threads import EngineCallback, EngineContext, push
from gluonlab.engine.mxnet_fixes import attribute_text

# elemwise_add goes through oneDNN's sum, which takes 1.3 to 1.4 times as long here
ADD_TWO = "broadcast_add"
MOST_IN_ONE_KERNEL = 4  # that a GPU's add_n adds
# on a CPU: it adds them in order; but four as a + (b + (c + d)), and three likewise
FEWEST_FOR_ADD_N = 5
ADDED_AT_ONCE = (3, 4)
# every array has fewer elements: MXNet's wheels are built without USE_INT64_TENSOR_SIZE
ARRAY_LIMIT = 2**31 - 1

Call = Callable[[], None]


def from_host(array: "np.ndarray[Any, Any]", ctx: Optional[mx.Context] = None) -> nd.NDArray:
    """A copy of a NumPy array as an NDArray on a CPU device, by default mx.cpu(0), made at once.

    nd.array would wait there until the device has done all that is queued on it before
    (NDArray::WaitToWrite of include/mxnet/ndarray.h queues an empty operation on that device), and
    so would keep a thread that reads ahead from doing so.
    """
    array = np.ascontiguousarray(array)
    made = nd.empty(array.shape, ctx or mx.cpu(0), array.dtype)
    memory = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(made.handle, ctypes.byref(memory)))
    ctypes.memmove(memory, array.ctypes.data, array.nbytes)
    return made


def rows(array: nd.NDArray, begin: int, end: int) -> nd.NDArray:
    """``array[begin:end]``, a view, in half the time; both lie in 0..len(array)."""
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArraySlice(array.handle, begin, end, ctypes.byref(handle)))
    return type(array)(handle=handle)


class KindReader:
    """Reads the shapes and types of arrays in half the time of ``array.shape`` and ``array.dtype``.

    Two threads must not share one.
    """

    def __init__(self) -> None:
        self._axes, self._type = ctypes.c_int(), ctypes.c_int()
        self._sizes: Any = ctypes.POINTER(ctypes.c_int)()
        self._shape = ctypes.byref(self._axes), ctypes.byref(self._sizes)

    def shape(self, array: nd.NDArray) -> Tuple[int, ...]:
        """``array.shape``."""
        check_call(_LIB.MXNDArrayGetShapeEx(array.handle, *self._shape))
        return tuple(self._sizes[: self._axes.value])

    def type_number(self, array: nd.NDArray) -> int:
        """MXNet's number of ``array.dtype``."""
        check_call(_LIB.MXNDArrayGetDType(array.handle, ctypes.byref(self._type)))
        return self._type.value


def memory_of(array: nd.NDArray) -> Tuple[int, int]:
    """Where an array's elements lie: the first address, and the one behind the last.

    Waits for what writes to it.
    """
    array.wait_to_read()
    begin = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(begin)))
    return begin.value or 0, (begin.value or 0) + array.size * np.dtype(array.dtype).itemsize


def same_memory(one: nd.NDArray, other: nd.NDArray) -> bool:
    """Whether two arrays are the same elements, as an array and its as_np_ndarray() are."""
    return one is other or memory_of(one) == memory_of(other)


def share_memory(arrays: Sequence[nd.NDArray], others: Sequence[nd.NDArray] = ()) -> bool:
    """Whether any two of ``arrays`` have elements in common, or one of them with one of ``others``.

    The engine orders what is done with arrays that share memory, but not when some of it goes by
    aliases.
    """
    spans = sorted(
        (*memory_of(array), own)
        for own, group in ((True, arrays), (False, others))
        for array in group
        if array.size
    )
    ends = {True: 0, False: 0}  # of what began before
    for begin, end, own in spans:
        if begin < ends[True] or (own and begin < ends[False]):
            return True
        ends[own] = max(ends[own], end)
    return False


class OperatorCall:
    """An operator with fixed inputs and fixed outputs, often one, which may be among the inputs."""

    def __init__(self, name: str, inputs: Sequence[nd.NDArray], *outputs: nd.NDArray) -> None:
        self._operator = ctypes.c_void_p()
        check_call(_LIB.NNGetOpHandle(name.encode(), ctypes.byref(self._operator)))
        self._arrays = (*inputs, *outputs)  # keeps the handles alive
        self._inputs = (ctypes.c_void_p * len(inputs))(*[array.handle for array in inputs])
        handles = (ctypes.c_void_p * len(outputs))(*[output.handle for output in outputs])
        self._outputs = ctypes.cast(handles, ctypes.POINTER(NDArrayHandle))
        self._output_count = ctypes.c_int(len(outputs))
        self._attributes: "Attributes | None" = None  # those of the call that is prepared
        self._prepared: Callable[[], int]

    def __call__(self, attributes: "Attributes") -> None:
        """Queue the operation; nothing waits for it."""
        if attributes is not self._attributes:
            self._prepare(attributes)
        check_call(self._prepared())

    def _prepare(self, attributes: "Attributes") -> None:
        self._attributes = attributes
        self._prepared = partial(
            _LIB.MXImperativeInvokeEx, self._operator, len(self._inputs), self._inputs,
            ctypes.byref(self._output_count), ctypes.byref(self._outputs), attributes.count,
            attributes.names, attributes.values, ctypes.byref(ctypes.POINTER(ctypes.c_int)()),
        )  # fmt: skip


class Attributes:
    """An operator's attributes, such as a learning rate, as MXNet takes them."""

    def __init__(self, values: Dict[str, Any]) -> None:
        self.count = len(values)
        self.names = c_str_array(list(values))
        self.values = c_str_array([attribute_text(value) for value in values.values()])


NO_ATTRIBUTES = Attributes({})


class CopyInto(OperatorCall):
    """``CopyInto(dst).copy(src)`` is ``src.copyto(dst)``, on any devices.

    The arrays have the same shape and type.
    """

    def __init__(self, destination: nd.NDArray) -> None:
        super().__init__("_copyto", [destination], destination)

    def copy(self, source: nd.NDArray) -> None:
        """Queue the copy; nothing waits for it."""
        self._inputs[0] = source.handle
        self(NO_ATTRIBUTES)


class AddInto(OperatorCall):
    """``AddInto(dst).add(src)`` is ``dst += src``, on one device.

    The arrays have the same shape and type.
    """

    def __init__(self, destination: nd.NDArray) -> None:
        super().__init__(ADD_TWO, [destination, destination], destination)

    def add(self, source: nd.NDArray) -> None:
        """Queue the addition; nothing waits for it."""
        self._inputs[1] = source.handle
        self(NO_ATTRIBUTES)


class Fence:
    """An engine operation that computes nothing.

    It waits for all writes to ``read`` and all use of ``written``.

    Whatever uses ``written`` afterwards comes after it. So it can order arrays that share memory
    without the engine's knowledge.
    """

    # A function of MXNet's that takes no arguments, changes nothing, and needs no Python when the
    # engine calls it.
    _NOTHING = ctypes.cast(_LIB.MXGetLastError, ctypes.c_void_p)

    def __init__(
        self, ctx: mx.Context, read: Sequence[nd.NDArray], written: Sequence[nd.NDArray]
    ) -> None:
        self._ctx = EngineContext(ctx.device_typeid, ctx.device_id)
        self._arrays = (*read, *written)  # keeps the handles alive
        self._read = (ctypes.c_void_p * len(read))(*[array.handle for array in read])
        self._written = (ctypes.c_void_p * len(written))(*[array.handle for array in written])

    def __call__(self, priority: int = 0) -> None:
        """Queue it; nothing waits for it."""
        check_call(
            _LIB.MXEnginePushSyncND(
                self._NOTHING, None, None, ctypes.byref(self._ctx), self._read, len(self._read),
                self._written, len(self._written), None, priority, b"gluonlab.Fence",
            )
        )  # fmt: skip


@contextmanager
def between_passes(arrays: Sequence[nd.NDArray]) -> Iterator[None]:
    """What this block queues on running statistics sees whole passes: all before it, none after.

    MXNet's BatchNorm moves them, on a GPU in forward and on a CPU in backward, while the engine
    takes it for a reader: it would let a copy of them run before, beside or after a pass.
    """
    fences = [Fence(array.context, [], [array]) for array in arrays]
    for fence in fences:
        fence()
    yield
    for fence in fences:
        fence()


def flattened(array: nd.NDArray) -> nd.NDArray:
    """The same memory as an mx.nd array of one dimension; a reshaped mx.np array is a copy.

    An array without elements as it is.
    """
    return array.as_nd_ndarray().reshape((-1,)) if array.size else array


def settling(flat: nd.NDArray) -> Iterator[Call]:
    """The calls that put an array into plain row order.

    oneDNN leaves some arrays in blocks of its own order, which slices and aliases do not know.

    Writing to one element, what it was, makes MXNet put the whole array back in order.
    """
    if flat.size and not is_gpu(flat):
        one = flat[0:1]
        yield operator_call("_mul_scalar", [one], one, Attributes({"scalar": 1.0}))


def operator_call(
    operator: str,
    inputs: Sequence[nd.NDArray],
    output: nd.NDArray,
    attributes: Attributes = NO_ATTRIBUTES,
) -> Call:
    """The call that queues an operator."""
    return partial(OperatorCall(operator, inputs, output), attributes)


def added(inputs: Sequence[nd.NDArray], output: nd.NDArray, so_far: nd.NDArray) -> Iterator[Call]:
    """The calls that add ``inputs`` in order into ``output``.

    ``so_far``: ``output`` as the calls after the first read it.
    """
    first, *others = inputs
    if len(inputs) >= FEWEST_FOR_ADD_N:
        yield operator_call("add_n", inputs, output, Attributes({"num_args": len(inputs)}))
        return
    for other in others:
        yield operator_call(ADD_TWO, [first, other], output)
        first = so_far


def added_at_once(inputs: Sequence[nd.NDArray], output: nd.NDArray) -> Call:
    """The call that adds ``ADDED_AT_ONCE`` many inputs in their order, on the last one's device.

    add_n makes a + (b + (c + d)) of four, so they are given to it the other way round; it reads
    each of them once, where one addition after the other takes three times as long.
    """
    return operator_call("add_n", inputs[::-1], output, Attributes({"num_args": len(inputs)}))


def added_on_gpu(inputs: Sequence[nd.NDArray], output: nd.NDArray) -> Iterator[Call]:
    """The same sums, to the bit, by fewer operations on a GPU.

    A GPU has no oneDNN, and one kernel of ``add_n`` adds up to four arrays.

    It makes a + (b + (c + d)) of them, so they are given to it the other way round. Of float16 it
    takes two elements at once, which a slice of a bucket may not have, or not where a pair of them
    must lie; int8 it does not know.
    """
    so_far, *others = inputs
    most = 1 if np.dtype(output.dtype) in (np.float16, np.int8) else MOST_IN_ONE_KERNEL - 1
    for begin in range(0, len(others), most):
        some = [*others[begin : begin + most][::-1], so_far]
        if len(some) == 2:
            yield operator_call(ADD_TWO, some, output)
        else:
            yield operator_call("add_n", some, output, Attributes({"num_args": len(some)}))
        so_far = output


def is_gpu(array: nd.NDArray) -> bool:
    """Whether an array lies on a GPU."""
    return bool(array.context.device_type == "gpu")


GATE_LOOK_S = 0.05  # how often a closed gate looks at its limit


class Gate:
    """A gate in front of what is queued: what reads or writes ``arrays`` waits until `open`.

    So the host gets ahead of the devices.

    It opens by itself after ``limit_s``, for hosts that wait for their devices; `held` says that it
    has not.
    """

    def __init__(self, arrays: Sequence[nd.NDArray], limit_s: float) -> None:
        self._opened, self.held = threading.Event(), True
        self._deadline = time.monotonic() + limit_s
        self._kept: List[Any] = []  # what the engine calls must live until it has
        for array in arrays:
            self._close(array)

    def stay(self, limit_s: float) -> None:
        """Open by itself only after so long from now, if it is closed yet."""
        self._deadline = time.monotonic() + limit_s

    def open(self) -> None:
        """Let all that waits begin. Wait for the devices before this object goes."""
        self._opened.set()

    def _close(self, array: nd.NDArray) -> None:
        def wait(run_context: object, parameter: object) -> None:
            while not self._opened.wait(GATE_LOOK_S):
                if time.monotonic() > self._deadline:
                    self.held = False
                    self._opened.set()

        callback = EngineCallback(wait)
        self._kept.append((callback, array))
        push(callback, array, b"gluonlab.Gate")
