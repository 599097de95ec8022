"""The exercises of lab 01: arrays on devices, timing, and a batch split over devices.

01-1: find the device of each array. 01-2: measure the time of queued work. 01-3: split a batch into
shards. 01-4: compute a batch's gradient from the gradients of its shards.
"""

from __future__ import annotations

import ctypes
import time
from contextlib import ExitStack
from time import sleep
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple
from unittest.mock import patch

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.cpu_threads import EngineContext
from gluonlab.exercises.array_tracking import check_unmodified, cpu_devices, format_array, watch
from gluonlab.exercises.exercise_registry import Wrong, case_rng, exercise
from gluonlab.exercises.explain_wrong_answers import (
    CaseText,
    TextPair,
    check_faults,
    counterexample,
    formula_mistakes,
    is_number,
    run_cases,
)
from gluonlab.exercises.guesses import ChoiceForm, ListForm, NumberForm, YesNoForm, register_guess

Array = Any  # np.ndarray


# --- 01-1: the device of each array


REASONS = {
    "a": ("it was made with `ctx=first`", "`ctx=first` を指定して作られています"),
    "b": ("`as_in_context` returns a copy on the device that you pass",
          "`as_in_context` は指定したデバイス上のコピーを返します"),
    "c": ("an operation runs on the device of its input, and a is on `first`",
          "演算は入力のあるデバイスで実行され、a は `first` にあります"),
    "d": ("both inputs are on `second`, and so is the product",
          "入力は 2 つとも `second` にあり、積もそこで作られます"),
    "e": ("`zeros_like` makes an array on the device of the one it is given",
          "`zeros_like` は渡された配列と同じデバイスに作ります"),
    "f": ("d was copied to `first` before the sum", "足す前に d が `first` にコピーされています"),
    "g": ("inside `with second:` an array without `ctx=` is made on `second`",
          "`with second:` の中では、指定のない配列は `second` に作られます"),
    "h": ("`copyto(a)` writes into a and returns it", "`copyto(a)` は a に書き込み、a を返します"),
}  # fmt: skip


def _device_numbers() -> Dict[str, int]:
    """Run the exercise's lines in MXNet, and return the device number of each array by name."""
    first, second = cpu_devices(2)
    a = nd.ones((2, 2), ctx=first)
    b = a.as_in_context(second)
    c = a + 1
    d = b * b
    e = nd.zeros_like(d)
    f = d.as_in_context(first) + a
    with second:
        g = nd.ones((2, 2))
    h = g.copyto(a)
    return {name: array.context.device_id for name, array in zip(REASONS, (a, b, c, d, e, f, g, h))}


@exercise("01-1")
def check_array_devices(answer: Any) -> None:
    """Predict the device of each of eight arrays without running the lines."""
    if not isinstance(answer, dict):
        raise Wrong(
            en=f"{answer!r} is not a dictionary: write one such as {{'a': 0, 'b': 1, ...}} with a "
            "number for each array",
            ja=f"{answer!r} は辞書ではありません。{{'a': 0, 'b': 1, ...}} のように、配列ごとに番号を書いてください",
        )
    for name, device_number in _device_numbers().items():
        answered, (en, ja) = answer.get(name), REASONS[name]
        check_faults(
            (name not in answer, f"there is no number for `{name}`", f"`{name}` の番号がありません"),
            (isinstance(answered, bool) or answered not in (0, 1),
             f"your answer for `{name}` is {answered!r}: write 0 for `first`, 1 for `second`",
             f"`{name}` に {answered!r} と書かれています。`first` なら 0、`second` なら 1 としてください"),
            (answered != device_number, f"`{name}` is not on device {answered}: {en}",
             f"`{name}` があるのはデバイス {answered} ではありません。{ja}"),
        )  # fmt: skip


# --- 01-2: a clock that measures all queued work, and nothing else


_EngineCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
MAX_PENDING_CALLBACKS = 100

_pending_callbacks: List[Any] = []  # keeps the callbacks alive while MXNet's engine may call them


def queue_pause(ctx: mx.Context, seconds: float) -> None:
    """Queue an operation that occupies a CPU device for ``seconds`` by sleeping."""
    queue_call(ctx, lambda: sleep(seconds))


def queue_call(ctx: mx.Context, call: Callable[[], object]) -> nd.NDArray:
    """Queue ``call`` as an operation on the CPU device ``ctx``.

    Return an array that the operation writes. Waiting for this array means waiting for the
    operation.
    """

    def operate(run_context: object, parameter: object) -> None:
        call()

    if len(_pending_callbacks) > MAX_PENDING_CALLBACKS:
        nd.waitall()
        _pending_callbacks.clear()
    callback, written = _EngineCallback(operate), nd.zeros((1,), ctx=ctx)
    device, output = ctypes.byref(EngineContext(1, ctx.device_id)), ctypes.byref(written.handle)
    _pending_callbacks.append((callback, written))
    none = (None, None)
    check_call(_LIB.MXEnginePushSyncND(callback, *none, device, None, 0, output, 1, None, 0, b"queue_call"))
    return written


PAUSE_S = 0.3  # duration of the timed work
TRIES = 3  # repeated, because a correct answer fails if another program interrupts it for PAUSE_S

Clock = Callable[[Callable[[], None]], float]


@exercise("01-2")
def check_clock(answer: Clock) -> None:
    """Measure the seconds of queued work: all of it, and nothing else."""
    first, second = cpu_devices(2)
    calls: List[float] = []

    def work(ctxs: Sequence[mx.Context] = (first,)) -> None:
        calls.append(time.perf_counter())
        for ctx in ctxs:
            queue_pause(ctx, PAUSE_S)

    def work_and_wait() -> None:
        work()
        nd.waitall()

    seconds = _time_answer(answer, work)
    if len(calls) != 1:
        raise counterexample(
            f"`work` was called {len(calls)} times: call it once, because the exercise asks for the time of one call",
            f"`work` が {len(calls)} 回呼ばれました。1 回分の秒数を返すので、呼び出しは 1 回だけにしてください",
        )
    _check_timed_pause(seconds, first)
    _check_timed_pause(_time_answer(answer, lambda: work((second,))), second)
    measured, actual, _ = _time_answer(answer, work_and_wait)
    en = f"for work that waits for its own {PAUSE_S} s before it returns, your clock returned"
    ja = f"{PAUSE_S} 秒の計算を自分で待ってから戻る処理が"
    check_faults(
        (measured > _max_counted_s(actual),
         f"{en} {measured:.3g} s, but your clock returned after {actual:.3g} s: it counts the time of the call "
             "twice. Read the clock once before the call and once when the work is done",
         f"{ja} {measured:.3g} 秒になりましたが、呼び出しから {actual:.3g} 秒で戻っています。`work` "
         "を呼び出している時間を 2 回数えています。時刻は、呼び出す前と処理が終わったときの 1 回ずつ取ってください"),
        (measured < 0.9 * PAUSE_S,
         f"{en} {measured:.3f} s: the clock was started after `work` had returned. Start it before the call",
         f"{ja} {measured:.3f} 秒になりました。`work` が戻ってから計測を始めています。呼び出す前に始めてください"),
    )  # fmt: skip
    for _ in range(TRIES):
        queue_pause(first, PAUSE_S)
        measured = _time_answer(answer, lambda: None, after_others=False).got
        if measured <= 0.8 * PAUSE_S:
            return
        nd.waitall()
    raise counterexample(
        f"your clock returned {measured:.2f} s for work that does nothing: this includes {PAUSE_S} s of other work "
        "that was already queued. Wait for that work before you start the clock",
        f"何もしない処理に {measured:.2f} 秒かかったことになりました。その前にキューに入っていた {PAUSE_S} "
        "秒の別の処理まで数えています。計測を始める前に、それが終わるのを待ってください",
    )


class TimedAnswer(NamedTuple):
    """The result of an answer that measures time.

    ``got``: the seconds that the answer returned. ``took``: the seconds until the answer returned.
    ``cpu_clocks``: names of the CPU clocks that the answer read, such as ``process_time``.
    """

    got: float
    took: float
    cpu_clocks: List[str]


def _time_answer(answer: Clock, work: Callable[[], None], after_others: bool = True) -> TimedAnswer:
    """Call ``answer(work)``. Return its result, its duration, and the CPU clocks that it read."""
    if after_others:
        nd.waitall()
    cpu_clocks: List[str] = []

    def record_clock(name: str) -> Callable[[], float]:
        """Return the function ``name`` from `time`, wrapped so that its calls are recorded."""
        clock = getattr(time, name)

        def read_clock() -> float:
            cpu_clocks.append(name)
            return float(clock())

        return read_clock

    with ExitStack() as patched:
        for name in ("process_time", "thread_time"):
            patched.enter_context(patch.object(time, name, record_clock(name)))
        begin = time.perf_counter()
        got = answer(work)
        took = time.perf_counter() - begin
    if is_number(got):
        return TimedAnswer(float(got), took, cpu_clocks)
    raise Wrong(
        en=f"your function returned {got!r}: return the number of seconds",
        ja=f"{got!r} が返りました。秒数を数値で返してください",
    )


def _max_counted_s(took: float) -> float:
    """Return the longest time that an answer may report if it ran for ``took`` seconds."""
    return took * 1.02 + 0.01


def _check_timed_pause(timed: TimedAnswer, ctx: mx.Context) -> None:
    """Raise Wrong unless the answer measured about PAUSE_S, the duration of the work on ``ctx``."""
    got, took, cpu_clocks = timed
    en = f"for work that keeps {ctx} busy for {PAUSE_S} s your clock returned {got:.3g}"
    ja = f"{ctx} での {PAUSE_S} 秒の処理が {got:.3g}"
    clock = f"`time.{cpu_clocks[0]}`" if cpu_clocks else ""
    max_s, units_per_s = _max_counted_s(took), (1e3, 1e6, 1e9)
    check_faults(
        (got < 0, f"{en} s: subtract the earlier time from the later one",
         f"{ja} 秒になりました。後の時刻から前の時刻を引いてください"),
        (clock and got < 0.9 * PAUSE_S,
         f"{en} s: {clock} counts only the time in which this process computes, not the time in which it waits for a "
             "device. Use `time.perf_counter`",
         f"{ja} 秒になりました。{clock} はこのプロセスが計算した時間だけを数え、デバイスを待つ時間は含みません。"
         "`time.perf_counter` を使ってください"),
        (got < 0.9 * PAUSE_S, f"{en} s: the clock was read after the work was queued, but before it was done",
         f"{ja} 秒になりました。処理をキューに入れただけで、終わる前に時刻を取っています"),
        (any(0.9 * PAUSE_S <= got / unit <= max_s for unit in units_per_s), f"{en}: return seconds",
         f"{ja} になりました。単位は秒にしてください"),
        (got > max_s, f"{en} s, but your clock returned after {took:.3g} s: it counts too much",
         f"{ja} 秒になりましたが、呼び出しから {took:.3g} 秒で戻っています。数えすぎです"),
    )  # fmt: skip


# --- 01-3: a batch cut into shards of given sizes


def _shard_cases() -> "List[Tuple[Array, List[int]]]":
    """Return the test cases, simplest first. A case is an array and the sizes of its shards."""
    random = case_rng(0)
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
def check_unequal_shards(answer: Callable[..., Any]) -> None:
    """Split a batch into shards of given sizes, each on its device."""
    for array, sizes in _shard_cases():
        ctxs = cpu_devices(len(sizes))
        got = answer(nd.array(array, dtype=array.dtype), list(sizes), list(ctxs))
        en, ja = f"{len(array)} rows in shards of {sizes}", f"{len(array)} 行を {sizes} に分割"
        is_list = isinstance(got, (list, tuple))
        count = len(got) if is_list else type(got).__name__
        lengths = [len(shard) for shard in got] if count == len(sizes) else []
        check_faults(
            (count != len(sizes), f"{en} gave {count}: return a list of {len(sizes)} arrays, one per device",
             f"{ja}すると {count} が返りました。デバイスごとに 1 つ、{len(sizes)} 個の配列のリストを返してください"),
            (lengths != sizes,
             f"{en} gave shards of {lengths} rows: each device must get the number of rows in its entry of `sizes`",
             f"{ja}すると {lengths} 行になりました。各デバイスには `sizes` のとおりの行数を渡してください"),
        )  # fmt: skip
        for shard, end, size, ctx in zip(got, np.cumsum(sizes), sizes, ctxs):
            want = array[end - size : end]
            CaseText(en, ja).check_faults(
                (not np.array_equal(shard.asnumpy(), want),
                 f"the shard for {ctx} is {format_array(shard)}, expected {format_array(want)}: a shard starts where "
                     "the previous shard ends, at the sum of all sizes before it",
                 f"{ctx} のシャードが {format_array(shard)} です。正しくは {format_array(want)} です。"
                 "シャードは直前のシャードの終わり (それまでの大きさの合計) から始まります"),
                (shard.context != ctx,
                 f"the shard for {ctx} is on {shard.context}: you cut it, but did not move it to its device",
                 f"{ctx} のシャードが {shard.context} にあります。分割しただけで、デバイスに移していません"),
                (shard.dtype != array.dtype,
                 f"{array.dtype} became {np.dtype(shard.dtype)}: slice and copy the array itself; `nd.array` "
                     "converts numbers to float32",
                 f"型が {array.dtype} から {np.dtype(shard.dtype)} に変わりました。"
                 "配列そのものを分割してコピーしてください。`nd.array` は float32 を作ります"),
            )  # fmt: skip


# --- 01-4: the gradient of a batch from the gradients of its shards


@exercise("01-4")
def check_whole_gradient(answer: Callable[..., Any]) -> None:
    """Compute the gradient of the whole batch's mean loss from the shards' gradients."""
    random = case_rng(0)
    cases: List[Tuple[List[List[float]], List[int]]] = [
        ([[2, 4]], [3]),
        ([[1, 0], [3, 0]], [1, 1]),
        ([[1, 0], [5, 0]], [3, 1]),
        ([[6, 0], [0, 6], [3, 3]], [1, 2, 3]),
    ]
    for n in (2, 3, 4):
        cases.append((random.randint(-9, 10, (n, 4)).tolist(), random.randint(1, 9, n).tolist()))
    results = run_cases(lambda values, sizes: _run_answer(answer, values, sizes), cases, _weighted_mean)
    results.check_results(_is_close, GRADIENT_MISTAKES, _describe_gradient)


def _describe_gradient(values: List[List[float]], sizes: List[int], got: Array, expected: Array) -> TextPair:
    """Describe a wrong gradient of the whole batch, in English and Japanese."""
    input_text = ", ".join(f"{format_array(value)} ({size})" for value, size in zip(values, sizes))
    return (
        f"gradients (and images) {input_text} gave {format_array(got)}, expected {format_array(expected)}",
        f"勾配 (枚数) が {input_text} のとき {format_array(got)} になりました。正しくは {format_array(expected)} です",
    )


def _run_answer(answer: Callable[..., Any], values: List[List[float]], sizes: List[int]) -> Array:
    """Return the answer's gradient of the whole batch, computed from one gradient per device.

    ``values``: the gradients. ``sizes``: the number of images on each device. Raises Wrong if the
    answer modified its inputs, used arrays of two devices in one operation, or did not leave the
    result on the first device.
    """
    ctxs = cpu_devices(len(sizes))
    arrays = [nd.array(value, ctx=ctx) for value, ctx in zip(values, ctxs)]
    with watch() as trace:
        got = answer(list(arrays), list(sizes))
    if not isinstance(got, nd.NDArray):
        raise counterexample(
            f"your function returned a value of type {type(got).__name__}: return an MXNet array, like the gradients",
            f"{type(got).__name__} が返りました。勾配と同じく MXNet の配列を返してください",
        )
    if not _is_close(got.asnumpy(), _weighted_mean(values, sizes)):
        return got.asnumpy()  # the caller reports a wrong value
    check_unmodified(arrays, values)
    if got.context != ctxs[0]:
        raise counterexample(
            f"the result of {len(sizes)} gradients is on {got.context}: put it on the device of the first gradient, "
            f"{ctxs[0]}",
            f"{len(sizes)} 個の勾配の結果が {got.context} にあります。最初の勾配のデバイス {ctxs[0]} に置いてください",
        )
    for one, other in trace.mixed_inputs:
        raise counterexample(
            f"one operation used arrays on {one} and {other}. CPU devices allow this, but GPUs do not: first copy one "
            "of the arrays with `as_in_context`",
            f"{one} と {other} の配列を 1 つの演算に渡しています。CPU デバイスでは動きますが、2 個の GPU "
            "では動きません。先に `as_in_context` でコピーしてください",
        )
    return got.asnumpy()


def _weighted_mean(values: List[List[float]], sizes: List[int]) -> Array:
    return np.average(np.array(values, dtype=np.float64), axis=0, weights=sizes)


def _is_close(got: Array, want: Array) -> bool:
    return got.shape == want.shape and bool(np.allclose(got, want, atol=1e-4))


def _matches_gradient_formula(formula: Callable[[Array, Array], Array]) -> Callable[..., bool]:
    """Return a predicate that tests whether the result is ``formula(gradients, sizes)``.

    ``formula`` computes the result of a known mistake. For n devices and gradients of m numbers,
    ``gradients`` has the shape (n, m), and ``sizes`` has the shape (n, 1).
    """
    return lambda values, sizes, got: _is_close(
        got, formula(np.array(values, dtype=np.float64), np.array(sizes, dtype=np.float64)[:, None])
    )


GRADIENT_MISTAKES = formula_mistakes(_matches_gradient_formula, [
    (lambda values, sizes: values.sum(0),
     "that is their sum, which is correct for added losses, but not for mean losses",
     "これは合計で、損失を合計したときの答えです。平均の場合は異なります"),
    (lambda values, sizes: values.mean(0),
     "that is their mean, in which an image of a small shard counts more than one of a large shard",
     "これは単純な平均です。小さいシャードの画像の寄与が、大きいシャードの画像の寄与より大きくなっています"),
    (lambda values, sizes: (values * sizes).sum(0),
     "that is the gradient of the sum of all losses: divide by the number of all images",
     "これは全損失の合計の勾配です。全体の枚数で割ってください"),
    (lambda values, sizes: (values / sizes).sum(0), "a larger shard must count more, not less: multiply by its size",
     "大きいシャードほど寄与を大きくする必要があります。枚数で割らずに、枚数を掛けてください"),
    (lambda values, sizes: (values * sizes).sum(0) / len(sizes),
     "divide by the number of all images, not by the number of shards",
     "シャードの数ではなく、全体の枚数で割ってください"),
])  # fmt: skip


# --- The guesses


# fmt: off
register_guess("01-a", NumberForm(0, 1, example=0.5, within=0.1),
    "what fraction of the time has passed when Python has the result array?",
    "Python が結果の配列を手にした時点で、時間の何割が過ぎているか")
register_guess("01-b", ListForm(NumberForm(0, 7, example=2), 3), "how many of 7 images does each of 3 devices get?",
    "7 枚の画像を 3 台に分けると、それぞれ何枚か")
register_guess("01-c", YesNoForm(), "the initial weights are random: are the two replicas equal?",
    "重みの初期値は乱数。2 つのレプリカは等しいか")
register_guess("01-d", ChoiceForm("sum", "mean", "neither"),
    "how do the two gradients combine into the gradient of all 7 images?",
    "2 つの勾配の何が、7 枚全体の勾配になるか")
register_guess("01-e", NumberForm(0, example=1.0, factor=1.2), "how many times as fast are two devices as one?",
    "2 台は 1 台の何倍速いか")
