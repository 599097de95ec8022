"""01-3: a batch cut into shards of given sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Tuple

import numpy as np
from mxnet import nd

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.arrays import cpus, in_words
from gluonlab.exercises.shared.counterexamples import Case, wrong

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


def _cuts() -> "List[Tuple[Array, List[int]]]":
    """Arrays and the sizes of their shards, the simplest first."""
    random = draws(0)
    cuts: "List[Tuple[Array, List[int]]]" = [
        (np.arange(4, dtype=np.float32), [2, 2]),
        (np.arange(4, dtype=np.float32), [3, 1]),
        (np.arange(6, dtype=np.float32), [1, 2, 3]),
        (np.arange(5, dtype=np.int32), [2, 3]),
        (np.arange(12, dtype=np.uint8).reshape(6, 1, 2), [1, 4, 1]),
    ]
    for _ in range(4):
        sizes = random.randint(1, 6, random.randint(1, 5)).tolist()
        cuts.append((random.randint(0, 100, (sum(sizes), 3)).astype(np.float32), sizes))
    return cuts


@exercise("01-3")
def shards_for_unequal_devices(answer: Callable[..., Any]) -> None:
    """A batch cut into shards of the sizes asked for, each on its device."""
    for array, sizes in _cuts():
        ctxs = cpus(len(sizes))
        got = answer(nd.array(array, dtype=array.dtype), list(sizes), list(ctxs))
        en, ja = f"{len(array)} rows in shards of {sizes}", f"{len(array)} 行を {sizes} に分割"
        if not isinstance(got, (list, tuple)) or len(got) != len(sizes):
            count = len(got) if isinstance(got, (list, tuple)) else type(got).__name__
            raise wrong(
                f"{en} gave {count}: return a list of {len(sizes)} arrays, one per device",
                f"{ja}すると {count} が返りました。デバイスごとに 1 つ、"
                f"{len(sizes)} 個の配列のリストを返してください",
            )
        lengths = [len(shard) for shard in got]
        if lengths != sizes:
            raise wrong(
                f"{en} gave shards of {lengths} rows: each device gets as many as its entry of "
                "`sizes` says",
                f"{ja}すると {lengths} 行になりました。各デバイスには `sizes` "
                "のとおりの行数を渡してください",
            )
        for shard, end, size, ctx in zip(got, np.cumsum(sizes), sizes, ctxs):
            want = array[end - size : end]
            Case(en, ja).check(
                (not np.array_equal(shard.asnumpy(), want),
                 f"the shard for {ctx} is {in_words(shard)}, expected {in_words(want)}: "
                 "a shard begins where the one before it ends, at the sum of the sizes before it",
                 f"{ctx} のシャードが {in_words(shard)} です。正しくは {in_words(want)} です。"
                 "シャードは直前のシャードの終わり (それまでの大きさの合計) から始まります"),
                (shard.context != ctx,
                 f"the shard for {ctx} is on {shard.context}: "
                 "it was cut, but never moved to its device",
                 f"{ctx} のシャードが {shard.context} にあります。"
                 "分割しただけで、デバイスに移していません"),
                (shard.dtype != array.dtype,
                 f"{array.dtype} became {np.dtype(shard.dtype)}: "
                 "cut and copy the array itself; `nd.array` of numbers makes float32",
                 f"型が {array.dtype} から {np.dtype(shard.dtype)} に変わりました。"
                 "配列そのものを分割してコピーしてください。`nd.array` は float32 を作ります"),
            )  # fmt: skip
