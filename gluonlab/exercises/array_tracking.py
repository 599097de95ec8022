"""Record the array operations in a learner's answer: copies, waits, and calls of networks.

CPU devices share one memory, so an operation may read arrays of several CPU devices. On GPUs, an
operation with arrays of several devices fails. `watch` records these operations, so that a checker
can detect them on CPU devices::

    with watch() as trace:
        answer(arrays)
    trace.mixed_inputs      # operations with inputs on several devices
    trace.received_bytes()  # bytes that were copied onto each device
"""

from __future__ import annotations

import ctypes
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple
from unittest.mock import patch

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.base import _LIB, MXNetError, check_call
from mxnet.ndarray import register

from gluonlab.devices import devices
from gluonlab.exercises.exercise_registry import Wrong

MAX_SHOWN_NUMBERS = 8  # a message shows at most this many numbers of an array


def cpu_devices(n: int) -> List[mx.Context]:
    """Return ``n`` CPU devices with one thread each, even if the lab runs on GPUs."""
    # A single CPU device would get all cores, and the lab's other CPU devices would hang
    # (`gluonlab.engine.cpu_threads`).
    return devices(f"cpu*{max(n, 2)}")[:n]


def format_array(array: Any) -> str:
    """Format a short array as in ``[1, 2.5, 3]``, and other arrays by shape and first numbers."""
    values = np.asarray(array.asnumpy() if isinstance(array, nd.NDArray) else array)
    flat = ", ".join(f"{value:.4g}" for value in values.reshape(-1)[:MAX_SHOWN_NUMBERS])
    if values.ndim == 1 and values.size <= MAX_SHOWN_NUMBERS:
        return f"[{flat}]"
    more = ", ..." if values.size > MAX_SHOWN_NUMBERS else ""
    return f"{'x'.join(map(str, values.shape))} [{flat}{more}]"


def check_unmodified(arrays: Sequence[nd.NDArray], values: Sequence[Any]) -> None:
    """Raise Wrong if the answer has changed an array that it was given.

    ``values``: the contents of the ``arrays`` before the call.
    """
    for index, (array, value) in enumerate(zip(arrays, values)):
        if not np.array_equal(array.asnumpy(), np.asarray(value, dtype=array.dtype)):
            raise Wrong(
                en=f"your code changed array {index} of its input from {format_array(value)} to "
                f"{format_array(array)}: compute with a copy",
                ja=f"渡した配列 {index} が {format_array(value)} から {format_array(array)} "
                "に書き換えられました。コピーに対して計算してください",
            )


class ArrayCopy(NamedTuple):
    """A copy of an array from one device to another."""

    src: mx.Context
    dst: mx.Context
    bytes: int


@dataclass
class ArrayTrace:
    """The copies, mixed operations and waits that `watch` recorded."""

    copies: List[ArrayCopy] = field(default_factory=list)
    # for each operation with inputs and outputs on several devices: two of these devices
    mixed_inputs: List[Tuple[mx.Context, mx.Context]] = field(default_factory=list)
    waits: int = 0  # how often Python waited for values

    def received_bytes(self) -> Dict[mx.Context, int]:
        """Return how many bytes were copied onto each device from other devices."""
        total: "Counter[mx.Context]" = Counter()
        for copy in self.copies:
            total[copy.dst] += copy.bytes
        return dict(total)


@contextmanager
def watch() -> Iterator[ArrayTrace]:
    """Record copies, waits, and operations that mix devices, in a ``with`` block."""
    trace, invoke, copyto = ArrayTrace(), register._imperative_invoke, operator_handle("_copyto")

    def record_and_invoke(handle: int, inputs: Any, keys: Any, values: Any, out: Any, *rest: Any) -> Any:
        """Call MXNet's operator ``handle``, and record copies and operations that mix devices."""
        result = invoke(handle, inputs, keys, values, out, *rest)
        results = result if isinstance(result, list) else [result]
        contexts = [array.context for array in (*inputs, *results)]
        other_contexts = [ctx for ctx in contexts if ctx != contexts[0]]
        if other_contexts and handle == copyto:
            trace.copies.append(
                ArrayCopy(contexts[0], other_contexts[0], inputs[0].size * np.dtype(inputs[0].dtype).itemsize)
            )
        elif other_contexts:
            trace.mixed_inputs.append((contexts[0], other_contexts[0]))
        return result

    def count_waits(wait: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an MXNet function that waits, so that the trace counts its calls."""

        def count_and_wait(*arguments: Any) -> Any:
            trace.waits += 1
            return wait(*arguments)

        return count_and_wait

    with ExitStack() as patched:
        patched.enter_context(patch.object(register, "_imperative_invoke", record_and_invoke))
        for owner, name in ((mx.nd.NDArray, "asnumpy"), (mx.nd.NDArray, "wait_to_read"), (mx.nd, "waitall")):
            patched.enter_context(patch.object(owner, name, count_waits(getattr(owner, name))))
        yield trace


def operator_handle(operator: str) -> int:
    """Return MXNet's handle for an operator. Functions in ``mx.nd`` pass this number to MXNet."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(operator.encode(), ctypes.byref(handle)))
    return int(handle.value or 0)


def check_mixing_and_waits(trace: ArrayTrace) -> None:
    """Raise Wrong if an operation mixed arrays of several devices, or if Python waited for a result."""
    for one, other in trace.mixed_inputs:
        raise Wrong(
            en=f"the sums are right, but one operation used arrays on {one} and {other}. CPU devices allow this, but "
            "GPUs do not: first copy one of the arrays with `as_in_context`",
            ja=f"合計は正しいのですが、{one} と {other} の配列を 1 つの演算に渡しています。CPU デバイスでは動きますが、"
            "2 個の GPU では動きません。先に `as_in_context` でコピーしてください",
        )
    if trace.waits:
        raise Wrong(
            en=f"the sums are right, but Python waited {trace.waits} times for values (`asnumpy`, `print`, "
            "`waitall`), and the devices were idle meanwhile: copy directly from device to device",
            ja=f"合計は正しいのですが、Python が値を {trace.waits} 回待ちました (`asnumpy`、`print`、`waitall`)。"
            "その間デバイスは止まります。デバイスからデバイスへ直接コピーしてください",
        )


ACTIVATIONS_KEPT_EN = (
    "the forward pass of the next microbatch runs before the backward pass of the previous one, so the model keeps "
    "the activations of both and saves no memory"
)
ACTIVATIONS_KEPT_JA = (
    "前のマイクロバッチの逆伝播より先に次の順伝播をしています。両方の活性値が残るので、メモリは減りません"
)


class ForwardRecorder:
    """Records the forward calls of a network with grad_req "add".

    Attributes:
        batch_sizes: the size of the first input in each call.
        overlapping_forwards: whether a call started before the backward pass of the previous call.
            In this case, the previous call's graph still exists, and no gradient has changed.
    """

    def __init__(self, net: gluon.Block) -> None:
        self._net = net
        self.reset()
        net.register_forward_pre_hook(self._record_forward_start)
        net.register_forward_hook(self._record_forward_end)

    def reset(self) -> None:
        """Forget all recorded calls, for example before the next batch."""
        self.batch_sizes: List[int] = []
        self.overlapping_forwards = False
        self._last: Any = None  # (output, gradients) after the previous call

    def _record_forward_start(self, block: gluon.Block, inputs: Any) -> None:
        """Record the batch size of a call, and whether the call overlaps with the previous call."""
        if self._last is not None:
            output, gradients = self._last
            self.overlapping_forwards |= _has_autograd_graph(output) and gradients == self._gradients()
        self.batch_sizes.append(len(inputs[0]))

    def _record_forward_end(self, block: gluon.Block, inputs: Any, output: Any) -> None:
        self._last = output, self._gradients()

    def _gradients(self) -> List[bytes]:
        return [param.grad().asnumpy().tobytes() for param in self._net.collect_params().values()]


def _has_autograd_graph(output: nd.NDArray) -> bool:
    """Return whether autograd still has the graph that computed this array."""
    try:
        autograd.get_symbol(output)
    except MXNetError:
        return False
    return True
