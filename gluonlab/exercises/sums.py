"""Whether an allreduce left the sums, on which devices, and which fault it looks like if not."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Tuple

import numpy as np
from mxnet import nd

from gluonlab.exercises.arrays import in_words
from gluonlab.exercises.exercise import Wrong
from gluonlab.exercises.watch import Seen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


def check_sums(held: List[List[nd.NDArray]], values: "List[List[Floats]]", made_new: bool) -> None:
    """Raise Wrong unless held[i][j], which was values[i][j] on device i, is now the sum over i.

    ``made_new``: other arrays were.
    """
    for j in range(len(values[0])):
        before = [row[j] for row in values]
        want, got = sum(before[1:], before[0]), [row[j].asnumpy() for row in held]
        which = f"parameter {j}, which was " if len(values[0]) > 1 else "for "
        which_ja = f"パラメータ {j} が " if len(values[0]) > 1 else ""
        given = ", ".join(map(in_words, before))
        for device, result in enumerate(got):
            if np.array_equal(result, want):
                continue
            why_en, why_ja = _why_no_sum(before, got, device, made_new)
            raise Wrong(
                en=f"{which}{given}: device {device} holds {in_words(result)} afterwards, "
                f"expected {in_words(want)}{why_en}",
                ja=f"{which_ja}{given} のとき: 実行後のデバイス {device} は {in_words(result)} "
                f"で、正しくは {in_words(want)} です{why_ja}",
            )


def _why_no_sum(
    before: "List[Floats]", got: "List[Floats]", device: int, made_new: bool
) -> Tuple[str, str]:
    """Which fault a result looks like."""
    total = sum(before[1:], before[0])
    if all(np.array_equal(one, other) for one, other in zip(before, got)):
        if made_new:
            return (
                (
                    ": new arrays were made or returned, and the old ones left as they were. "
                    "Write into them: `array[:] = ...`, `+=` or `copyto(array)`"
                ),
                (
                    "。新しい配列を作っただけで、元の配列は変わっていません。"
                    "`array[:] = ...`、`+=`、`copyto(array)` で元の配列に書き込んでください"
                ),
            )
        return ": no array has changed", "。どの配列も変わっていません"
    if any(np.array_equal(one, total) for one in got) and np.array_equal(
        got[device], before[device]
    ):
        return (
            ": the sum never came back to this device",
            "。合計した値がこのデバイスに戻されていません",
        )
    if np.array_equal(got[0], total + before[0]):
        return (
            ": the first device's array was counted twice",
            "。最初のデバイスの配列を 2 回足しています",
        )
    if np.allclose(got[device], total / len(before)):
        return ": that is the mean, not the sum", "。これは合計ではなく平均です"
    if not np.array_equal(got[0], got[-1]):
        return ": the devices do not agree", "。デバイスによって値が違います"
    return "", ""


def check_devices(seen: Seen) -> None:
    """Raise Wrong if an operation mixed devices, or Python waited."""
    if seen.mixed:
        one, other = seen.mixed[0]
        raise Wrong(
            en=f"the sums are right, but an operation had arrays of {one} and {other}: "
            "CPU devices bear that, two GPUs do not. Copy the array first: `as_in_context`",
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
