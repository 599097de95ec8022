"""What an answer makes MXNet do: the bytes it copies between devices, and when Python waits.

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
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple
from unittest.mock import patch

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import register

from gluonlab.exercises.exercise import Wrong


class Copy(NamedTuple):
    """One array that went from a device to another one."""

    src: mx.Context
    dst: mx.Context
    bytes: int


@dataclass
class Seen:
    """What was seen while `watch` was on."""

    copies: List[Copy] = field(default_factory=list)
    # the devices of two inputs of one operation
    mixed: List[Tuple[mx.Context, mx.Context]] = field(default_factory=list)
    waits: int = 0  # how often Python waited for values

    def received(self) -> Dict[mx.Context, int]:
        """Bytes that were copied onto each device from others."""
        total: "Counter[mx.Context]" = Counter()
        for copy in self.copies:
            total[copy.dst] += copy.bytes
        return dict(total)


@contextmanager
def watch() -> Iterator[Seen]:
    """Record every operation on arrays, and every wait, until the block ends."""
    seen, invoke, copyto = Seen(), register._imperative_invoke, handle_of("_copyto")

    def watched_invoke(
        handle: int, inputs: Any, keys: Any, values: Any, out: Any, *rest: Any
    ) -> Any:
        result = invoke(handle, inputs, keys, values, out, *rest)
        results = result if isinstance(result, list) else [result]
        ctxs = [array.context for array in (*inputs, *results)]
        others = [ctx for ctx in ctxs if ctx != ctxs[0]]
        if others and handle == copyto:
            seen.copies.append(
                Copy(ctxs[0], others[0], inputs[0].size * np.dtype(inputs[0].dtype).itemsize)
            )
        elif others:
            seen.mixed.append((ctxs[0], others[0]))
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


def handle_of(operator: str) -> int:
    """MXNet's number for an operator, as the functions in mx.nd give it."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(operator.encode(), ctypes.byref(handle)))
    return int(handle.value or 0)


def check_devices(seen: Seen) -> None:
    """Raise Wrong if an operation mixed devices, or Python waited."""
    for one, other in seen.mixed:
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
