"""The arrays that checkers give to answers: on CPU devices, in words, and not written into."""

from __future__ import annotations

from typing import Any, List, Sequence

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.devices import devices
from gluonlab.exercises.exercise import Wrong

MOST = 8  # numbers that are written out


def cpus(n: int) -> List[mx.Context]:
    """``n`` CPU devices of one thread each, whatever devices the lab itself has.

    Never one alone: it would be given all cores, and the lab's own CPU devices beside it would hang
    (`gluonlab.engine.threads`).
    """
    return devices(f"cpu*{max(n, 2)}")[:n]


def in_words(array: Any) -> str:
    """``[1, 2.5, 3]``; of a large array its shape and the first numbers."""
    values = np.asarray(array.asnumpy() if isinstance(array, nd.NDArray) else array)
    flat = ", ".join(f"{value:.4g}" for value in values.reshape(-1)[:MOST])
    if values.ndim == 1 and values.size <= MOST:
        return f"[{flat}]"
    return f"{'x'.join(map(str, values.shape))} [{flat}{', ...' if values.size > MOST else ''}]"


def check_arrays(arrays: Sequence[nd.NDArray], values: Sequence[Any]) -> None:
    """Raise Wrong if one of the arrays that an answer was given no longer has its value."""
    for index, (array, value) in enumerate(zip(arrays, values)):
        if not np.array_equal(array.asnumpy(), np.asarray(value, dtype=array.dtype)):
            raise Wrong(
                en=f"array {index} that it was given was {in_words(value)} and is "
                f"{in_words(array)} afterwards: it was written into; begin with a copy",
                ja=f"渡した配列 {index} が {in_words(value)} から {in_words(array)} "
                "に書き換えられました。コピーに対して計算してください",
            )
