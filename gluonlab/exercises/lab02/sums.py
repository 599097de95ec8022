"""Whether an allreduce left the sums on all devices, and if not, which fault that looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Set

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.exercises.shared.arrays import cpus, in_words
from gluonlab.exercises.shared.counterexamples import Pair, looks_like, wrong
from gluonlab.exercises.shared.watch import Seen, check_devices, watch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


def check_allreduce(
    answer: Callable[[List[Any]], Any], values: "List[List[Floats]]", alone: bool = False
) -> Seen:
    """Raise Wrong unless ``answer`` sums values[i][j], parameter j on device i, over i.

    ``alone``: it is given the one parameter of each device, not a list of them. Returns the copies
    and waits that `watch` saw.
    """
    held = [
        [nd.array(value, ctx=ctx) for value in row] for row, ctx in zip(values, cpus(len(values)))
    ]
    rows = [list(row) for row in held]
    given: List[Any] = [row[0] for row in rows] if alone else rows
    with watch() as seen:
        returned = answer(given)
    now = [[one] for one in given] if alone else given
    old = {id(one) for row in held for one in row}
    made_new = any(id(one) not in old for one in [*_arrays(now), *_arrays(returned)])
    _check_sums(held, values, made_new, set(seen.received()) if alone else set())
    check_devices(seen)
    return seen


def _arrays(given: Any) -> List[nd.NDArray]:
    """All arrays in a list of lists."""
    if isinstance(given, (list, tuple)):
        return [one for each in given for one in _arrays(each)]
    return [given] if isinstance(given, nd.NDArray) else []


def _check_sums(
    held: List[List[nd.NDArray]],
    values: "List[List[Floats]]",
    made_new: bool,
    received: "Set[mx.Context]",
) -> None:
    """Raise Wrong unless held[i][j], which was values[i][j] on device i, is now the sum over i.

    ``made_new``: other arrays were put in their places, or returned. ``received``: the devices to
    which something of the one parameter was copied; empty where there are several.
    """
    several = len(values[0]) > 1
    for j in range(len(values[0])):
        before = [row[j] for row in values]
        want, got = sum(before[1:], before[0]), [row[j].asnumpy() for row in held]
        which, which_ja = (
            (f"parameter {j}, which was ", f"パラメータ {j} が ") if several else ("for ", "")
        )
        given = ", ".join(map(in_words, before))
        for device, result in enumerate(got):
            if not np.array_equal(result, want):
                raise wrong(
                    f"{which}{given}: device {device} holds {in_words(result)} afterwards, "
                    f"expected {in_words(want)}",
                    f"{which_ja}{given} のとき: 実行後のデバイス {device} は {in_words(result)} "
                    f"で、正しくは {in_words(want)} です",
                    _why_no_sum(before, got, device, made_new, cpus(len(held))[device] in received),
                )


def _why_no_sum(
    before: "List[Floats]", got: "List[Floats]", device: int, made_new: bool, received: bool
) -> Pair:
    """Which fault a result looks like. ``received``: whether something was copied to the device."""
    total, same = sum(before[1:], before[0]), np.array_equal
    unchanged, of_this = all(map(same, before, got)), same(got[device], before[device])
    return looks_like(
        (unchanged and made_new,
         "new arrays were made or returned, and the old ones left as they were. "
         "Write into them: `array[:] = ...`, `+=` or `copyto(array)`",
         "新しい配列を作っただけで、元の配列は変わっていません。"
         "`array[:] = ...`、`+=`、`copyto(array)` で元の配列に書き込んでください"),
        (of_this and received,
         "something was copied to this device, but into an array of its own. "
         "Write into the one that is there: `array[:] = ...`, `+=` or `copyto(array)`",
         "このデバイスへのコピーは別の新しい配列になっただけです。"
         "`array[:] = ...`、`+=`、`copyto(array)` で元の配列に書き込んでください"),
        (unchanged, "no array has changed", "どの配列も変わっていません"),
        (any(same(one, total) for one in got) and of_this,
         "the sum never came back to this device", "合計した値がこのデバイスに戻されていません"),
        (all(same(one, total + before[0]) for one in got),
         "the first device's array was counted twice", "最初のデバイスの配列を 2 回足しています"),
        (total.any() and all(np.allclose(one, total / len(before)) for one in got),
         "that is the mean, not the sum", "これは合計ではなく平均です"),
        (not same(got[0], got[-1]), "the devices do not agree", "デバイスによって値が違います"),
    )  # fmt: skip
