"""What answers do with arrays: the copies and waits that they cause, and how they call networks.

CPU devices share one memory, so an operation may read arrays of several of them; on GPUs it would
fail. A checker sees it on CPUs, too::

    with watch() as seen:
        answer(arrays)
    seen.mixed       # operations with inputs on several devices
    seen.received()  # bytes that were copied onto each device
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
from gluonlab.exercises.checkers import Wrong

MAX_SHOWN_NUMBERS = 8  # numbers that are written out


def cpu_devices(n: int) -> List[mx.Context]:
    """``n`` CPU devices of one thread each, whatever devices the lab itself has.

    Never one alone: it would be given all cores, and the lab's own CPU devices beside it would hang
    (`gluonlab.engine.cpu_threads`).
    """
    return devices(f"cpu*{max(n, 2)}")[:n]


def format_array(array: Any) -> str:
    """``[1, 2.5, 3]``; of a large array its shape and the first numbers."""
    values = np.asarray(array.asnumpy() if isinstance(array, nd.NDArray) else array)
    flat = ", ".join(f"{value:.4g}" for value in values.reshape(-1)[:MAX_SHOWN_NUMBERS])
    if values.ndim == 1 and values.size <= MAX_SHOWN_NUMBERS:
        return f"[{flat}]"
    return f"{'x'.join(map(str, values.shape))} [{flat}{', ...' if values.size > MAX_SHOWN_NUMBERS else ''}]"


def check_unmodified(arrays: Sequence[nd.NDArray], values: Sequence[Any]) -> None:
    """Raise Wrong if one of the arrays that an answer was given no longer has its value."""
    for index, (array, value) in enumerate(zip(arrays, values)):
        if not np.array_equal(array.asnumpy(), np.asarray(value, dtype=array.dtype)):
            raise Wrong(
                en=f"array {index} that it was given was {format_array(value)} and is "
                f"{format_array(array)} afterwards: it was written into; begin with a copy",
                ja=f"渡した配列 {index} が {format_array(value)} から {format_array(array)} "
                "に書き換えられました。コピーに対して計算してください",
            )


class ArrayCopy(NamedTuple):
    """One array that went from a device to another one."""

    src: mx.Context
    dst: mx.Context
    bytes: int


@dataclass
class ArrayTrace:
    """What was seen while `watch` was on."""

    copies: List[ArrayCopy] = field(default_factory=list)
    # the devices of two inputs of one operation
    mixed_inputs: List[Tuple[mx.Context, mx.Context]] = field(default_factory=list)
    waits: int = 0  # how often Python waited for values

    def received_bytes(self) -> Dict[mx.Context, int]:
        """Bytes that were copied onto each device from others."""
        total: "Counter[mx.Context]" = Counter()
        for copy in self.copies:
            total[copy.dst] += copy.bytes
        return dict(total)


@contextmanager
def watch() -> Iterator[ArrayTrace]:
    """Record every operation on arrays, and every wait, until the block ends."""
    seen, invoke, copyto = ArrayTrace(), register._imperative_invoke, operator_handle("_copyto")

    def watched_invoke(
        handle: int, inputs: Any, keys: Any, values: Any, out: Any, *rest: Any
    ) -> Any:
        result = invoke(handle, inputs, keys, values, out, *rest)
        results = result if isinstance(result, list) else [result]
        ctxs = [array.context for array in (*inputs, *results)]
        others = [ctx for ctx in ctxs if ctx != ctxs[0]]
        if others and handle == copyto:
            seen.copies.append(
                ArrayCopy(ctxs[0], others[0], inputs[0].size * np.dtype(inputs[0].dtype).itemsize)
            )
        elif others:
            seen.mixed_inputs.append((ctxs[0], others[0]))
        return result

    def counted(wait: Callable[..., Any]) -> Callable[..., Any]:
        def watched_wait(*arguments: Any) -> Any:
            seen.waits += 1
            return wait(*arguments)

        return watched_wait

    with ExitStack() as patched:
        patched.enter_context(patch.object(register, "_imperative_invoke", watched_invoke))
        for owner, name in (
            (mx.nd.NDArray, "asnumpy"),
            (mx.nd.NDArray, "wait_to_read"),
            (mx.nd, "waitall"),
        ):
            patched.enter_context(patch.object(owner, name, counted(getattr(owner, name))))
        yield seen


def operator_handle(operator: str) -> int:
    """MXNet's number for an operator, as the functions in mx.nd give it."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(operator.encode(), ctypes.byref(handle)))
    return int(handle.value or 0)


def check_mixing_and_waits(seen: ArrayTrace) -> None:
    """Raise Wrong if an operation mixed devices, or Python waited."""
    for one, other in seen.mixed_inputs:
        raise Wrong(
            en=f"the sums are right, but an operation had arrays of {one} and {other}: "
            "CPU devices allow that, two GPUs do not. Copy the array first: `as_in_context`",
            ja=f"合計は正しいのですが、{one} と {other} の配列を 1 つの演算に渡しています。"
            "CPU デバイスでは動きますが、2 個の GPU では動きません。"
            "先に `as_in_context` でコピーしてください",
        )
    if seen.waits:
        raise Wrong(
            en=f"the sums are right, but Python waited {seen.waits} times for values (`asnumpy`, "
            "`print`, `waitall`): the devices stand still meanwhile. "
            "Copy from device to device",
            ja=f"合計は正しいのですが、Python が値を {seen.waits} 回待ちました (`asnumpy`、"
            "`print`、`waitall`)。その間デバイスは止まります。"
            "デバイスからデバイスへ直接コピーしてください",
        )


ACTIVATIONS_KEPT_EN = (
    "the next microbatch goes forward before the backward of the last one, so the network keeps "
    "the activations of both, and no memory is saved"
)
ACTIVATIONS_KEPT_JA = (
    "前のマイクロバッチの逆伝播より先に次の順伝播をしています。"
    "両方の活性値が残るので、メモリは減りません"
)


class ForwardRecorder:
    """Watches a network with grad_req "add" from now on.

    ``sizes``: of the first input of each call; ``kept_before_backward``: whether at some call the
    one before had still to go backward, and no gradient had come in between.
    """

    def __init__(self, net: gluon.Block) -> None:
        self._net = net
        self.reset()
        net.register_forward_pre_hook(self._record_forward_start)
        net.register_forward_hook(self._record_forward_end)

    def reset(self) -> None:
        """Begin anew, as for another batch."""
        self.batch_sizes: List[int] = []
        self.overlapping_forwards = False
        self._last: Any = None  # the output of the call before, and the gradients at that time

    def _record_forward_start(self, block: gluon.Block, inputs: Any) -> None:
        if self._last is not None:
            output, gradients = self._last
            self.overlapping_forwards |= (
                _has_autograd_graph(output) and gradients == self._gradients()
            )
        self.batch_sizes.append(len(inputs[0]))

    def _record_forward_end(self, block: gluon.Block, inputs: Any, output: Any) -> None:
        self._last = output, self._gradients()

    def _gradients(self) -> List[bytes]:
        return [param.grad().asnumpy().tobytes() for param in self._net.collect_params().values()]


def _has_autograd_graph(output: nd.NDArray) -> bool:
    """Whether autograd still has what led to this array."""
    try:
        autograd.get_symbol(output)
    except MXNetError:
        return False
    return True
