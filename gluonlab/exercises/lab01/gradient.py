"""01-4: the gradient of a batch out of those of its shards."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import numpy as np
from mxnet import nd

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.arrays import check_arrays, cpus, in_words
from gluonlab.exercises.shared.counterexamples import wrong
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results
from gluonlab.exercises.shared.watch import watch

Array = Any  # np.ndarray


@exercise("01-4")
def whole_gradient(answer: Callable[..., Any]) -> None:
    """The gradient of the whole batch's mean loss out of those of its shards."""
    random = draws(0)
    cases: List[Tuple[List[List[float]], List[int]]] = [
        ([[2, 4]], [3]),
        ([[1, 0], [3, 0]], [1, 1]),
        ([[1, 0], [5, 0]], [3, 1]),
        ([[6, 0], [0, 6], [3, 3]], [1, 2, 3]),
    ]
    for n in (2, 3, 4):
        cases.append((random.randint(-9, 10, (n, 4)).tolist(), random.randint(1, 9, n).tolist()))
    found = results(lambda values, sizes: _whole(answer, values, sizes), cases, _mean)
    for (values, sizes), got, want in found:
        if not _same(got, want):
            case = ", ".join(f"{in_words(value)} ({size})" for value, size in zip(values, sizes))
            raise wrong(
                f"gradients (and images) {case} gave {in_words(got)}, expected {in_words(want)}",
                f"勾配 (枚数) が {case} のとき {in_words(got)} になりました。"
                f"正しくは {in_words(want)} です",
                explains(found, _same, *MISTAKES),
            )
    found.end()


def _whole(answer: Callable[..., Any], values: List[List[float]], sizes: List[int]) -> Array:
    """What the answer returns, after a look at what it did on the way."""
    ctxs = cpus(len(sizes))
    arrays = [nd.array(value, ctx=ctx) for value, ctx in zip(values, ctxs)]
    with watch() as seen:
        got = answer(list(arrays), list(sizes))
    if not isinstance(got, nd.NDArray):
        raise wrong(
            f"it returned {type(got).__name__}: return an array of MXNet, like the gradients",
            f"{type(got).__name__} が返りました。勾配と同じく MXNet の配列を返してください",
        )
    if not _same(got.asnumpy(), _mean(values, sizes)):
        return got.asnumpy()  # that comes first
    check_arrays(arrays, values)
    if got.context != ctxs[0]:
        raise wrong(
            f"the result of {len(sizes)} gradients is on {got.context}: "
            f"it belongs on the device of the first one, {ctxs[0]}",
            f"{len(sizes)} 個の勾配の結果が {got.context} にあります。"
            f"最初の勾配のデバイス {ctxs[0]} に置いてください",
        )
    for one, other in seen.mixed:
        raise wrong(
            f"an operation had inputs on {one} and {other}: "
            "CPU devices allow that, two GPUs do not. Copy first, with `as_in_context`",
            f"{one} と {other} の配列を 1 つの演算に渡しています。"
            "CPU デバイスでは動きますが、2 個の GPU では動きません。"
            "先に `as_in_context` でコピーしてください",
        )
    return got.asnumpy()


def _mean(values: List[List[float]], sizes: List[int]) -> Array:
    return np.average(np.array(values, dtype=np.float64), axis=0, weights=sizes)


def _same(got: Array, want: Array) -> bool:
    return got.shape == want.shape and bool(np.allclose(got, want, atol=1e-4))


def _by(formula: Callable[[Array, Array], Array]) -> Callable[..., bool]:
    """A mistake that gives a formula of the gradients (n, m) and the sizes (n, 1)."""
    return lambda values, sizes, got: _same(
        got, formula(np.array(values, dtype=np.float64), np.array(sizes, dtype=np.float64)[:, None])
    )


MISTAKES: List[Mistake] = [
    (_by(lambda values, sizes: values.sum(0)),
     "that is their sum, which is right for losses that are added, not for means",
     "これは合計で、損失を合計したときの答えです。平均の場合は異なります"),
    (_by(lambda values, sizes: values.mean(0)),
     "that is their mean, in which an image of a small shard counts more than one of a large "
     "shard",
     "これは単純な平均です。"
     "小さいシャードの画像の寄与が、大きいシャードの画像の寄与より大きくなっています"),
    (_by(lambda values, sizes: (values * sizes).sum(0)),
     "that is the gradient of the sum of all losses: divide by the number of all images",
     "これは全損失の合計の勾配です。全体の枚数で割ってください"),
    (_by(lambda values, sizes: (values / sizes).sum(0)),
     "a larger shard must count more, not less: multiply by its size",
     "大きいシャードほど寄与を大きくする必要があります。枚数で割らずに、枚数を掛けてください"),
    (_by(lambda values, sizes: (values * sizes).sum(0) / len(sizes)),
     "divide by the number of all images, not by the number of shards",
     "シャードの数ではなく、全体の枚数で割ってください"),
]  # fmt: skip
