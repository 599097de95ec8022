"""The exercises of lab 01: devices, and one batch on two of them."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.exercises.arrays import check_arrays, cpus, in_words
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.slow import queue_pause
from gluonlab.exercises.watch import watch


def _places() -> Dict[str, int]:
    """What MXNet itself says to the lines of exercise 01-1: the number of each array's device."""
    first, second = cpus(2)
    a = nd.ones((2, 2), ctx=first)
    b = a.as_in_context(second)
    c = a + 1
    d = b * b
    e = nd.zeros_like(d)
    f = d.as_in_context(first) + a
    with second:
        g = nd.ones((2, 2))
    h = g.copyto(a)
    return {
        name: array.context.device_id for name, array in zip("abcdefgh", (a, b, c, d, e, f, g, h))
    }


_REASONS = {
    "a": ("it was made with `ctx=first`", "`ctx=first` を指定して作られています"),
    "b": (
        "`as_in_context` gives a copy on the device that it is told",
        "`as_in_context` は指定したデバイス上のコピーを返します",
    ),
    "c": (
        "an operation runs where its input lies, and a is on `first`",
        "演算は入力のあるデバイスで実行され、a は `first` にあります",
    ),
    "d": (
        "both inputs lie on `second`, and so the product does",
        "入力は 2 つとも `second` にあり、積もそこで作られます",
    ),
    "e": (
        "`zeros_like` makes an array beside the one it is given",
        "`zeros_like` は渡された配列と同じデバイスに作ります",
    ),
    "f": ("d was copied to `first` before the sum", "足す前に d が `first` にコピーされています"),
    "g": (
        "`with second:` is for arrays that name no device",
        "`with second:` の中では、指定のない配列は `second` に作られます",
    ),
    "h": ("`copyto(a)` writes into a and returns it", "`copyto(a)` は a に書き込み、a を返します"),
}


@exercise("01-1")
def where_each_array_is(answer: Any) -> None:
    """On which device each of eight arrays lies, without running the lines."""
    if not isinstance(answer, dict):
        raise Wrong(
            en=f"{answer!r} is no dictionary: write one such as {{'a': 0, 'b': "
            "1, ...} with a number for each array",
            ja=f"{answer!r} は辞書ではありません。{{'a': 0, 'b': "
            "1, ...} のように、配列ごとに番号を書いてください",
        )
    for name, place in _places().items():
        if name not in answer:
            raise Wrong(en=f"there is no number for `{name}`", ja=f"`{name}` の番号がありません")
        if answer[name] is not True and answer[name] is not False and answer[name] == place:
            continue
        if answer[name] not in (0, 1) or isinstance(answer[name], bool):
            raise Wrong(
                en=f"`{name}` is said to be on {answer[name]!r}: "
                "give 0 for `first`, 1 for `second`",
                ja=f"`{name}` に {answer[name]!r} と書かれています。"
                "`first` なら 0、`second` なら 1 としてください",
            )
        en, ja = _REASONS[name]
        raise Wrong(
            en=f"`{name}` does not lie on device {answer[name]}: {en}",
            ja=f"`{name}` があるのはデバイス {answer[name]} ではありません。{ja}",
        )


PAUSE_S = 0.3  # of the work that is timed; an idle machine times it to a thousandth of that


@exercise("01-2")
def a_clock_that_tells_the_truth(answer: Callable[[Callable[[], None]], float]) -> None:
    """The seconds of work that is queued: all of it, and nothing else."""
    first, second = cpus(2)
    calls: List[float] = []

    def work(ctxs: Sequence[mx.Context] = (first,)) -> None:
        calls.append(time.perf_counter())
        for ctx in ctxs:
            queue_pause(ctx, PAUSE_S)

    def waiting() -> None:
        work()
        nd.waitall()

    nd.waitall()
    got = _seconds(answer, work)
    if len(calls) != 1:
        raise Wrong(
            en=f"`work` was called {len(calls)} times: call it once, "
            "for its seconds are to be those of one call",
            ja=f"`work` が {len(calls)} 回呼ばれました。1 回分の秒数を返すので、"
            "呼び出しは 1 回だけにしてください",
        )
    _not_too_short(got, f"work that keeps {first} busy", f"{first} での")
    nd.waitall()
    _not_too_short(
        _seconds(answer, lambda: work((second,))),
        f"work that keeps {second} busy",
        f"{second} での",
    )
    nd.waitall()
    _counts_waiting(_seconds(answer, waiting))
    queue_pause(first, PAUSE_S)
    got = _seconds(answer, lambda: None)
    if got > 0.8 * PAUSE_S:
        raise Wrong(
            en=f"work that does nothing was said to take {got:.2f} s: "
            f"{PAUSE_S} s of other work had been queued before, and were counted as well. "
            "Wait for that before the clock is started",
            ja=f"何もしない処理に {got:.2f} 秒かかったことになりました。"
            f"その前にキューに入っていた {PAUSE_S} 秒の別の処理まで数えています。"
            "時計を動かす前に、それが終わるのを待ってください",
        )


def _counts_waiting(got: float) -> None:
    if got < 0.9 * PAUSE_S:
        raise Wrong(
            en=f"work that waits for its own {PAUSE_S} s before it returns was said to take "
            f"{got:.3f} s: the clock was started when `work` had come back. "
            "Start it before the call",
            ja=f"{PAUSE_S} 秒の計算を自分で待ってから戻る処理が {got:.3f} 秒になりました。"
            "`work` が戻ってから時計を動かしています。呼び出す前に動かしてください",
        )


def _seconds(answer: Callable[[Callable[[], None]], float], work: Callable[[], None]) -> float:
    got = answer(work)
    if isinstance(got, (int, float, np.number)):
        return float(got)
    raise Wrong(
        en=f"it returned {got!r}: return the number of seconds",
        ja=f"{got!r} が返りました。秒数を数値で返してください",
    )


def _not_too_short(got: float, en: str, ja: str) -> None:
    if got < 0:
        raise Wrong(
            en=f"{en} for {PAUSE_S} s was said to take {got:.3f} s: "
            "subtract the earlier time from the later one",
            ja=f"{ja} {PAUSE_S} 秒の処理が {got:.3f} 秒になりました。"
            "後の時刻から前の時刻を引いてください",
        )
    if got < 0.9 * PAUSE_S:
        raise Wrong(
            en=f"{en} for {PAUSE_S} s was said to take {got:.3f} s: "
            "the clock was read when the work had been queued, before it was done",
            ja=f"{ja} {PAUSE_S} 秒の処理が {got:.3f} 秒になりました。"
            "処理をキューに入れただけで、終わる前に時計を読んでいます",
        )
    if got > 100 * PAUSE_S:
        raise Wrong(
            en=f"{en} for {PAUSE_S} s was said to take {got:.3f}: return seconds",
            ja=f"{ja} {PAUSE_S} 秒の処理が {got:.3f} になりました。単位は秒にしてください",
        )


def _cuts() -> "List[Tuple[np.ndarray[Any, Any], List[int]]]":
    """Arrays and the sizes of their shards, the simplest first."""
    random = np.random.RandomState(0)
    cuts: "List[Tuple[np.ndarray[Any, Any], List[int]]]" = [
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
        ends = np.cumsum(sizes)
        got = answer(nd.array(array, dtype=array.dtype), list(sizes), list(ctxs))
        en, ja = f"{len(array)} rows in shards of {sizes}", f"{len(array)} 行を {sizes} に分割"
        if not isinstance(got, (list, tuple)) or len(got) != len(sizes):
            count = len(got) if isinstance(got, (list, tuple)) else type(got).__name__
            raise Wrong(
                en=f"{en} gave {count}: return a list of {len(sizes)} arrays, one per device",
                ja=f"{ja}すると {count} が返りました。デバイスごとに 1 つ、"
                f"{len(sizes)} 個の配列のリストを返してください",
            )
        lengths = [len(shard) for shard in got]
        if lengths != sizes:
            raise Wrong(
                en=f"{en} gave shards of {lengths} rows: each device gets as many as its entry "
                "of `sizes` says",
                ja=f"{ja}すると {lengths} 行になりました。各デバイスには `sizes` "
                "のとおりの行数を渡してください",
            )
        for shard, end, size, ctx in zip(got, ends, sizes, ctxs):
            want = array[end - size : end]
            if not np.array_equal(shard.asnumpy(), want):
                raise Wrong(
                    en=f"{en}: the shard for {ctx} is {in_words(shard)}, "
                    f"expected {in_words(want)}: a shard begins where the one before it ends, "
                    "the sum of the sizes before it",
                    ja=f"{ja}: {ctx} のシャードが {in_words(shard)} です。"
                    f"正しくは {in_words(want)} です。シャードは直前のシャードの終わり "
                    "(それまでの大きさの合計) から始まります",
                )
            if shard.context != ctx:
                raise Wrong(
                    en=f"{en}: the shard for {ctx} lies on {shard.context}: "
                    "it was cut, but never moved to its device",
                    ja=f"{ja}: {ctx} のシャードが {shard.context} にあります。"
                    "分割しただけで、デバイスに移していません",
                )
            if shard.dtype != array.dtype:
                raise Wrong(
                    en=f"{en}: {array.dtype} became {np.dtype(shard.dtype)}: "
                    "cut and copy the array itself; `nd.array` of numbers makes float32",
                    ja=f"{ja}: 型が {array.dtype} から {np.dtype(shard.dtype)} に変わりました。"
                    "配列そのものを分割してコピーしてください。"
                    "`nd.array` は float32 を作ります",
                )


@exercise("01-4")
def whole_gradient(answer: Callable[..., Any]) -> None:
    """The gradient of the whole batch's mean loss out of those of its shards."""
    random = np.random.RandomState(0)
    cases: List[Tuple[List[List[float]], List[int]]] = [
        ([[2, 4]], [3]),
        ([[1, 0], [3, 0]], [1, 1]),
        ([[1, 0], [5, 0]], [3, 1]),
        ([[6, 0], [0, 6], [3, 3]], [1, 2, 3]),
    ]
    for count in (2, 3, 4):
        cases.append(
            (random.randint(-9, 10, (count, 4)).tolist(), random.randint(1, 9, count).tolist())
        )
    for values, sizes in cases:
        ctxs = cpus(len(sizes))
        arrays = [nd.array(value, ctx=ctx) for value, ctx in zip(values, ctxs)]
        with watch() as seen:
            got = answer(list(arrays), list(sizes))
        numbers, weights = np.array(values, dtype=np.float64), np.array(sizes, dtype=np.float64)
        _check_whole(got, numbers, weights)
        check_arrays(arrays, values)
        if got.context != ctxs[0]:
            raise Wrong(
                en=f"the result of {len(sizes)} gradients lies on {got.context}: "
                f"it belongs on the first one's device, {ctxs[0]}",
                ja=f"{len(sizes)} 個の勾配の結果が {got.context} にあります。"
                f"最初の勾配のデバイス {ctxs[0]} に置いてください",
            )
        if seen.mixed:
            one, other = seen.mixed[0]
            raise Wrong(
                en=f"an operation had inputs on {one} and {other}: "
                "CPU devices bear that, two GPUs do not. Copy first, with `as_in_context`",
                ja=f"{one} と {other} の配列を 1 つの演算に渡しています。"
                "CPU デバイスでは動きますが、2 個の GPU では動きません。"
                "先に `as_in_context` でコピーしてください",
            )


def _check_whole(got: Any, values: "np.ndarray[Any, Any]", sizes: "np.ndarray[Any, Any]") -> None:
    want = (values * sizes[:, None]).sum(0) / sizes.sum()
    if not isinstance(got, nd.NDArray):
        raise Wrong(
            en=f"it returned {type(got).__name__}: return an array of MXNet, like the gradients",
            ja=f"{type(got).__name__} が返りました。勾配と同じく MXNet の配列を返してください",
        )
    result = got.asnumpy()
    if result.shape == want.shape and np.allclose(result, want, atol=1e-4):
        return
    case = ", ".join(f"{in_words(value)} ({int(size)})" for value, size in zip(values, sizes))
    en, ja = "", ""
    for guess, why_en, why_ja in (
        (
            values.sum(0),
            "that is their sum, which is right for losses that are added, not for means",
            "これは合計で、損失を合計したときの答えです。平均の場合は異なります",
        ),
        (
            values.mean(0),
            (
                "that is their mean, in which an image of a small shard counts more than one of "
                "a large shard"
            ),
            (
                "これは単純な平均です。"
                "小さいシャードの画像が大きいシャードの画像より重く数えられています"
            ),
        ),
        (
            (values * sizes[:, None]).sum(0),
            ("that is the gradient of the sum of all losses: divide by the number of all images"),
            "これは全損失の合計の勾配です。全体の枚数で割ってください",
        ),
        (
            (values / sizes[:, None]).sum(0),
            "a larger shard must count more, not less: multiply by its size",
            "大きいシャードほど重く数える必要があります。枚数は割るのではなく掛けてください",
        ),
    ):
        if result.shape == want.shape and np.allclose(result, guess, atol=1e-4) and not en:
            en, ja = f": {why_en}", f"。{why_ja}"
    raise Wrong(
        en=f"gradients (and images) {case} gave {in_words(result)}, expected {in_words(want)}{en}",
        ja=f"勾配 (枚数) が {case} のとき {in_words(result)} になりました。"
        f"正しくは {in_words(want)} です{ja}",
    )
